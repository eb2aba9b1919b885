"""A message is delivered or still owed: receivers that are down, slow or wrong, by the clock, over crashes."""

from collections import Counter
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.core import outbox as rules
from megatron_monitor.core.outbox import DeliveryResult, Outbox, PendingNotification, Result
from megatron_monitor.core.saved import Saved
from megatron_monitor.detectors.base import Severity
from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers.message import message_id
from megatron_monitor.snapshot import MonitorCounts
from tests.conftest import examples
from tests.monitor.core.following import Following, arguments, step
from tests.plain import decode, encode

DAY = 86400.0
AT = 1_700_000_000.0  # Unix seconds at the core's instant 0


def message(
    run: str, status: Literal["firing", "resolved"] = "firing", now: float = 0.0, kind: str = "hang",
    severity: Severity = "critical",
) -> Transition:  # fmt: skip
    """A transition at an instant."""
    text, place = f"{status} at {now:g}", (0, None, int(now * 1000))
    return Transition(kind, severity, text, run=run, status=status, time=AT + now, occurrence=place)


class World:
    """An outbox and a receiver on one clock. `answer` gives what the receiver does with a message."""

    def __init__(self, answer: Result = "sent") -> None:
        self.counts = MonitorCounts()
        self.outbox = Outbox(self.counts)
        self.outbox.receivers(["chat"])
        self.answer: Result = answer
        self.received: list[Transition] = []
        self.asked = 0
        self.now = 0.0
        self.on_disk = self.saved()

    def enqueue(self, *messages: Transition) -> None:
        """They are owed and, as in the daemon, saved before they are sent."""
        for one in messages:
            self.outbox.enqueue(one, ["chat"], self.now)
        self.save()

    def saved(self) -> bytes:
        """What the state file would hold."""
        return encode(Saved(pending=self.outbox.save()))

    def save(self) -> None:
        """The state is written."""
        self.on_disk, self.outbox.saved = self.saved(), self.outbox.last

    def crash(self) -> None:
        """Kill -9 and a new start."""
        self.outbox = Outbox(MonitorCounts())
        self.outbox.restore(decode(self.on_disk, Saved).pending)
        self.outbox.receivers(["chat"])

    def step(self, seconds: float = 0.0) -> None:
        """Time passes; the receiver is asked once, if it is time."""
        self.now += seconds
        tried = []
        for pending in self.outbox.batch("chat", self.now):
            away = any(one.result == "later" for one in tried)
            tried.append(DeliveryResult(pending.number, "untried" if away else self.answer))
            self.asked += not away
            if tried[-1].result == "sent":
                self.received.append(pending.message)
        self.outbox.settle("chat", tried, self.now)

    def until(self, instant: float) -> None:
        """A look every five seconds."""
        while self.now < instant:
            self.step(5.0)

    def reported(self) -> list[tuple[str, str]]:
        """(run, status) as received."""
        return [(one.run, one.status) for one in self.received]


def test_a_receiver_that_is_down_for_a_day() -> None:
    """It is asked once a minute, and gets everything once when it is back, in order, also after a crash."""
    world = World("later")
    world.enqueue(message("long", now=0.0))
    for hour in range(4, 24, 4):  # the repeat interval
        world.until(hour * 3600.0)
        world.enqueue(message("long", now=world.now))
    world.enqueue(message("late", now=world.now, kind="crash"))
    world.until(DAY)
    assert world.asked < DAY / rules._LONGEST + 20  # a try a minute, not a storm of them
    world.crash()
    world.answer = "sent"
    world.until(DAY + 60.0)
    assert world.reported() == [("long", "firing")] * 6 + [("late", "firing")]
    world.until(2 * DAY)
    assert len(world.received) == 7


def test_250_runs_hang_while_the_receiver_restarts() -> None:
    """25 seconds: every message as it was, in order, once; and their ends."""
    world = World("later")
    world.enqueue(*(message(f"r{number}", now=0.0) for number in range(250)))
    world.until(25.0)
    world.enqueue(*(message(f"r{number}", "resolved", 25.0) for number in range(10)))
    world.answer = "sent"
    world.until(120.0)
    expected = [(f"r{number}", "firing") for number in range(250)] + [
        (f"r{number}", "resolved") for number in range(10)
    ]
    assert world.reported() == expected


def test_too_much_to_keep_drops_nothing_that_fires() -> None:
    """A receiver that is down, 500 runs that hang, half of them thrice: what holds now is told of each, once."""
    world = World("later")
    for _ in range(3):
        world.enqueue(*(message(f"r{number}", now=world.now) for number in range(500)))
        world.enqueue(*(message(f"r{number}", "resolved", world.now) for number in range(250)))
        world.step(1.0)
    world.until(30.0)
    assert world.outbox.pending() == {"chat": 500}
    assert world.counts.values["megatron_monitor_notifications_total"]["chat", "suppressed"] == 3 * 750 - 500
    world.answer = "sent"
    world.until(300.0)
    assert Counter(world.reported()) == {
        (f"r{number}", "resolved" if number < 250 else "firing"): 1 for number in range(500)
    }


def test_a_receiver_that_is_configured_no_more_is_owed_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is said, and counted."""
    world = World("later")
    world.enqueue(message("a", now=0.0))
    world.outbox.receivers(["other"])
    assert world.outbox.pending() == {"other": 0}
    assert world.counts.values["megatron_monitor_notifications_total"]["chat", "dropped"] == 1
    assert "chat is no longer configured: 1 messages dropped" in caplog.text


_ACTS = st.one_of(
    st.tuples(st.just("turn"), st.integers(0, 2)),  # a run's incident begins or ends
    st.tuples(st.just("answer"), st.sampled_from(["sent", "later", "refused"])),
    st.tuples(st.just("pass"), st.sampled_from([1.0, 30.0, 700.0, 4000.0])),
    st.tuples(st.just("crash"), st.none()),
)


@examples(100)
@given(st.lists(_ACTS, max_size=40))
def test_nothing_is_lost_whatever_happens(acts: list[tuple[str, object]]) -> None:
    """Every beginning and every end is told, in order, and what comes twice after a crash carries the same id."""
    world = World()
    pending: list[Transition] = []
    crashes = 0
    for what, value in acts:
        if what == "turn":
            run = f"r{value}"
            fires = sum(one.run == run for one in pending) % 2 == 0
            at = world.now + len(pending) / 2  # no two alike
            pending.append(message(run, "firing" if fires else "resolved", at))
            world.enqueue(pending[-1])
        elif what == "answer":
            world.answer = value  # type: ignore[assignment]
        elif what == "pass":
            world.step(float(value))  # type: ignore[arg-type]
        else:
            crashes += 1
            world.crash()
    world.answer = "sent"
    for _ in range(40):
        world.step(100.0)
    assert world.outbox.pending() == {"chat": 0}
    ids = [message_id(one) for one in world.received]
    assert set(ids) == {message_id(one) for one in pending}
    assert crashes or len(ids) == len(pending)
    for run in {one.run for one in pending}:
        first_told = dict.fromkeys(message_id(one) for one in world.received if one.run == run)
        assert list(first_told) == [message_id(one) for one in pending if one.run == run]


# --- the limits -------------------------------------------------------------------------------------------------------


def outbox(*messages: Transition) -> Outbox:
    """One that owes these to a chat, and has saved that."""
    made = Outbox(MonitorCounts())
    made.receivers(["chat"])
    for one in messages:
        made.enqueue(one, ["chat"], 0.0)
    made.saved = made.last
    return made


def handed(of: Outbox, now: float, *, last: bool = False) -> list[PendingNotification]:
    """What the receiver would be asked to take at an instant; it is given back untried."""
    chosen = of.batch("chat", now, last=last)
    of.settle("chat", [DeliveryResult(one.number, "untried") for one in chosen], now)
    return chosen


def answer(of: Outbox, now: float, result: Result) -> int:
    """The receiver says the same to all that it is asked to take: how many."""
    chosen = of.batch("chat", now)
    of.settle("chat", [DeliveryResult(one.number, result) for one in chosen], now)
    return len(chosen)


@pytest.mark.parametrize(
    ("result", "pauses"),
    [
        ("later", (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0)),
        ("refused", (300.0, 600.0, 1200.0, 2400.0, 3600.0, 3600.0)),
    ],
)
def test_pauses_double_up_to_a_limit(result: Result, pauses: tuple[float, ...]) -> None:
    """Of a receiver that is away from a second to a minute; of a message that is refused from five minutes to an hour;
    from the first one on again after an answer.
    """
    box, now = outbox(message("a")), 0.0
    for pause in pauses:
        assert answer(box, now, result) == 1
        assert handed(box, now + pause - 0.001) == []
        assert len(handed(box, now + pause)) == 1
        now += pause
    answer(box, now, "sent")
    box.enqueue(message("b"), ["chat"], now)
    box.saved = box.last
    assert answer(box, now, result) == 1
    assert len(handed(box, now + pauses[0])) == 1


def test_a_batch_is_reported_before_the_next_and_has_fifty_messages() -> None:
    """At the end neither a pause nor that limit is kept."""
    box = outbox(*(message(f"r{number}") for number in range(60)))
    first = box.batch("chat", 0.0)
    assert len(first) == 50
    box.settle("chat", [DeliveryResult(one.number, "sent") for one in first[:49]], 0.0)
    assert box.batch("chat", 0.0) == []
    box.settle("chat", [DeliveryResult(first[49].number, "later")], 0.0)
    assert handed(box, 0.5) == []
    assert len(handed(box, 0.5, last=True)) == 11


@pytest.mark.parametrize(("seconds", "pending"), [(86399.0, 1), (86400.0, 0)])
def test_a_message_has_failed_after_a_day_of_refusals(seconds: float, pending: int) -> None:
    """Counted from the first one, and over a restart."""
    box = outbox(message("a"))
    answer(box, 50_000.0, "refused")
    again = Outbox(MonitorCounts())
    again.restore(box.save())
    assert answer(again, 50_000.0 + seconds, "refused") == 1
    assert again.pending() == {"chat": pending}


def test_what_stands_behind_a_refused_message_goes_first_unless_it_is_its_incidents() -> None:
    """The end of an incident never overtakes its beginning; another kind of the same run, and another run, do."""
    box = outbox(message("a"), message("a", "resolved"), message("a", kind="crash"), message("b"))
    box.settle("chat", [DeliveryResult(1, "refused"), *(DeliveryResult(one, "untried") for one in (2, 3, 4))], 0.0)
    assert [(one.message.run, one.message.incident) for one in handed(box, 0.0)] == [("a", "crash"), ("b", "hang")]


def test_a_message_waits_two_seconds_to_be_saved() -> None:
    """One that is saved does not wait, and what stands behind one that is not does."""
    box = outbox(message("a"))
    box.enqueue(message("b"), ["chat"], 10.0)
    for now, runs in ((10.0, "a"), (11.999, "a"), (12.0, "ab")):
        assert "".join(one.message.run for one in handed(box, now)) == runs
    box.saved = box.last
    assert len(handed(box, 10.0)) == 2


def test_numbers_go_on_over_a_restart() -> None:
    """Those of every receiver; what was owed is saved, what comes is not."""
    box = outbox(message("a"), message("b"))
    box.enqueue(message("c"), ["pager"], 0.0)
    again = Outbox(MonitorCounts())
    again.restore(box.save())
    assert (again.last, again.saved) == (3, 3)
    again.enqueue(message("d"), ["chat"], 0.0)
    assert (again.last, again.saved) == (4, 3)


_CRASH = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nRuntimeError: CUDA error: misaligned\n'


def _told(end: str, age: float) -> list[str]:
    """The ids of the messages of a monitor that finds the log, with this end, `age` seconds after its last line."""
    lab = Following()
    lab.open("/logs/gpt.log", arguments() + "".join(step(number) for number in range(1, 40)) + end, age)
    lab.wait(600.0 - age)
    lab.write("/logs/gpt.log", arguments() + step(40))
    lab.wait(30)
    return [message_id(one) for one in lab.reported]


@pytest.mark.parametrize("age", [10.0, 45.0])
@pytest.mark.parametrize("end", ["", _CRASH])
def test_ids_are_equal_after_a_lost_state(end: str, age: float) -> None:
    """Two monitors without a state read one log at different times and judge it then; their messages have equal ids."""
    first, second = _told(end, 0.0), _told(end, age)
    assert len(set(first)) == len(first) >= len(second) >= 1
    assert second == first[-len(second) :]
