"""The life of an incident: firing, worse, repeated, lingering, resolved, inhibited, unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.detectors.base import CLEAR, UNKNOWN, Finding
from megatron_monitor.incident_events import IncidentEvents
from megatron_monitor.incidents import IncidentBook, Transition, judge, over_at
from megatron_monitor.run.state import RunState

REPEAT = 3600.0
QUIET = Finding("firing", "warning", "it is late", display_only=True)
FIRING = Finding("firing", "critical", "it hangs")


class Run:
    """The verdicts of one run, tick by tick."""

    def __init__(self, repeat: float = REPEAT) -> None:
        self.book, self.state, self.events = IncidentBook(), RunState(name="run"), IncidentEvents()
        self.repeat = repeat

    def at(self, now: float, **verdicts: Finding) -> list[Transition]:
        """One tick; what comes of it."""
        return judge(self.book, self.state, verdicts, now, self.repeat, self.events)


def test_late_is_quiet_and_hung_is_told() -> None:
    """The quiet warning that grows into a critical one is told when it does, and counts once. Quiet, it is no event."""
    run = Run()
    for now in range(0, 7200, 100):
        assert [item.display_only for item in run.at(now, hang=QUIET)] == [True]
        assert [item.display_only for item in run.at(now + 50, hang=CLEAR)] == [True]
    run.at(8000.0, hang=QUIET)
    assert run.events.known == {}
    assert run.book.counts.get("hang", 0) == 0
    hung = run.at(8001.0, hang=FIRING)
    assert [(item.severity, item.display_only) for item in hung] == [("critical", False)]
    assert run.book.counts == {"hang": 1}
    assert [item.display_only for item in run.at(8002.0, hang=CLEAR)] == [False]
    assert not run.book.open


def test_repeats_after_the_interval() -> None:
    """An incident that goes on is told again, not every tick."""
    run = Run()
    reported = [len(run.at(now, hang=FIRING)) for now in (0.0, 100.0, REPEAT, REPEAT + 1, 2 * REPEAT)]
    assert reported == [1, 0, 1, 0, 1]


def test_unknown_keeps_what_stood() -> None:
    """What cannot be observed neither resolves nor fires."""
    run = Run()
    run.at(1.0, hang=FIRING)
    assert run.at(2.0, hang=UNKNOWN) == []
    assert "hang" in run.book.open


def test_a_crash_supersedes_the_hang() -> None:
    """A hang that was told before the crash is resolved by it, so that no receiver keeps it."""
    run = Run()
    run.at(1.0, hang=FIRING)
    reported = run.at(2.0, hang=FIRING, crash=FIRING)
    assert [(item.incident, item.status) for item in reported] == [("crash", "firing"), ("hang", "resolved")]
    assert reported[1].summary == "superseded by crash after 1 s"
    assert run.at(3.0, hang=FIRING, crash=FIRING) == []


def test_json_has_the_public_names() -> None:
    """The object that `replay --json` and the webhook carry."""
    (item,) = Run().at(0.0, hang=FIRING)
    shown = item.to_json()
    assert shown["time"] == "1970-01-01T00:00:00+00:00"
    assert {"run", "incident", "status", "severity", "time", "phase", "summary", "evidence"} <= set(shown)


@given(st.lists(st.sampled_from([CLEAR, QUIET, FIRING, UNKNOWN]), max_size=60))
def test_firing_and_resolved_alternate(verdicts: list[Finding]) -> None:
    """Whatever the verdicts, nothing is resolved that did not fire, and nothing fires twice without growing worse."""
    run = Run()
    open_severity: str | None = None
    for tick, verdict in enumerate(verdicts):
        for item in run.at(float(tick), hang=verdict):
            if item.status == "firing":
                assert open_severity is None or (open_severity, item.severity) == ("warning", "critical")
                open_severity = item.severity
            else:
                assert open_severity is not None
                open_severity = None


def test_a_crash_is_of_the_event_of_the_hang_that_its_line_has_ended() -> None:
    """For two minutes; and a second hang is not."""
    book = IncidentBook(over={"hang critical e1": 100.0, "slowdown info ": 100.0})
    assert book.ended_lately("crash", 104.0) == ["e1"]
    assert book.ended_lately("crash", 221.0) == []
    assert book.ended_lately("hang", 104.0) == []  # what is only information has no event


def test_a_level_that_flaps_is_one_incident() -> None:
    """Twelve times in an hour: it begins once, and ends when it has been over for five minutes."""
    run, reported = Run(repeat=1e9), list[Transition]()
    for now in range(0, 3600, 300):
        reported += [*run.at(now, slowdown=FIRING), *run.at(now + 150, slowdown=CLEAR)]
    assert [item.status for item in reported] == ["firing"]
    assert run.book.counts == {"slowdown": 1}
    assert run.at(3749, slowdown=CLEAR) == []
    (end,) = run.at(3750, slowdown=CLEAR)
    assert (end.status, end.evidence["lasted_seconds"]) == ("resolved", 3450)  # what it lingered is no trouble


def test_a_finished_run_leaves_nothing_open_but_what_has_just_begun() -> None:
    """A job that fails behind its training's end: an Alertmanager waits half a minute before it tells of it."""
    run = Run()
    run.at(0.0, memory_pressure=FIRING)
    run.state.attempt.phase, run.state.attempt.phase_since = "finished", 1000.0
    assert len(run.at(1100.0, memory_pressure=FIRING, crash=FIRING)) == 1
    assert over_at(run.state) == run.book.ends_at(run.state) == 1300.0
    assert [item.incident for item in run.at(1300.0)] == ["memory_pressure"]
    assert run.book.ends_at(run.state) == 1400.0
    assert run.at(1399.0) == []
    assert [item.incident for item in run.at(1400.0)] == ["crash"]


@pytest.mark.parametrize(
    ("kind", "change", "end"),
    [
        ("hang", {"latest.iteration": 101}, "iteration 101 came"),
        ("nan_loss", {"latest.iteration": 150}, "at iteration 150"),
        ("slowdown", {"number": 1}, "a new attempt began"),
        ("slowdown", {"phase": "crashed"}, "the run ended: unknown"),
        ("hang", {"phase": "finished"}, "the run finished"),
    ],
)
def test_resolved_says_what_the_end_was_and_how_long_it_lasted(kind: str, change: dict[str, object], end: str) -> None:
    """For people in the summary, for programs in the evidence; a level ends at once with its attempt."""
    run = Run()
    run.state.attempt.latest.iteration = 100
    run.at(1000.0, **{kind: FIRING})
    for key, value in change.items():
        setattr(run.state.attempt.latest if key.startswith("latest.") else run.state.attempt, key.split(".")[-1], value)
    (reported,) = run.at(1600.0, **{kind: CLEAR})
    assert reported.summary == f"resolved after 10 min ({end})"
    assert reported.evidence["lasted_seconds"] == 600
