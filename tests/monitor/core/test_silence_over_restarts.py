"""Silence that was heard is not forgotten by a restart: killed and started again and again, a hang is told in its time,
and the deadline that is shown stays where it is. Real files, a reader, the core, and what is saved when; the clock is
moved by hand.
"""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.detectors import hang
from megatron_monitor.incidents import Transition
from megatron_monitor.saving import Saving
from tests.clock import ManualClock
from tests.lines import line
from tests.monitor.follow.conftest import reader_of


class Disk:
    """In place of the store and of its thread: what is offered is there at once, and stays."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.wants_all = False
        self.saves, self.answered = 0, 0

    def lock(self) -> None:
        """Nobody else is there."""

    def load(self) -> tuple[dict[str, bytes] | None, list[str]]:
        """What was offered last."""
        return (dict(self.data) or None), []

    def notes(self) -> frozenset[str]:
        """Nobody was told anything."""
        return frozenset()

    def save(self, parts: dict[str, bytes | None]) -> bool:
        """Nothing is written by a thread."""
        raise NotImplementedError

    def ask(self, parts: dict[str, bytes | None]) -> None:
        """Written."""
        self.data |= {name: part for name, part in parts.items() if part}
        self.saves += 1

    def answers(self) -> list[bool]:
        """All were."""
        answered, self.answered = self.answered, self.saves
        return [True] * (self.saves - answered)


class Lab:
    """One training, its log, and a daemon that is killed when the test says so."""

    def __init__(self, directory: Path, disk: Disk, minimum: float, pace: float) -> None:
        self.clock, self.disk, self.pace = ManualClock(), disk, pace
        self.paths = [directory / "a.log"]
        self.pattern = f"{directory}/*.log"
        self.config = load(
            f"runs: [{{name: a, paths: ['{self.pattern}']}}]\ndetectors: {{hang: {{minimum: {minimum}s}}}}"
        )
        self.reported: list[tuple[float, Transition]] = []
        self.written = 0
        self.start()

    def start(self) -> None:
        """Read on where the state stands."""
        self.core = Core(self.config)
        self.saving = Saving(self.core, self.clock, lambda: None)
        saved = self.saving.load(Path())
        positions = self.core.restore(saved) if saved is not None else {}
        self.reader = reader_of(self.pattern, resume=positions)

    def restart(self, away: float) -> None:
        """Killed, and back after so long."""
        self.reader.close()
        self.clock.advance(away)
        self.start()

    def turn(self, seconds: float) -> None:
        """The daemon runs."""
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            for message in self.reader.poll(self.clock):
                self.core.handle(message, self.clock.wall())
            self.reader.end_pass(self.clock.monotonic(), 0.5)
            self.reported += [(self.clock.wall(), one) for one in self.core.tick(self.clock.wall())]
            self.saving.turn(self.clock.wall())
            self.clock.advance(0.5)

    def train(self, steps: int) -> None:
        """So many, while the daemon runs."""
        for _ in range(steps):
            self.turn(self.pace)
            self.write()

    def write(self, text: str = "") -> None:
        """An iteration, stamped by the file system as the made-up clock has it."""
        self.written += not text
        with self.paths[0].open("a") as stream:
            stream.write(text or line(self.written, seconds=self.pace))
        os.utime(self.paths[0], (self.clock.wall(), self.clock.wall()))

    @property
    def run(self) -> Any:
        """As the core has it."""
        return self.core.runs["a"]

    @property
    def deadline(self) -> float:
        """As it is exported."""
        at = hang.deadline(self.run.state, self.config.detectors.hang)
        assert at is not None
        return at

    def hangs(self) -> list[float]:
        """When people were told of one."""
        return [
            at for at, one in self.reported if (one.incident, one.status, one.display_only) == ("hang", "firing", False)
        ]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Lab]]:
    """Makes one that has trained for a while; `pace`: seconds an iteration."""
    made: list[Lab] = []
    disk = Disk()
    monkeypatch.setattr("megatron_monitor.saving.Store", lambda _directory: disk)
    monkeypatch.setattr("megatron_monitor.saving.Asking", lambda *_: disk)

    def make(minimum: float, pace: float = 1.0) -> Lab:
        some = Lab(tmp_path, disk, minimum, pace)
        made.append(some)
        some.train(12)
        some.turn(1.0)
        assert some.hangs() == []
        return some

    yield make
    for one in made:
        one.reader.close()


@pytest.mark.parametrize(
    ("budget", "every", "away"),
    [(12.0, 5.0, 1.5), (20.0, 10.0, 3.0), (7200.0, 900.0, 30.0), (7200.0, 900.0, 300.0), (1800.0, 20.0, 300.0)],
)
def test_a_hang_is_told_in_its_time(lab: Callable[..., Lab], budget: float, every: float, away: float) -> None:
    """Whatever the pace of the kills: also a supervisor's longest pause, with an eye-blink of life between two."""
    some = lab(budget)
    silent, shown = some.clock.wall(), some.deadline
    while not some.hangs() and some.clock.wall() < silent + 3 * budget:
        some.turn(every - away if every > away else every)
        if some.core.runs and not some.hangs():
            assert some.deadline == shown
            some.restart(away)
    (reported,) = some.hangs()
    assert reported - silent <= budget + away + 2.0


def test_lines_that_are_no_progress_prove_silence_as_none_do(lab: Callable[..., Lab]) -> None:
    """The launcher chatters on while the daemon is away."""
    some = lab(60.0)
    silent, shown = some.clock.wall(), some.deadline
    for _ in range(20):
        some.turn(2.0)
        some.write("waiting for storage\n")
        some.restart(3.0)
        some.turn(0.5)
        assert some.deadline in (shown, pytest.approx(shown))
        if some.hangs():
            break
    assert some.hangs()[0] - silent <= 60.0 + 5.0


def test_no_hang_is_told_of_what_trained_on(lab: Callable[..., Lab]) -> None:
    """Near misses: a step came while the daemon was away, by a file server's clock that is behind; who was away
    for an hour, as a whole cluster may be, waits anew; lines of a file that was replaced may be lost.
    """
    some = lab(12.0)

    def later(away: float) -> None:
        some.restart(away)
        some.turn(4.0)
        assert some.hangs() == []
        some.train(10)
        some.turn(5.0)

    some.turn(8.0)
    some.write()
    os.utime(some.paths[0], (some.clock.wall() - 30.0, some.clock.wall() - 30.0))
    later(10.0)
    later(3600.0)
    some.paths[0].unlink()
    some.paths[0].write_text("another file\n")
    later(10.0)


@pytest.mark.parametrize("steps", [False, True])
def test_a_file_that_is_known_later_is_waited_for(lab: Callable[..., Lab], tmp_path: Path, steps: bool) -> None:
    """Until then the time is no silence; then its steps, or its silence, say the truth."""
    (tmp_path / "z.log").write_text("chatter\n")
    some = lab(12.0)
    shown = some.deadline
    some.turn(5.0)
    some.write("" if steps else "chatter\n")
    hidden = some.paths[0].rename(tmp_path.parent / f"{tmp_path.name}.away")
    some.restart(10.0)
    some.turn(0.5)
    assert some.hangs() == []
    assert some.deadline > shown
    hidden.rename(some.paths[0])
    some.turn(5.0)
    assert bool(some.hangs()) is not steps


def test_a_file_that_was_deleted_meanwhile_is_not_waited_for(lab: Callable[..., Lab], tmp_path: Path) -> None:
    """Its end is believed after some seconds; until then the time is no silence."""
    (tmp_path / "z.log").write_text("chatter\n")
    some = lab(60.0)
    shown = some.deadline
    (tmp_path / "z.log").unlink()
    for _ in range(3):
        some.restart(4.0)
        some.turn(0.5)
        assert some.deadline > shown
        some.turn(10.0)
        assert some.deadline == shown


def test_what_is_silent_is_saved_from_time_to_time(lab: Callable[..., Lab]) -> None:
    """And what has ended is not."""
    some = lab(7200.0)
    some.turn(5.0)
    before = some.disk.saves
    some.turn(1000.0)
    assert some.disk.saves - before in (8, 9)
    some.write("[after training is done] datetime: 2024-01-01 00:00:00\n")
    some.run.state.live = False
    some.turn(30.0)  # a file that was silent for long is polled every ten seconds
    before = some.disk.saves
    some.turn(1000.0)
    assert some.disk.saves == before


@pytest.mark.parametrize(
    ("zone", "behind", "silent", "reported"),
    [
        (0, 0.0, 420.0, True),
        (-8, 0.0, 420.0, True),  # a stamp names no zone
        (2, 30.0, 62.0, True),  # the file server's clock is behind
        (2, 30.0, 50.0, False),  # the same within the budget: by the file's time it would be over
        (0, 0.0, 660.0, False),  # a cluster may have been down for as long: it waits anew
        (None, 0.0, 420.0, False),  # no stamps
    ],
)
def test_a_dated_log_is_judged_by_its_stamps(
    lab: Callable[..., Lab], zone: int | None, behind: float, silent: float, reported: bool
) -> None:
    """It trained on while the daemon was away, and stopped: told as the daemon is back, since the last step."""
    some = lab(60.0)

    def write() -> None:
        some.written += 1
        moment = datetime.fromtimestamp(some.clock.wall() + 3600 * (zone or 0), UTC)
        stamp = "" if zone is None else f" [{moment:%Y-%m-%d %H:%M:%S}]"
        some.write(stamp + line(some.written))
        os.utime(some.paths[0], (some.clock.wall() - behind, some.clock.wall() - behind))

    for _ in range(5):
        some.turn(1.0)
        write()
    some.turn(5.0)
    some.reader.close()
    for _ in range(120):
        some.clock.advance(1.0)
        write()
    last = some.clock.wall()
    some.clock.advance(silent)
    some.start()
    some.turn(4.0)
    assert bool(some.hangs()) is reported
    if reported:
        assert some.reported[-1][1].since == pytest.approx(last, abs=2.0)
    some.turn(64.0)
    assert len(some.hangs()) == 1
