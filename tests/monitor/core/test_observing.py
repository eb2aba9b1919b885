"""Silence is judged only by a monitor that could hear: blocked calls, a stopped process, a loop that lags behind.

Real files, a reader with system calls that block when told to, and the core; the clock moves by hand. While a call
blocks the loop turns on and the trainings write on, as they do in the daemon, where each has a thread of its own.
"""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.follow.messages import Message, UnobservedTime
from megatron_monitor.incidents import Transition
from tests.clock import ManualClock
from tests.conftest import spread
from tests.lines import line
from tests.monitor.follow.conftest import FaultyOs, reader_of

PACE = 5.0  # seconds an iteration
BUDGET = 60.0
LATE = 12.0  # seconds beyond a budget that a look at a silent file may take


class Fleet:
    """Trainings that write, one mount, its reader and the core."""

    def __init__(self, directory: Path, file_system: str, runs: int = 1, config: str = "") -> None:
        self.clock = ManualClock()
        self.os = FaultyOs()
        self.paths = [directory / f"run{number:03}.log" for number in range(runs)]
        self.written = dict.fromkeys(self.paths, 0)
        self.writing = set(self.paths)
        self.due = self.clock.monotonic()
        self.reported: list[tuple[float, Transition]] = []
        self.core = Core(load(config or f"runs: [{{paths: ['{directory}/*.log']}}]"))
        self.reader = reader_of(f"{directory}/*.log", mounts=file_system, os_layer=self.os)
        self.run(120.0)
        assert self.incidents() == []

    def run(self, seconds: float) -> None:
        """Time passes and everybody does what they do."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.pass_time(0.5)
            self.read()
            self.loop()

    def pass_time(self, seconds: float) -> None:
        """Only the trainings work."""
        self.clock.advance(seconds)
        while self.clock.monotonic() >= self.due:
            self.due += PACE
            for path in self.writing:
                self.written[path] += 1
                with path.open("a") as stream:
                    stream.write(line(self.written[path], seconds=PACE))

    def read(self) -> None:
        """A pass of the reader."""
        for message in self.reader.poll(self.clock):
            self.core.handle(message, self.clock.wall())
        self.reader.end_pass(self.clock.monotonic(), 0.5)

    def loop(self) -> None:
        """A turn of the loop."""
        now = self.clock.wall()
        unobserved_time = self.reader.unobserved_seconds(self.clock.monotonic())
        self.core.listen({"/": now - unobserved_time} if unobserved_time else {}, now)
        self.reported += [(now, one) for one in self.core.tick(now)]

    def block(self, seconds: float, *calls: str) -> None:
        """The next of these calls takes so long."""

        def fault(_path: str) -> OSError | None:
            self.os.heal()
            for _ in range(int(seconds * 2)):
                self.pass_time(0.5)
                self.loop()
            return None

        for call in calls:
            self.os.faults[call] = fault

    def stop(self, seconds: float) -> None:
        """SIGSTOP of the daemon, or a machine that sleeps: only the trainings work; then the loop is the first."""
        for _ in range(int(seconds * 2)):
            self.pass_time(0.5)
        self.loop()

    def incidents(self) -> list[tuple[str, str]]:
        """(run, incident) of what people were told."""
        return [(one.run, one.incident) for _, one in self.reported if not one.display_only and one.status == "firing"]

    def close(self) -> None:
        """Give the files back."""
        self.reader.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Makes fleets."""
    made: list[Fleet] = []

    def make(file_system: str = "ext4", **more: object) -> Fleet:
        made.append(Fleet(tmp_path, file_system, **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("file_system", spread(["nfs", "ext4"], 2))
@pytest.mark.parametrize("seconds", [15.0, 80.0, 300.0])
@pytest.mark.parametrize("call", ["stat", "open", "pread"])
def test_a_blocked_mount(fleet: Callable[..., Fleet], file_system: str, seconds: float, call: str) -> None:
    """The trainings go on: nothing is told. One that stopped before, one that stops meanwhile, one that stops as the
    mount is back are told within the budget after the return.
    """
    some = fleet(file_system, runs=4)
    before, meanwhile, after, healthy = some.paths
    some.writing.discard(before)
    some.run(20.0)
    if call == "open":  # a new file is opened
        (some.paths[0].parent / "new.log").write_text("nothing\n")
    some.block(seconds, call)
    some.run(10.0)
    assert not some.os.faults, "the call was made"
    assert some.incidents() == []
    assert some.core.runs["run003"].state.attempt.latest.iteration is not None
    some.writing -= {meanwhile, after}
    back = some.clock.wall()
    some.run(BUDGET + LATE)
    assert sorted(some.incidents()) == [("run000", "hang"), ("run001", "hang"), ("run002", "hang")]
    assert all(at - back <= BUDGET + LATE for at, _ in some.reported)
    some.writing.add(healthy)
    gaps = [
        some.core.runs["run003"].state.learned.silences.longest("training"),
        some.core.runs["run003"].state.attempt.gap_ratios.longest,
    ]
    assert gaps[0] is not None
    assert gaps[0] <= 3 * PACE


@pytest.mark.parametrize("file_system", ["ext4", "nfs"])
def test_while_the_mount_is_blocked_runs_are_unknown(fleet: Callable[..., Fleet], file_system: str) -> None:
    """No hang is told, none that is open is resolved, and the deadline that is shown does not pass."""
    some = fleet(file_system, runs=2)
    hung, healthy = some.paths
    some.writing.discard(hung)
    some.run(BUDGET + LATE)
    assert some.incidents() == [("run000", "hang")]
    some.block(400.0, "stat")
    some.run(1.0)
    assert [(one.run, one.status) for _, one in some.reported if not one.display_only] == [("run000", "firing")]
    some.writing.add(hung)
    some.run(20.0)
    assert [(one.run, one.status) for _, one in some.reported if not one.display_only] == [
        ("run000", "firing"), ("run000", "resolved"),
    ]  # fmt: skip
    some.writing.discard(healthy)
    some.run(2.0)
    display_only = some.core.runs["run001"].state.progress_at
    assert display_only is not None
    some.run(display_only + BUDGET - 0.6 - some.clock.wall())
    some.reported.clear()
    some.block(400.0, "stat")  # it begins as the budget ends: what is open or pending stays as it is
    some.run(1.0)
    assert [(one.run, one.status) for _, one in some.reported if not one.display_only] in ([], [("run001", "firing")])
    some.run(BUDGET)
    assert some.incidents() == [("run001", "hang")]
    assert [one.status for _, one in some.reported if not one.display_only] == ["firing"]


@pytest.mark.parametrize("file_system", ["ext4", "nfs"])
def test_a_stopped_daemon(fleet: Callable[..., Fleet], file_system: str) -> None:
    """120 s, time and again, in 20 runs: read before judging; then each that hangs is told."""
    some = fleet(file_system, runs=20)
    for _ in range(2):
        some.stop(120.0)
        some.run(13.0)
    assert some.incidents() == []
    some.writing = set(some.paths[:10])
    some.stop(30.0)
    some.run(BUDGET + LATE)
    assert sorted(some.incidents()) == [(f"run{number:03}", "hang") for number in range(10, 20)]


@pytest.mark.parametrize("file_system", ["ext4", "nfs"])
def test_a_pause_of_the_daemon_teaches_no_gap(fleet: Callable[..., Fleet], tmp_path: Path, file_system: str) -> None:
    """25 s; a minute later the run hangs: told within its budget of three iterations, as without the pause."""
    config = f"runs: [{{paths: ['{tmp_path}/*.log']}}]\ndetectors: {{hang: {{minimum: 5s}}}}"
    some = fleet(file_system, config=config)
    some.stop(25.0)
    some.run(60.0)
    assert some.incidents() == []
    some.writing.clear()
    stopped = some.clock.wall()
    some.run(60.0)
    ((reported, one),) = [(at, one) for at, one in some.reported if not one.display_only]
    assert one.incident == "hang"
    assert reported - stopped <= 3 * PACE + 2.0


def test_a_mount_that_fails_for_a_while(fleet: Callable[..., Fleet]) -> None:
    """Errors in place of silence: the run is lost and told so; when it is back the outage is no silence of it, not even
    where the writer waits for the mount, too.
    """
    some = fleet("nfs")
    some.writing.clear()
    some.os.fail(errno.EIO, "stat", "pread", "open")
    some.run(100.0)
    assert some.incidents() == [("run000", "source_lost")]
    some.os.heal()
    some.run(35.0)
    assert some.incidents() == [("run000", "source_lost")]
    some.run(BUDGET)
    assert some.incidents() == [("run000", "source_lost"), ("run000", "hang")]


def test_a_lapse_is_told_before_what_was_written_meanwhile(fleet: Callable[..., Fleet]) -> None:
    """And a pause that was meant is none."""
    some = fleet()
    some.reader.end_pass(some.clock.monotonic(), 50.0)
    some.pass_time(50.0)
    assert not any(isinstance(message, UnobservedTime) for message in some.reader.poll(some.clock))
    some.reader.end_pass(some.clock.monotonic(), 0.5)
    some.pass_time(50.0)
    messages = list(some.reader.poll(some.clock))
    assert isinstance(messages[0], UnobservedTime)
    assert messages[0].seconds == 49.5
    assert len(messages) > 1


def test_a_file_that_waits_for_its_look_is_late_though_others_are_read(fleet: Callable[..., Fleet]) -> None:
    """The reader never stops, but its pass takes long: it has too little processor time."""
    some = fleet(runs=4)
    some.pass_time(30.0)
    late = []
    for message in some.reader.poll(some.clock):
        some.core.handle(message, some.clock.wall())
        late.append(some.reader.overdue_seconds(some.clock.monotonic()))
        some.clock.advance(1.0)
    some.reader.end_pass(some.clock.monotonic(), 0.5)
    assert len(late) >= 4
    assert late == sorted(late)
    assert late[-1] - late[0] >= 3.0
    assert some.reader.overdue_seconds(some.clock.monotonic() + 9.0) == 0.0


@pytest.mark.parametrize("behind", [4.0, 20.0])
def test_a_loop_that_stays_behind_tells_later_and_of_nobody_else(fleet: Callable[..., Fleet], behind: float) -> None:
    """A machine with too little processor time: messages always wait for so long. What was taken is judged."""
    some = fleet(runs=3)
    waiting: list[tuple[float, Message]] = []
    stopped_at = some.clock.wall()
    some.writing.discard(some.paths[0])
    while some.clock.wall() < stopped_at + BUDGET + behind + LATE:
        some.pass_time(0.5)
        now = some.clock.wall()
        waiting += [(now, message) for message in some.reader.poll(some.clock)]
        some.reader.end_pass(some.clock.monotonic(), 0.5)
        while waiting and waiting[0][0] <= now - behind:
            some.core.handle(waiting.pop(0)[1], now)
        some.core.listen({}, now)
        some.reported += [(now, one) for one in some.core.tick(waiting[0][0] if waiting else now)]
    assert some.incidents() == [("run000", "hang")]
