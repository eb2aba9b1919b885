"""The life of an incident: firing, worse, repeated, resolved, inhibited, unknown."""

from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.detectors.base import CLEAR, UNKNOWN, Finding
from megatron_monitor.incident_events import IncidentEvents
from megatron_monitor.incidents import IncidentBook, Transition, judge
from megatron_monitor.run.state import RunState

REPEAT = 3600.0


def step(book: IncidentBook, now: float, hang: Finding, **others: Finding) -> list[Transition]:
    """One tick."""
    return judge(book, RunState(name="run"), {"hang": hang, **others}, now, REPEAT, IncidentEvents())


def firing(severity: str = "critical", display_only: bool = False) -> Finding:
    """A verdict that something is wrong."""
    return Finding("firing", severity, "it hangs", display_only=display_only)  # type: ignore[arg-type]


def test_fires_once_and_resolves_once() -> None:
    """Many ticks of the same trouble are one firing and one resolved."""
    book = IncidentBook()
    reported = [*step(book, 1.0, firing()), *step(book, 2.0, firing()), *step(book, 3.0, CLEAR)]
    assert [item.status for item in reported] == ["firing", "resolved"]
    assert book.counts == {"hang": 1}
    assert not book.open


def test_late_is_quiet_and_hung_is_told() -> None:
    """The quiet warning that grows into a critical one is told when it does, and counts once."""
    book = IncidentBook()
    late = step(book, 1.0, firing("warning", display_only=True))
    assert [item.display_only for item in late] == [True]
    assert book.counts.get("hang", 0) == 0
    hung = step(book, 2.0, firing("critical"))
    assert [(item.severity, item.display_only) for item in hung] == [("critical", False)]
    assert book.counts == {"hang": 1}
    assert [item.display_only for item in step(book, 3.0, CLEAR)] == [False]


def test_repeats_after_the_interval() -> None:
    """An incident that goes on is told again, not every tick."""
    book = IncidentBook()
    reported = [len(step(book, now, firing())) for now in (0.0, 100.0, REPEAT, REPEAT + 1, 2 * REPEAT)]
    assert reported == [1, 0, 1, 0, 1]


def test_unknown_keeps_what_stood() -> None:
    """What cannot be observed neither resolves nor fires."""
    book = IncidentBook()
    step(book, 1.0, firing())
    assert step(book, 2.0, UNKNOWN) == []
    assert "hang" in book.open


def test_a_crash_supersedes_the_hang() -> None:
    """A hang that was told before the crash is resolved by it, so that no receiver keeps it."""
    book = IncidentBook()
    step(book, 1.0, firing())
    reported = step(book, 2.0, firing(), crash=firing())
    assert [(item.incident, item.status) for item in reported] == [("crash", "firing"), ("hang", "resolved")]
    assert reported[1].summary == "superseded by crash after 1 s"
    assert step(book, 3.0, firing(), crash=firing()) == []


def test_json_has_the_public_names() -> None:
    """The object that `replay --json` and the webhook carry."""
    (item,) = step(IncidentBook(), 0.0, firing())
    shown = item.to_json()
    assert shown["time"] == "1970-01-01T00:00:00+00:00"
    assert {"run", "incident", "status", "severity", "time", "phase", "summary", "evidence"} <= set(shown)


@given(st.lists(st.sampled_from(["clear", "late", "hung", "unknown"]), max_size=60))
def test_firing_and_resolved_alternate(verdicts: list[str]) -> None:
    """Whatever the verdicts, nothing is resolved that did not fire, and nothing fires twice without growing worse."""
    book = IncidentBook()
    answers = {
        "clear": CLEAR,
        "late": firing("warning", display_only=True),
        "hung": firing(),
        "unknown": UNKNOWN,
    }
    open_severity: str | None = None
    for tick, name in enumerate(verdicts):
        for item in step(book, float(tick), answers[name]):
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
