"""The threads that keep slow receivers from everyone else."""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.core.outbox import OUTCOMES, Outbox
from megatron_monitor.deliveries import Deliveries
from megatron_monitor.dispatch import Dispatcher
from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers import DeliveryError
from megatron_monitor.saving import Saving
from megatron_monitor.snapshot import MonitorCounts
from megatron_monitor.system.clock import SystemClock
from tests.clock import ManualClock
from tests.monitor.notifiers.receiver import HANG, PATIENCE


class Recorder:
    """A receiver in memory: keeps what it is given, fails as scripted, and can be held up."""

    def __init__(self, name: str, failures: list[Exception] | None = None) -> None:
        self.name = name
        self.failures = failures or []
        self.messages: list[Transition] = []
        self.entered = threading.Semaphore(0)
        self.free = threading.Event()
        self.free.set()

    def wants(self, message: Transition) -> bool:
        """Whatever is not quiet."""
        return not message.display_only

    def send(self, message: Transition) -> str:
        """Takes the message, or fails as often as scripted."""
        self.entered.release()
        assert self.free.wait(PATIENCE)
        if self.failures:
            raise self.failures.pop(0)
        self.messages.append(message)
        return "taken"


class Loop:
    """The daemon's loop, as far as it sends: an outbox, the threads, and a clock of its own."""

    def __init__(self, *recorders: Recorder) -> None:
        self.recorders = recorders
        self.called = threading.Semaphore(0)
        self.deliveries = Deliveries(recorders, SystemClock(), self.called.release)  # type: ignore[arg-type]
        self.counts = MonitorCounts()
        self.outbox = Outbox(self.counts)
        self.outbox.receivers(one.name for one in recorders)
        self.now = 0.0

    def enqueue(self, *messages: Transition) -> None:
        """As the daemon does, saved at once."""
        for message in messages:
            self.outbox.enqueue(message, self.deliveries.receivers(message), self.now)
        self.outbox.saved = self.outbox.last

    def turn(self, seconds: float = 0.0, reports: int | None = None) -> None:
        """Hand out what is due, and settle when so many notifiers have reported: all that were handed something."""
        self.now += seconds
        busy = sum(bool(many) for many in self.outbox.pending().values()) if reports is None else reports
        self.deliveries.turn(self.outbox, self.now)
        for _ in range(busy):
            assert self.called.acquire(timeout=PATIENCE)
        self.deliveries._settle(self.outbox, self.now)

    def finish(self, seconds: float = PATIENCE) -> dict[str, int]:
        """End; what is owed then."""
        self.deliveries.finish(self.outbox, self.now, seconds)
        return self.outbox.pending()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Loop]]:
    """Makes loops, and lets their receivers go at the end. No pause is shortened by chance."""
    monkeypatch.setattr(random, "random", lambda: 0.0)
    made: list[Loop] = []

    def make(*recorders: Recorder) -> Loop:
        made.append(Loop(*recorders))
        return made[-1]

    yield make
    for one in made:
        for recorder in one.recorders:
            recorder.free.set()
        one.finish()


def numbered(count: int, **changes: Any) -> list[Transition]:
    """Messages of as many runs."""
    return [replace(HANG, run=f"r{number}", **changes) for number in range(count)]


def counted(loop: Loop) -> dict[tuple[str, ...], float]:
    """The outcomes since the last call."""
    return loop.counts.values.pop("megatron_monitor_notifications_total")


def outcomes(loop: Loop, name: str = "a") -> dict[str, int]:
    """What is not zero."""
    return {what: int(count) for (notifier, what), count in counted(loop).items() if notifier == name and count}


Make = Callable[..., Loop]


def test_everything_is_sent_in_order(loop: Make) -> None:
    """Messages reach every notifier that wants them, in the order in which they were owed; a quiet one nobody."""
    a, b = Recorder("a"), Recorder("b")
    one, messages = loop(a, b), numbered(5)
    one.enqueue(*messages, replace(HANG, display_only=True))
    one.turn()
    assert a.messages == b.messages == messages
    assert counted(one) == {(name, outcome): 5 if outcome == "sent" else 0 for name in "ab" for outcome in OUTCOMES}


def test_retry_until_it_is_taken(loop: Make, caplog: pytest.LogCaptureFixture) -> None:
    """A failure that may pass is tried again after pauses that double, and logged once; what is behind waits, and comes
    after it.
    """
    a = Recorder("a", [DeliveryError("answered 500: no_team", permanent=False) for _ in range(4)])
    one = loop(a)
    one.enqueue(*numbered(3))
    one.turn()
    for pause in (1.0, 2.0, 4.0):
        one.turn(pause - 0.01, reports=0)
        one.turn(0.01)
    one.turn(8.0)
    assert a.messages == numbered(3)
    assert outcomes(one) == {"sent": 3, "retried": 4}
    assert caplog.text.count("outcome=retried answered 500: no_team; it stays pending") == 1


def test_a_refusal_and_a_bug_hold_nobody_up(loop: Make, caplog: pytest.LogCaptureFixture) -> None:
    """The next message goes out; what was refused is owed. A bug of a notifier is logged with its trace."""
    a = Recorder("a", [DeliveryError("gone", permanent=True), ZeroDivisionError("a bug")])
    one = loop(a)
    one.enqueue(*numbered(3))
    one.turn()
    assert a.messages == numbered(3)[2:]
    assert one.outbox.pending() == {"a": 2}
    assert "ZeroDivisionError" in caplog.text
    one.turn(300.0)
    assert a.messages == [numbered(3)[2], *numbered(2)]


def test_slow_notifier_delays_nobody(loop: Make) -> None:
    """While one receiver hangs, another gets its messages and the loop turns."""
    slow, quick = Recorder("slow"), Recorder("quick")
    slow.free.clear()
    one, messages = loop(slow, quick), numbered(3)
    for message in messages:
        one.enqueue(message)
        one.turn(reports=1)
    assert quick.messages == messages
    assert slow.messages == []
    slow.free.set()
    assert one.called.acquire(timeout=PATIENCE)
    one.turn()
    assert slow.messages == messages


def test_the_end_tries_each_once(loop: Make) -> None:
    """A pause is cut short by the end: what is taken is delivered, the rest stays owed."""
    later = DeliveryError("later", permanent=False)
    a, b = Recorder("a", [later]), Recorder("b", [later, later])
    one = loop(a, b)
    one.enqueue(*numbered(2))
    one.turn()
    assert one.finish() == {"a": 0, "b": 2}
    assert a.messages == numbered(2)
    assert len(b.failures) == 0


def test_the_end_leaves_a_hanging_receiver_behind(loop: Make) -> None:
    """It comes in its time though a receiver hangs, and what was handed to that one stays owed."""
    a = Recorder("a")
    a.free.clear()
    one = loop(a)
    one.enqueue(*numbered(3))
    one.turn(reports=0)
    assert a.entered.acquire(timeout=PATIENCE)
    assert one.finish(0.0) == {"a": 3}


@pytest.mark.parametrize("stuck", [False, True])
def test_what_a_killed_daemon_delivered_is_not_sent_again(
    loop: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: bool
) -> None:
    """The last state that was saved owes three messages to two receivers; one took two of them, the other none. While
    the disk takes no state, nothing is noted either: it would hold up the receiver's thread.
    """
    first, second, third = numbered(3)
    away = DeliveryError("later", permanent=False)
    takes, fails = Recorder("chat", [away]), Recorder("mail", [away] * 3)
    one = loop(takes, fails)
    clock = ManualClock()
    core = Core(load("", ["notifiers=[]"]))
    core.outbox = one.outbox
    saving = Saving(core, clock, lambda: None)
    saving.load(tmp_path)
    one.deliveries.accepted = saving.accepted
    one.enqueue(first, second, third)
    one.turn()
    core.changed = True
    saving.turn(0.0)
    saving.save_last(0.0)
    if stuck:
        core.changed, saving._unanswered = True, 1
        clock.advance(3.0)
        saving.turn(0.0)
    batch = one.outbox.batch
    monkeypatch.setattr(one.outbox, "batch", lambda *known, **more: batch(*known, **more)[:2])
    one.turn(1.0)
    saving.release()
    core = Core(load("", ["notifiers=[]"]))
    again = Saving(core, clock, lambda: None)
    saved = again.load(tmp_path)
    again.release()
    assert saved is not None
    assert [pending.message for pending in saved.pending["chat"]] == ([first, second, third] if stuck else [third])
    assert [pending.message for pending in saved.pending["mail"]] == [first, second, third]
    saved.pending["chat"] = []  # the last was taken, too
    core.restore(saved)
    assert core.outbox.pending() == {"chat": 0, "mail": 3}


def test_an_event_is_one_message_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the save, then the crash; a second one that is worse is told, the end once, when all has ended."""
    config = load("notifiers: [{type: webhook, name: chat, url: 'http://a'}, {type: webhook, name: hangs, "
                  "url: 'http://b', incidents: [hang]}]")  # fmt: skip
    core = Core(config)
    dispatcher = Dispatcher(core, config, ManualClock(), lambda: None, lambda _: {})
    dispatcher.start()
    known = core.judge.events.of("tr11-176B", "warning", 0.0, 0.0)
    save = replace(HANG, incident="checkpoint_failed", severity="warning", event=known)
    hang, again = replace(HANG, event=known), replace(save, incident="loss_spike")

    def pending(*said: Transition) -> tuple[int, int]:
        before = core.outbox.pending()
        monkeypatch.setattr(core, "tick", lambda _now: list(said))
        dispatcher.judge(0.0, act=False)
        after = core.outbox.pending()
        return after["chat"] - before.get("chat", 0), after["hangs"] - before.get("hangs", 0)

    assert pending(save) == (1, 0)
    assert pending(again) == (0, 0)
    assert pending(hang) == (1, 1)  # who wants hangs alone hears of it
    assert pending(replace(save, status="resolved"), replace(hang, status="resolved")) == (0, 1)
    assert pending(replace(again, status="resolved")) == (1, 0)
