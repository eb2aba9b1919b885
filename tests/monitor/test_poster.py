"""All alerts to each Alertmanager: of a desk that follows a run, of one that stops, of an Alertmanager that is away."""

import threading
from typing import Any

import pytest
from msgspec.structs import replace

from megatron_monitor.alerts import Alerts
from megatron_monitor.config import Config, load
from megatron_monitor.core import Core
from megatron_monitor.dispatch import Dispatcher
from megatron_monitor.poster import Poster
from megatron_monitor.system.clock import SystemClock
from tests.monitor.notifiers.receiver import HANG, Receiver
from tests.programs import free_port, serving, wait

PLACE = "notifiers: [{{type: alertmanager, name: am, cluster: c, urls: [{}]}}]"
FIRING = replace(HANG, event="e")


def config(*urls: str) -> Config:
    """Alertmanagers at these addresses."""
    return load(PLACE.format(", ".join(urls)) + "\nruns: [{paths: [/l/*.log]}]")


def alerts() -> Alerts:
    """One that stands."""
    made = Alerts()
    made.take(FIRING)
    return made


def test_each_alertmanager_gets_all_and_none_waits_for_another() -> None:
    """One takes its time: the other has the alerts meanwhile. One that is away is counted, and is posted to again."""
    with serving(Receiver()) as slow, serving(Receiver()) as quick:
        slow.answers = [0]
        away = f"http://127.0.0.1:{free_port()}"
        poster = Poster(config(slow.url, quick.url, away).notifiers)
        poster.show(alerts().shown(HANG.time), HANG.time)
        wait(lambda: len(quick.received) == 1 and len(slow.received) == 1, 5.0, "the posts")
        path, _, (alert,) = quick.received[0]
        assert path == "/hook/api/v2/alerts"
        assert alert["labels"]["alertname"] == "MegatronIncident"
        wait(lambda: poster.ended()["am", "retried"] == 1, 5.0, "the one that is away")
        assert poster.failing() == {"am": 1}
        slow.released.set()
        poster.stop(5.0)
        assert poster.ended()["am", "failed"] == 0
        assert len(quick.received) == 1


def test_an_alertmanager_that_is_away_is_posted_to_again() -> None:
    """After five seconds, not after a minute."""
    with serving(Receiver()) as receiver:
        receiver.answers = [503, 200]
        dispatcher = desk_for(receiver.url)
        dispatcher.send(HANG.time)
        wait(lambda: bool(dispatcher.send(HANG.time + 1.0) or dispatcher.core.unposted["am"]), 5.0, "the refusal")
        dispatcher.send(HANG.time + 5.9)
        assert len(receiver.received) == 1
        dispatcher.send(HANG.time + 6.1)
        wait(lambda: len(receiver.received) == 2, 5.0, "the second post")
        dispatcher.finish(HANG.time + 7.0, 5.0)


def desk_for(*urls: str) -> Dispatcher:
    """At work, with an alert that stands."""
    settings = config(*urls)
    dispatcher = Dispatcher(Core(settings), settings, SystemClock(), threading.Event().set, lambda _message: {})
    dispatcher.start()
    dispatcher.core.alerts.take(FIRING)
    return dispatcher


def ends(receiver: Receiver) -> list[bool]:
    """Of each post, whether its alert had ended by then."""
    bodies: list[Any] = receiver.bodies
    return [alert["endsAt"] < "2023-11-15" for body in bodies for alert in body]


@pytest.mark.parametrize(("over", "expected"), [(True, [True]), (False, [False])])
def test_a_stop_ends_alerts_only_with_the_runs(over: bool, expected: list[bool]) -> None:
    """A daemon that ends with its job says so; one that is stopped leaves what stands for twelve hours."""
    with serving(Receiver()) as receiver:
        dispatcher = desk_for(receiver.url)
        dispatcher.stop_runs(HANG.time + 60.0, over=over)
        dispatcher.finish(HANG.time + 60.0, 5.0)
        assert ends(receiver) == expected


def test_a_run_that_is_followed_no_more_has_no_alert() -> None:
    """Its log was taken out of the configuration: the alert ends when all the others were read."""
    with serving(Receiver()) as receiver:
        dispatcher = desk_for(receiver.url)
        dispatcher.send(HANG.time + 1.0)
        wait(lambda: ends(receiver) == [False], 5.0, "the first post")
        dispatcher.all_is_read(HANG.time + 2.0)
        dispatcher.send(HANG.time + 2.0)
        wait(lambda: ends(receiver) == [False, True], 5.0, "the end")
        dispatcher.all_is_read(HANG.time + 3.0)
        dispatcher.finish(HANG.time + 3.0, 5.0)
        assert ends(receiver) == [False, True]


def test_an_alertmanager_is_sent_no_single_messages() -> None:
    """Nothing is owed to it."""
    dispatcher = desk_for("http://127.0.0.1:9")
    assert dispatcher.deliveries.receivers(FIRING) == []
    assert dispatcher.core.outbox.pending() == {}
