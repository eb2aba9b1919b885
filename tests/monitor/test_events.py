"""Which incidents are one event for people, and what an Alertmanager is shown of them."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

from megatron_monitor.alerts import Alerts
from megatron_monitor.incident_events import UNWATCHED, IncidentEvents
from megatron_monitor.incidents import Transition
from tests.monitor.notifiers.receiver import HANG, built
from tests.plain import decode, encode

AT = 1_700_000_000.0
"""2023-11-14, 22:13:20 UTC."""


@pytest.mark.parametrize(
    ("incidents", "grouped"),
    [
        # hang, cancel, restart, hang: the normal course of a night, each is a page
        ([("a", "critical", 0, 60), ("a", "critical", 190, 250)], [0, 1]),
        # a disk is full: the save fails, the crash comes; two minutes count from the last of them
        ([("a", severity, at, at) for severity, at in
          (("warning", 0), ("critical", 119), ("critical", 238), ("critical", 359))], [0, 0, 0, 1]),
        # a hang that stands for hours, and its crash by NCCL's time-out, which supersedes it
        ([("a", "critical", 0, 0), ("a", "critical", 7200, 7200, 0)], [0, 0]),
        # forty runs die within a minute of one another; a warning of another run is none of it, nor is a later crash
        ([*((f"run{number}", "critical", 0, number * 5) for number in range(40)), ("slow", "warning", 0, 200),
          ("late", "critical", 0, 39 * 5 + 61)], [0] * 40 + [1, 2]),
        # runs that go on crashing, one a minute, are told of again after five minutes
        ([(f"run{number}", "critical", 0, number * 50) for number in range(20)], [0] * 7 + [1] * 7 + [2] * 6),
        # only what pages is joined across runs
        ([("a", "warning", 0, 0), ("b", "critical", 0, 0)], [0, 1]),
        # what began in one minute and became incidents an hour apart are two
        ([("a", "warning", 0, 0), ("a", "warning", 0, 3600)], [0, 1]),
        # information joins no event, and begins none
        ([("a", "info", 0, 0), ("a", "warning", 0, 0)], [None, 0]),
    ],
)  # fmt: skip
def test_which_incidents_are_one_event(incidents: list[tuple[Any, ...]], grouped: list[int | None]) -> None:
    """(run, severity, seconds at which the trouble began, at which it became an incident, which one it supersedes)."""
    events, found = IncidentEvents(), list[str]()
    for run, severity, since, at, *superseded in incidents:
        found.append(events.of(run, severity, AT + since, AT + at, [found[place] for place in superseded]))
    numbers = {event: number for number, event in enumerate(events.known)}
    assert [numbers.get(event) for event in found] == grouped


def test_the_id_is_the_same_in_two_monitors_and_after_a_lost_state() -> None:
    """It is made of the run and of when the trouble began, not of when it was seen."""
    first, second = (IncidentEvents().of("a", "critical", AT + late, AT + 60 + late) for late in (0, 5))
    assert first == second == "a 2023-11-14T22:13Z"


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


ENDS = replace(FIRES, status="resolved", time=AT + 100)


@pytest.mark.parametrize(
    ("messages", "at", "alerts"),
    [
        ([FIRES, replace(FIRES, time=AT + 60)], 60, [("critical", 0, None)]),  # a reminder
        # a silence that outlasts it hides no end: it is shown for four hours
        ([FIRES, ENDS], 4 * 3600, [("critical", 0, 100)]),
        ([FIRES, ENDS], 5 * 3600, []),
        # it ends with the line of the crash, which is reported four seconds later: their event goes on
        ([FIRES, ENDS], 109, [("critical", 0, None)]),
        ([FIRES, ENDS], 110, [("critical", 0, 100)]),
        # severity is a label: what becomes worse is another alert of the same event
        ([replace(FIRES, severity="warning"), replace(FIRES, time=AT + 10)], 10,
         [("warning", 0, 10), ("critical", 10, None)]),
        # of one identity an Alertmanager knows one alert
        ([FIRES, ENDS, replace(FIRES, time=AT + 120)], 130, [("critical", 120, None)]),
        # what is only shown, or only information, is none
        ([replace(FIRES, display_only=True), replace(FIRES, event="")], 0, []),
    ],
)  # fmt: skip
def test_alerts(messages: list[Transition], at: float, alerts: list[tuple[str, float, float | None]]) -> None:
    """(severity, begin, end) of each, in a monitor that is started again after each message."""
    book = Alerts()
    for message in messages:
        book.take(message)
        book = decode(encode(book), Alerts)
    assert book.next_end(AT + 109) == (AT + 110 if ENDS in messages else math.inf)
    assert [
        (one.message.severity, one.starts_at - AT, None if one.ends_at is None else one.ends_at - AT)
        for one in book.shown(AT + at)
    ] == alerts


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
