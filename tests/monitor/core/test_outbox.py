"""A message is delivered or still owed: receivers that are down, slow or wrong, by the clock, over crashes."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.core import outbox as rules
from megatron_monitor.core.outbox import Outbox, Result, Tried
from megatron_monitor.core.saved import Saved
from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers.message import message_id
from tests.conftest import examples
from tests.monitor.core.test_outbox_limits import message
from tests.plain import decode, encode

DAY = 86400.0


class World:
    """An outbox and a receiver on one clock. `answer` gives what the receiver does with a message."""

    def __init__(self, answer: Result = "sent") -> None:
        self.outbox = Outbox()
        self.outbox.receivers(["chat"])
        self.answer: Result = answer
        self.received: list[Transition] = []
        self.asked = 0
        self.now = 0.0
        self.on_disk = self.saved()

    def owe(self, *messages: Transition) -> None:
        """They are owed and, as in the daemon, saved before they are sent."""
        for one in messages:
            self.outbox.owe(one, ["chat"], self.now)
        self.save()

    def saved(self) -> bytes:
        """What the state file would hold."""
        return encode(Saved(owed=self.outbox.save()))

    def save(self) -> None:
        """The state is written."""
        self.on_disk, self.outbox.saved = self.saved(), self.outbox.last

    def crash(self) -> None:
        """Kill -9 and a new start."""
        self.outbox = Outbox()
        self.outbox.restore(decode(self.on_disk, Saved).owed)
        self.outbox.receivers(["chat"])

    def step(self, seconds: float = 0.0) -> None:
        """Time passes; the receiver is asked once, if it is time."""
        self.now += seconds
        tried = []
        for owed in self.outbox.batch("chat", self.now):
            away = any(one.result == "later" for one in tried)
            tried.append(Tried(owed.number, "untried" if away else self.answer))
            self.asked += not away
            if tried[-1].result == "sent":
                self.received.append(owed.message)
        self.outbox.settle("chat", tried, self.now)

    def until(self, instant: float) -> None:
        """A look every five seconds."""
        while self.now < instant:
            self.step(5.0)

    def told(self) -> list[tuple[str, str]]:
        """(run, status) as received."""
        return [(one.run, one.status) for one in self.received]


def test_a_receiver_that_is_down_for_a_day() -> None:
    """It is asked once a minute, and gets everything once when it is back, in order, also after a crash."""
    world = World("later")
    world.owe(message("long", now=0.0))
    for hour in range(4, 24, 4):  # the repeat interval
        world.until(hour * 3600.0)
        world.owe(message("long", now=world.now))
    world.owe(message("late", now=world.now, kind="crash"))
    world.until(DAY)
    assert world.asked < DAY / rules._LONGEST + 20  # a try a minute, not a storm of them
    world.crash()
    world.answer = "sent"
    world.until(DAY + 60.0)
    assert world.told() == [("long", "firing")] * 6 + [("late", "firing")]
    world.until(2 * DAY)
    assert len(world.received) == 7


def test_250_runs_hang_while_the_receiver_restarts() -> None:
    """25 seconds: every message as it was, in order, once; and their ends."""
    world = World("later")
    world.owe(*(message(f"r{number}", now=0.0) for number in range(250)))
    world.until(25.0)
    world.owe(*(message(f"r{number}", "resolved", 25.0) for number in range(10)))
    world.answer = "sent"
    world.until(120.0)
    expected = [(f"r{number}", "firing") for number in range(250)] + [
        (f"r{number}", "resolved") for number in range(10)
    ]
    assert world.told() == expected


def test_too_much_to_keep_drops_nothing_that_fires() -> None:
    """A receiver that is down, 500 runs that hang, half of them thrice: what holds now is told of each, once."""
    world = World("later")
    for _ in range(3):
        world.owe(*(message(f"r{number}", now=world.now) for number in range(500)))
        world.owe(*(message(f"r{number}", "resolved", world.now) for number in range(250)))
        world.step(1.0)
    world.until(30.0)
    assert world.outbox.owed() == {"chat": 500}
    assert world.outbox.take_outcomes()["chat", "suppressed"] == 3 * 750 - 500
    world.answer = "sent"
    world.until(300.0)
    assert Counter(world.told()) == {
        (f"r{number}", "resolved" if number < 250 else "firing"): 1 for number in range(500)
    }


def test_a_receiver_that_is_configured_no_more_is_owed_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is said, and counted."""
    world = World("later")
    world.owe(message("a", now=0.0))
    world.outbox.receivers(["other"])
    assert world.outbox.owed() == {"other": 0}
    assert world.outbox.take_outcomes()["chat", "dropped"] == 1
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
    owed: list[Transition] = []
    crashes = 0
    for what, value in acts:
        if what == "turn":
            run = f"r{value}"
            fires = sum(one.run == run for one in owed) % 2 == 0
            at = world.now + len(owed) / 2  # no two alike
            owed.append(message(run, "firing" if fires else "resolved", at))
            world.owe(owed[-1])
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
    assert world.outbox.owed() == {"chat": 0}
    ids = [message_id(one) for one in world.received]
    assert set(ids) == {message_id(one) for one in owed}
    assert crashes or len(ids) == len(owed)
    for run in {one.run for one in owed}:
        first_told = dict.fromkeys(message_id(one) for one in world.received if one.run == run)
        assert list(first_told) == [message_id(one) for one in owed if one.run == run]
