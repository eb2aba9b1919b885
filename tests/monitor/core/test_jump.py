"""A clock that is set changes no silence, and what is shown is Unix time before and after."""

import json
from typing import Any

import pytest

from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.core.saved import Saved
from megatron_monitor.follow.content import Content
from megatron_monitor.follow.messages import CaughtUp, Data, Opened
from megatron_monitor.serve.past import history_json
from megatron_monitor.snapshot import Snapshot
from megatron_monitor.system.clock import SteadyClock
from tests.clock import ManualClock
from tests.lines import line as iteration_line
from tests.plain import decode, encode


def line(number: int) -> bytes:
    """One iteration of a second."""
    return iteration_line(number, seconds=1.0).encode()


class Lab:
    """A core, its clocks, and one log that is written a line a second."""

    def __init__(self, offset: float = 0.0) -> None:
        self.clock = ManualClock()
        self.steady = SteadyClock(self.clock, offset)
        self.core = Core(load("", ["runs=[{paths: [/x.log]}]", "detectors.hang.minimum=60s"]))
        self.core.set_clock(offset)
        self.written = self.at = 0
        wall = self.clock.wall()
        self.core.handle(Opened("/x.log", "/x.log", None, 0, wall, resumed=False, mount="/"), self.now)
        self.core.handle(CaughtUp("/x.log", wall), self.now)

    @property
    def now(self) -> float:
        """As the daemon asks for it."""
        if self.steady.look():
            self.core.set_clock(self.steady.offset)
        return self.steady.now()

    def second(self, behind: float = 0.0) -> list[Any]:
        """A line, to a file whose server's clock is so many seconds behind ours; the transitions."""
        self.clock.advance(1.0)
        self.written += 1
        data, wall = line(self.written), self.clock.wall()
        self.core.handle(Data("/x.log", self.at, data, wall - behind, wall, 0), self.now)
        self.at += len(data)
        return self.core.tick(self.now)

    def silence(self, seconds: int) -> list[tuple[int, Any]]:
        """(seconds waited, transition) of so many seconds without a line."""
        out = []
        for waited in range(1, seconds + 1):
            self.clock.advance(1.0)
            out += [(waited, one) for one in self.core.tick(self.now)]
        return out


def test_no_hang_by_a_jump_and_none_missed_by_one() -> None:
    """An hour forward or back: a healthy run stays healthy, a silent one hangs when its time has come."""
    for jump in (3600.0, -3600.0, 7 * 86400.0):
        lab = Lab()
        for number in range(1, 120):
            if number == 100:
                lab.clock.set_wall(lab.clock.wall() + jump)
            assert [one for one in lab.second() if one.incident == "hang"] == []
        lab.clock.set_wall(lab.clock.wall() - jump)
        waited = [waited for waited, one in lab.silence(100) if one.incident == "hang" and one.severity == "critical"]
        assert len(waited) == 1
        assert 59 <= waited[0] <= 62


def test_a_line_that_was_stamped_before_the_jump_is_not_dated_an_hour_back() -> None:
    """The reader thread read it, the wall clock was set, the core takes it."""
    for jump in (3600.0, -3600.0):
        lab = Lab()
        for _ in range(100):
            lab.second()
        stamped = lab.clock.wall()
        lab.clock.set_wall(stamped + jump)
        lab.core.handle(Data("/x.log", lab.at, line(101), stamped, stamped, 0), lab.now)
        assert [one for one in lab.core.tick(lab.now) if one.incident == "hang"] == []
        assert lab.core.snapshot(lab.now).runs[0].page["progress_at"] == lab.clock.wall()


def shown(snapshot: Snapshot) -> str:
    """Everything that is read of it."""
    (run,) = snapshot.runs
    return json.dumps(
        [snapshot.at, snapshot.incidents, run.page, history_json(run.history), run.samples, snapshot.monitor]
        + [one.to_json() for one in run.transitions],
        default=str,
    )


def test_what_is_shown_is_unix_time_whatever_the_offset() -> None:
    """Page, API, metrics, charts and notifications of two daemons, one of whose wall clocks was set long ago."""
    plain, moved = Lab(), Lab(offset=12_345.0)
    for _ in range(120):
        assert plain.second() == moved.second()
    first, second = plain.silence(100), moved.silence(100)
    assert first == second
    assert {one.incident for _, one in first} == {"hang"}
    assert shown(plain.core.snapshot(plain.now)) == shown(moved.core.snapshot(moved.now))
    wall = plain.clock.wall()
    assert moved.now == wall - 12_345.0
    for lab in (plain, moved):
        for _ in range(3):
            lab.second()
    assert shown(plain.core.snapshot(plain.now)) == shown(moved.core.snapshot(moved.now))


def test_a_jump_moves_what_is_shown_of_a_run_that_nothing_came_for() -> None:
    """Its last progress was so many seconds ago by the new clock too."""
    lab = Lab()
    for _ in range(10):
        lab.second()
    lab.core.snapshot(lab.now)
    lab.clock.set_wall(lab.clock.wall() + 3600.0)
    lab.core.tick(lab.now)
    (run,) = lab.core.snapshot(lab.now).runs
    assert run.page["progress_at"] == lab.clock.wall()
    assert run.samples["megatron_last_progress_timestamp_seconds"][0].value == lab.clock.wall()  # type: ignore[index]


def restarted(lab: Lab, offset: float, away: float = 0.0, unseen: float = 0.0) -> Lab:
    """Saved now, killed, and back after so many seconds: the file is open, nothing of it is read yet. `unseen`: by how
    much the clock was set meanwhile.
    """
    saved = decode(encode(lab.core.save(lab.now)), Saved)
    assert saved.wall_offset == offset
    lab.clock.advance(away)
    lab.clock.set_wall(lab.clock.wall() + unseen)
    again = Lab.__new__(Lab)
    again.clock = lab.clock
    again.core = Core(lab.core.config)
    position = again.core.restore(saved)["/x.log"]
    again.steady = SteadyClock(again.clock, saved.wall_offset, saved.contact_at)
    again.core.set_clock(again.steady.offset)
    again.written, again.at = lab.written, lab.at
    wall = again.clock.wall()
    opened = Opened("/x.log", "/x.log", Content(offset=position.start, proved=position), lab.at, wall, True, mount="/")
    again.core.handle(opened, again.now)
    return again


@pytest.mark.parametrize("unseen", [0.0, -3000.0, 3000.0])
def test_instants_go_on_over_a_restart(unseen: float) -> None:
    """What was saved with an offset is read with it. A clock that was set behind the last save (`unseen`) neither makes
    a hang nor hides one: nothing that was saved lies in the future.
    """
    lab = Lab()
    lab.second()
    lab.clock.set_wall(lab.clock.wall() - 50_000.0)
    for _ in range(100):
        lab.second()
    again = restarted(lab, -50_000.0, unseen=unseen)
    wall = again.clock.wall()
    again.core.handle(CaughtUp("/x.log", wall), again.now)
    assert again.core.tick(again.now) == []
    assert again.core.snapshot(again.now).runs[0].page["progress_at"] == wall - max(0.0, unseen)
    (waited,) = [waited for waited, one in again.silence(100) if one.severity == "critical"]
    assert 59 <= waited <= 62


@pytest.mark.parametrize("seen", [True, False])
def test_a_file_server_keeps_its_own_time(seen: bool) -> None:
    """Our clock was set and its was not: what was written while the daemon was away is not as old as the file says.
    The new clock was saved (`seen`), or the daemon believes that it was away for an hour, and is killed again.
    """
    lab = Lab()
    for _ in range(100):
        lab.second()
    if seen:
        lab.clock.set_wall(lab.clock.wall() + 3600.0)
        lab.second(behind=3600.0)
    else:
        lab = restarted(lab, 0.0, away=3.0, unseen=3600.0)
        lab.core.handle(CaughtUp("/x.log", lab.clock.wall()), lab.now)
        assert lab.core.tick(lab.now) == []
    lab = restarted(lab, 3600.0 if seen else 0.0)
    lab.second(behind=3600.0)
    lab.core.handle(CaughtUp("/x.log", lab.clock.wall()), lab.now)
    assert lab.core.tick(lab.now) == []
    lab.second(behind=3600.0)
    (waited,) = [waited for waited, one in lab.silence(100) if one.severity == "critical"]
    assert 59 <= waited <= 62


def test_nobody_heard_what_was_not_read_before_the_next_kill() -> None:
    """Killed and saved again and again before it has read on, by a file server whose clock is behind ours."""
    lab = Lab()
    for _ in range(100):
        lab.second(behind=3600.0)
    for _ in range(4):
        lab = restarted(lab, 0.0, away=2.0)
        lab.clock.advance(20.0)
    lab.second(behind=3600.0)
    lab.core.handle(CaughtUp("/x.log", lab.clock.wall()), lab.now)
    assert lab.core.tick(lab.now) == []
    (waited,) = [waited for waited, one in lab.silence(100) if one.severity == "critical"]
    assert 58 <= waited <= 62


def test_a_silence_that_ended_while_the_daemon_was_away_is_over() -> None:
    """Nobody knows when the step was written; it was after the last save."""
    lab = Lab()
    for _ in range(100):
        lab.second(behind=3600.0)
    assert [one.severity for _, one in lab.silence(50)] == ["warning"]
    lab = restarted(lab, 0.0, away=2.0)
    lab.second(behind=3600.0)
    lab.core.handle(CaughtUp("/x.log", lab.clock.wall()), lab.now)
    lab.core.tick(lab.now)
    (waited,) = [waited for waited, one in lab.silence(100) if one.severity == "critical"]
    assert 59 <= waited <= 62


def test_what_is_saved_while_nobody_listens_was_not_heard() -> None:
    """The daemon was stopped for 50 s, saved before it had read, was killed, and comes back 20 s later."""
    lab = Lab()
    for _ in range(100):
        lab.second()
    lab.clock.advance(50.0)
    lab.core.listen({"/": lab.now - 50.0}, lab.now)
    again = restarted(lab, 0.0, away=20.0)
    again.core.handle(CaughtUp("/x.log", again.clock.wall()), again.now)
    assert again.core.tick(again.now) == []
    (waited,) = [waited for waited, one in again.silence(100) if one.severity == "critical"]
    assert 59 <= waited <= 62


def test_a_small_step_is_no_jump_and_a_stopped_process_sees_none() -> None:
    """NTP's slewing moves both clocks alike; two readings with a pause between them do not agree once."""
    clock = ManualClock()
    steady = SteadyClock(clock)
    clock.set_wall(clock.wall() + 0.4)
    assert steady.look() == 0.0
    assert steady.offset == 0.0

    class Stopped(ManualClock):
        def monotonic(self) -> float:
            if self.pause:
                pause, self.pause = self.pause, 0.0
                self.advance(pause)
            return super().monotonic()

        pause = 0.0

    stopped = Stopped()
    steady = SteadyClock(stopped)
    stopped.pause = 25.0
    assert steady.look() == 0.0
    assert steady.offset == 0.0
