"""Which incidents are one event for people, and what an Alertmanager is shown of them."""

import math

import pytest
from msgspec.structs import replace

from megatron_monitor.alerts import Alerts
from megatron_monitor.incident_events import UNWATCHED, IncidentEvents
from megatron_monitor.incidents import Transition
from tests.monitor.notifiers.receiver import HANG, built
from tests.plain import decode, encode

AT = 1_700_000_000.0
"""2023-11-14, 22:13:20 UTC."""


def test_what_is_only_information_is_no_event() -> None:
    """It joins none, and begins none."""
    events = IncidentEvents()
    assert events.of("a", "info", AT, AT) == ""
    assert events.known == {}


def test_a_second_hang_is_another_event() -> None:
    """Hang, cancel, restart, hang: the normal course of a night. Each is a page."""
    events = IncidentEvents()
    first = events.of("a", "critical", AT, AT + 60)
    assert events.of("a", "critical", AT + 190, AT + 250) != first
    assert first == "a 2023-11-14T22:13Z"


def test_what_follows_within_two_minutes_is_the_same() -> None:
    """A disk is full: the save fails, the crash comes; a minute later than that it is another matter."""
    events = IncidentEvents()
    save = events.of("a", "warning", AT, AT)
    assert events.of("a", "critical", AT + 119, AT + 119) == save
    assert events.of("a", "critical", AT + 238, AT + 238) == save  # counted from the last of them
    assert events.of("a", "critical", AT + 359, AT + 359) != save


def test_what_supersedes_an_incident_is_its_event_however_late() -> None:
    """A hang that stands for hours, and its crash by NCCL's time-out."""
    events = IncidentEvents()
    hang = events.of("a", "critical", AT, AT)
    assert events.of("a", "critical", AT + 7200, AT + 7200, superseded=[hang]) == hang


def test_an_outage_of_the_cluster_is_one_event() -> None:
    """Forty runs die within a minute of one another; a warning of another run is none of it, nor is a later crash."""
    events = IncidentEvents()
    first = events.of("run0", "critical", AT, AT)
    assert {events.of(f"run{number}", "critical", AT, AT + number * 5) for number in range(1, 40)} == {first}
    assert events.of("slow", "warning", AT, AT + 200) != first
    assert events.of("late", "critical", AT, AT + 39 * 5 + 61) != first


def test_an_outage_does_not_grow_for_ever() -> None:
    """Runs that go on crashing, one a minute, are told of again after five minutes."""
    events = IncidentEvents()
    assert len({events.of(f"run{number}", "critical", AT, AT + number * 50) for number in range(20)}) == 3


def test_a_warning_does_not_draw_another_run_in() -> None:
    """Only what pages is joined across runs."""
    events = IncidentEvents()
    assert events.of("a", "warning", AT, AT) != events.of("b", "critical", AT, AT)


def test_the_id_is_the_same_in_two_monitors_and_after_a_lost_state() -> None:
    """It is made of the run and of when the trouble began, not of when it was seen."""
    assert IncidentEvents().of("a", "critical", AT, AT + 60) == IncidentEvents().of("a", "critical", AT + 5, AT + 400)


def test_two_events_never_share_an_id() -> None:
    """What began in one minute and became incidents an hour apart are two."""
    events = IncidentEvents()
    assert events.of("a", "warning", AT, AT) != events.of("a", "warning", AT, AT + 3600)


@pytest.mark.parametrize(
    ("deadline", "later", "missed"),
    [
        (AT - 400, 10.0, True),  # the rule of a missed deadline has paged by now: this is no second page
        (AT - 100, 10.0, False),  # it has not
        (AT - 700, 10.0, False),  # the monitor was still there, and told of it
        (AT - 400, 200.0, False),  # found long after: another hang
    ],
)
def test_a_hang_of_while_nobody_watched(deadline: float, later: float, missed: bool) -> None:
    """It is of the event of the alert that the missed deadline has raised."""
    events = IncidentEvents(away_since=AT - 600, back_at=AT)
    found = events.of("a", "critical", deadline - 60, AT + later, deadline=deadline)
    assert (found == UNWATCHED) is missed


def test_events_are_saved() -> None:
    """A monitor that is started again joins what it would have joined."""
    events = IncidentEvents()
    first = events.of("a", "critical", AT, AT)
    assert decode(encode(events), IncidentEvents).of("a", "critical", AT, AT + 60) == first


# --- alerts -----------------------------------------------------------------------------------------------------------

FIRES = replace(HANG, event="e", time=AT)


def shown(alerts: Alerts, at: float) -> list[tuple[str, str, float | None]]:
    """Incident, severity and end of each."""
    return [(one.message.incident, one.message.severity, one.ends_at) for one in alerts.shown(at)]


def test_an_alert_stands_until_it_ends_and_its_end_is_shown_for_four_hours() -> None:
    """A silence that outlasts it hides no end."""
    alerts = Alerts()
    alerts.take(FIRES)
    alerts.take(replace(FIRES, time=AT + 60))  # a reminder
    assert [one.starts_at for one in alerts.shown(AT + 60)] == [AT]
    alerts.take(replace(FIRES, status="resolved", time=AT + 100))
    assert shown(alerts, AT + 4 * 3600) == [("hang", "critical", AT + 100)]
    assert shown(alerts, AT + 5 * 3600) == []


def test_what_becomes_worse_ends_the_milder_alert() -> None:
    """Severity is a label: it is another alert of the same event."""
    alerts = Alerts()
    alerts.take(replace(FIRES, severity="warning"))
    alerts.take(replace(FIRES, time=AT + 10))
    assert shown(alerts, AT + 10) == [("hang", "warning", AT + 10), ("hang", "critical", None)]


def test_an_end_is_not_shown_of_what_stands_again() -> None:
    """Of one identity an Alertmanager knows one alert."""
    alerts = Alerts()
    for status, at in (("firing", 0.0), ("resolved", 10.0), ("firing", 20.0)):
        alerts.take(replace(FIRES, status=status, time=AT + at))
    assert shown(alerts, AT + 30) == [("hang", "critical", None)]


def test_what_is_only_shown_or_only_information_is_no_alert() -> None:
    """Nobody is to hear of it."""
    alerts = Alerts()
    alerts.take(replace(FIRES, display_only=True))
    alerts.take(replace(FIRES, event=""))
    assert shown(alerts, AT) == []


def test_alerts_are_saved() -> None:
    """A monitor that is started again shows what stood, so that it ends."""
    alerts = Alerts()
    alerts.take(FIRES)
    alerts = decode(encode(alerts), Alerts)
    alerts.take(replace(FIRES, status="resolved", time=AT + 100))
    assert shown(alerts, AT + 110) == [("hang", "critical", AT + 100)]


def test_an_end_waits_for_what_follows_from_it() -> None:
    """A hang ends with the line of the crash, which is reported four seconds later: their event goes on."""
    alerts = Alerts()
    alerts.take(FIRES)
    alerts.take(replace(FIRES, status="resolved", time=AT + 100))
    assert (shown(alerts, AT + 109), alerts.next_end(AT + 109)) == ([("hang", "critical", None)], AT + 110)
    assert (shown(alerts, AT + 110), alerts.next_end(AT + 110)) == ([("hang", "critical", AT + 100)], math.inf)


def content(*messages: Transition) -> list[dict[str, dict[str, str]]]:
    """What is posted of them."""
    notifier = built(
        "type: alertmanager, urls: ['http://127.0.0.1:9/'], cluster: hyp, dashboard_url: 'https://g.example/d/run'"
    )
    alerts = Alerts()
    for message in messages:
        alerts.take(message)
    return notifier.content(alerts.shown(AT), AT)  # type: ignore[attr-defined, no-any-return]


def test_labels_are_an_identity_and_all_else_is_an_annotation() -> None:
    """An alert that stands is valid for twelve hours from when it was posted."""
    (one,) = content(replace(FIRES, links={"page": "https://m.example/runs/x", "runbook": "https://r.example#hang"}))
    assert one["labels"] == {
        "alertname": "MegatronIncident", "cluster": "hyp", "run": "tr11-176B", "incident": "hang",
        "severity": "critical", "event": "e",
    }  # fmt: skip
    assert (one["startsAt"], one["endsAt"]) == ("2023-11-14T22:13:20.000+00:00", "2023-11-15T10:13:20.000+00:00")
    texts = one["annotations"]
    assert texts["summary"] == texts["headline"] == "[critical] tr11-176B: hang"
    assert texts["runbook_url"] == "https://r.example#hang"
    assert texts["dashboard_url"] == "https://g.example/d/run?var-cluster=hyp&var-run=tr11-176B"


def test_the_headline_is_that_of_the_event() -> None:
    """Of its worst alert; of several runs, how many they are."""
    one = content(replace(FIRES, incident="checkpoint_failed", severity="warning"), FIRES)
    assert {alert["annotations"]["headline"] for alert in one} == {"[critical] tr11-176B: hang"}
    runs = content(*(replace(FIRES, run=f"run{number}", incident="crash") for number in range(5)))
    assert {alert["annotations"]["headline"] for alert in runs} == {
        "[critical] 5 runs: crash (run0, run1, run2 and 2 more)"
    }
