"""No false alarm: noise, and messages again and again.

Beside each near miss stands the true case that must still be told.
"""

import random
from collections.abc import Iterator

import pytest

from megatron_monitor.detectors.base import CLEAR, Finding
from megatron_monitor.incident_events import IncidentEvents
from megatron_monitor.incidents import IncidentBook, Transition, judge, over_at
from megatron_monitor.run.state import RunState
from tests.conftest import spread
from tests.lines import line
from tests.monitor.playing import play

HOUR = 3600.0


# --- noise ----------------------------------------------------------------------------------------------------------


def losses(noise: float, seed: int, rising_from: int | None = None, lines: int = 3000) -> Iterator[tuple[float, str]]:
    """A constant mean of 3, white noise; from some iteration on it rises by a tenth of a percent each line."""
    random_ = random.Random(seed)
    for iteration in range(1, lines + 1):
        rise = 1.001 ** max(0, iteration - rising_from) if rising_from else 1.0
        loss = max(0.05, random_.gauss(3 * rise, noise))
        yield 0.5 * iteration, line(iteration, 200_000, 0.5, loss, batch=128, norm=0.4)


@pytest.mark.parametrize("seed", spread(range(3), 3))
@pytest.mark.parametrize("noise", [0.05, 0.5, 0.9])
def test_constant_noise_is_no_divergence(noise: float, seed: int) -> None:
    """Case 15: the blocks of a few lines may happen to lie close together, their lines do not."""
    assert play(losses(noise, seed)).of("divergence") == []


@pytest.mark.parametrize(("noise", "within"), [(0.05, 150), (0.5, 500)])
def test_a_divergence_under_noise_is_told(noise: float, within: int) -> None:
    """A rise that goes on, found the later the noisier the loss is."""
    reported = play(losses(noise, 5, rising_from=1500, lines=1501 + within)).of("divergence")
    assert reported
    assert reported[0].iteration is not None
    assert 1500 < reported[0].iteration <= 1500 + within


# --- messages -------------------------------------------------------------------------------------------------------


class Run:
    """The verdicts of one run, tick by tick."""

    def __init__(self) -> None:
        self.book, self.state, self.events = IncidentBook(), RunState(name="run"), IncidentEvents()

    def at(self, now: float, verdicts: dict[str, Finding]) -> list[Transition]:
        """One tick; what is notified."""
        self.state.attempt.latest.iteration = int(now)
        out = judge(self.book, self.state, verdicts, now, 1e9, self.events)
        return [item for item in out if not item.display_only]

    def flap(self, kind: str, start: float, stop: float, severity: str = "warning", period: float = 300.0) -> list[str]:
        """Trouble that comes each `period` and goes half of it later; the statuses that are notified."""
        reported, now = [], start
        while now < stop:
            reported += self.at(now, firing(kind, severity))
            reported += self.at(now + period / 2, {kind: CLEAR})
            now += period
        return [item.status for item in reported]


def firing(kind: str, severity: str = "warning", summary: str = "it is slow") -> dict[str, Finding]:
    """Something is wrong."""
    return {kind: Finding("firing", severity, summary)}  # type: ignore[arg-type]


def test_a_level_that_flaps_is_one_incident() -> None:
    """Twelve times in an hour: it begins once, and ends when it has been over for five minutes."""
    run = Run()
    assert run.flap("slowdown", 0.0, HOUR) == ["firing"]
    assert run.book.counts == {"slowdown": 1}
    assert run.at(HOUR + 149, {"slowdown": CLEAR}) == []
    (end,) = run.at(HOUR + 150, {"slowdown": CLEAR})
    assert (end.status, end.evidence["lasted_seconds"]) == ("resolved", HOUR - 150)  # what it lingered is no trouble


def test_a_level_ends_at_once_with_its_attempt() -> None:
    """Nothing can bring it back."""
    for change in ("attempt", "phase"):
        run = Run()
        run.at(0.0, firing("slowdown"))
        if change == "attempt":
            run.state.attempt.number = 1
        else:
            run.state.attempt.phase = "crashed"
        assert [item.status for item in run.at(1.0, {"slowdown": CLEAR})] == ["resolved"]


def test_a_finished_run_leaves_nothing_open_but_what_has_just_begun() -> None:
    """A job that fails behind its training's end: an Alertmanager waits half a minute before it tells of it."""
    run = Run()
    run.at(0.0, firing("memory_pressure"))
    run.state.attempt.phase, run.state.attempt.phase_since = "finished", 1000.0
    assert len(run.at(1100.0, firing("memory_pressure") | firing("crash"))) == 1
    assert over_at(run.state) == run.book.ends_at(run.state) == 1300.0
    assert [item.incident for item in run.at(1300.0, {})] == ["memory_pressure"]
    assert run.book.ends_at(run.state) == 1400.0
    assert run.at(1399.0, {}) == []
    assert [item.incident for item in run.at(1400.0, {})] == ["crash"]


def test_a_healthy_run_with_a_quiet_incident_sends_nothing() -> None:
    """What is only shown is not counted, and is no event."""
    run = Run()
    for now in range(0, 7200, 100):
        assert run.at(now, {"hang": Finding("firing", "critical", display_only=True)}) == []
        assert run.at(now + 50, {"hang": CLEAR}) == []
    assert run.events.known == {}
    assert run.book.counts.get("hang", 0) == 0


@pytest.mark.parametrize(
    ("kind", "after", "end"),
    [
        ("hang", {"iteration": 101}, "iteration 101 came"),
        ("nan_loss", {"iteration": 150}, "at iteration 150"),
        ("slowdown", {"attempt": 1}, "a new attempt began"),
        ("hang", {"phase": "finished"}, "the run finished"),
    ],
)
def test_resolved_says_what_the_end_was_and_how_long_it_lasted(kind: str, after: dict[str, object], end: str) -> None:
    """For people in the summary, for programs in the evidence."""
    book, state = IncidentBook(), RunState(name="run")
    state.attempt.latest.iteration = 100
    judge(book, state, firing(kind, "critical", "it hangs"), 1000.0, 1e9, IncidentEvents())
    state.attempt.latest.iteration = after.get("iteration", 100)  # type: ignore[assignment]
    state.attempt.number = after.get("attempt", 0)  # type: ignore[assignment]
    state.attempt.phase = after.get("phase", "training")  # type: ignore[assignment]
    (reported,) = judge(book, state, {kind: CLEAR}, 1600.0, 1e9, IncidentEvents())
    assert reported.summary == f"resolved after 10 min ({end})"
    assert reported.evidence["lasted_seconds"] == 600
