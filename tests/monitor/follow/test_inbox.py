"""The loop's queue: what ends its pause, and what only lies there until the pause is over."""

import math
import threading
import time
from collections.abc import Callable

import pytest

from megatron_monitor.follow.inbox import Inbox
from megatron_monitor.follow.messages import SMALL_BYTES, CaughtUp, Data

LONG = 10.0  # seconds that no test waits for
SHORT = 0.1


def message(number: int = 0) -> CaughtUp:
    """Any message."""
    return CaughtUp(f"/{number}", 0.0)


def block(number: int) -> Data:
    """A message that is not small."""
    return Data(f"/{number}", 0, bytes(SMALL_BYTES + 1), 0.0, 0.0, 0)


def later(act: Callable[[], object]) -> threading.Timer:
    """Do it in another thread, in a moment."""
    timer = threading.Timer(0.05, act)
    timer.start()
    return timer


def seconds(inbox: Inbox, pause: float, idle: float) -> float:
    """How long it waited."""
    began = time.perf_counter()
    inbox.wait(pause, idle)
    return time.perf_counter() - began


@pytest.mark.parametrize(("pause", "idle"), [(LONG, LONG), (0.0, LONG)])
def test_a_call_ends_any_wait(pause: float, idle: float) -> None:
    """While the loop paces itself, and while it waits for a message; once."""
    inbox = Inbox(8)
    timer = later(inbox.wake)
    assert seconds(inbox, pause, idle) < LONG / 2
    timer.join()
    inbox.wake()
    assert seconds(inbox, LONG, LONG) < LONG / 2
    assert seconds(inbox, SHORT, 0.0) >= SHORT * 0.9


def test_a_message_ends_the_idle_and_not_the_pause() -> None:
    """Lines of many runs add up to one turn."""
    inbox = Inbox(8)
    timer = later(lambda: inbox.put(message()))
    assert seconds(inbox, 0.0, LONG) < LONG / 2
    timer.join()
    inbox.get_nowait()
    timer = later(lambda: inbox.put(message()))
    assert seconds(inbox, 4 * SHORT, LONG) >= 4 * SHORT * 0.9
    timer.join()
    assert inbox.get_nowait() == message()


@pytest.mark.parametrize("more", [message(31), block(1)])
def test_who_puts_more_than_there_is_room_for_waits(more: Data | CaughtUp) -> None:
    """Lines of thirty runs are no reason for haste, a small message takes part of a place, and the memory is bounded:
    until some are taken, or to the end.
    """
    inbox, stopping = Inbox(2), threading.Event()
    for stops in (False, True):
        assert inbox.put_all([message(number) for number in range(31)], stopping)
        assert not inbox.full()
        waiting = threading.Thread(target=inbox.put_all, args=([more], stopping))
        waiting.start()
        waiting.join(SHORT)
        assert inbox.full()
        assert waiting.is_alive()
        stopping.set() if stops else inbox.get_some()
        waiting.join(LONG)
        assert not waiting.is_alive()
        while inbox.get_some():
            pass
    assert not inbox.put_all([], stopping)


def test_what_is_taken_at_once() -> None:
    """In the order in which it came, up to a message that takes its time, and not without end."""
    inbox = Inbox(32)
    assert inbox.get_some() == []
    reported = [message(1), block(2), message(3), *map(message, range(4, 50))]
    assert inbox.put_all(reported, threading.Event())
    assert inbox.get_some() == reported[:2]
    rest = [*inbox.get_some(), *inbox.get_some()]
    assert rest == reported[2:]
    assert inbox.empty()


def test_what_is_oldest_is_known() -> None:
    """A loop that is behind judges until then: what was read before has been taken, whichever thread read it."""
    inbox = Inbox(8)
    assert inbox.oldest() == math.inf
    inbox.put(CaughtUp("/b", 7.0))
    inbox.put(Data("/c", 0, b"", 0.0, 8.0, 0))
    inbox.put(CaughtUp("/a", 5.0))
    assert inbox.oldest() == 5.0
    inbox.get_some()
    assert inbox.oldest() == math.inf
