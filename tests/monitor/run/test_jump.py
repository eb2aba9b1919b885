"""A clock that is set moves every instant along, and no count, duration or text."""

from __future__ import annotations

from monitor.clock import ManualClock
from monitor.config import load
from monitor.core import Core
from monitor.follow.messages import CaughtUp, Data, Opened
from monitor.incidents import Incident, IncidentBook
from monitor.run.jump import shift
from monitor.run.state import AttemptEnd, FailureRecord, RunState


def test_every_instant_and_nothing_else() -> None:
    """By name and type, in nested values too."""
    state = RunState("r", progress_at=100.0, phase_since=90.0, overhead_until=95.0, first_at=None, pure_seconds=2.0)
    state.failure = FailureRecord("unknown", "text", at=99.0, logged_at="2026-01-01 00:00:00")
    state.attempt.started_at = 80.0
    state.phase_history = [(90.0, "training")]
    state.memo = {"validations_since": 3, "save_logged_at": "x", "detector": {"since": 70.0, "level": 4.0}}
    state.checkpoints.last_at, state.checkpoints.save_seconds = 85.0, 5.0
    shift(state, 3600.0)
    assert (state.progress_at, state.phase_since, state.overhead_until) == (3700.0, 3690.0, 3695.0)
    assert (state.first_at, state.pure_seconds, state.attempt.started_at) == (None, 2.0, 3680.0)
    assert (state.failure.at, state.failure.logged_at) == (3699.0, "2026-01-01 00:00:00")
    assert state.phase_history == [(3690.0, "training")]
    assert state.memo == {"validations_since": 3, "save_logged_at": "x", "detector": {"since": 3670.0, "level": 4.0}}
    assert (state.checkpoints.last_at, state.checkpoints.save_seconds) == (3685.0, 5.0)
    ended = [AttemptEnd(1, "unknown", "", 5.0, None, 1, 1, None, planned=False)]
    shift(ended, 1.0)
    assert ended[0].at == 6.0
    book = IncidentBook({"hang": Incident("hang", "critical", 50.0, "s", None, "training", 60.0)}, pending={"x": 5.0})
    shift(book, 10.0)
    assert (book.open["hang"].since, book.open["hang"].notified_at, book.pending) == (60.0, 70.0, {"x": 15.0})


def line(number: int) -> bytes:
    """One iteration of a second."""
    return (
        f" iteration {number:8d}/{1000:8d} | consumed samples: {number * 8:12d} | elapsed time per iteration (ms): "
        f"1000.0 | learning rate: 1.500E-04 | global batch size: {8:5d} | lm loss: {3 - number / 1000:.6E} | "
        f"loss scale: 1.0 | grad norm: {number / 7:.3f} | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |\n"
    ).encode()


def test_no_hang_by_a_jump_and_none_missed_by_one() -> None:
    """An hour forward or back: a healthy run stays healthy, a silent one hangs when its time has come."""
    for jump in (3600.0, -3600.0, 7 * 86400.0):
        clock = ManualClock()
        core = Core(load("", ["runs=[{paths: [/x.log]}]", "detectors.hang.minimum=60s"]))
        core.handle(Opened("/x.log", "/x.log", None, 0, clock.wall(), resumed=False), clock.wall())
        core.handle(CaughtUp("/x.log", clock.wall()), clock.wall())
        offset = 0
        for number in range(1, 120):
            clock.advance(1.0)
            if number == 100:
                clock.set_wall(clock.wall() + jump)
                core.clock_jumped(jump)
            data = line(number)
            core.handle(Data("/x.log", offset, data, clock.wall(), clock.wall(), 0), clock.wall())
            offset += len(data)
            assert [one for one in core.tick(clock.wall()) if one.incident == "hang"] == []
        clock.set_wall(clock.wall() - jump)
        core.clock_jumped(-jump)
        for waited in range(1, 100):
            clock.advance(1.0)
            told = [one for one in core.tick(clock.wall()) if one.incident == "hang" and one.severity == "critical"]
            if told:
                assert 59 <= waited <= 62
                break
        else:
            raise AssertionError("the hang was missed")
