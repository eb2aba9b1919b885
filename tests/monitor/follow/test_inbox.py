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


def test_a_small_message_takes_part_of_a_place() -> None:
    """Lines of a hundred runs are no reason for haste, and the memory is bounded all the same."""
    inbox = Inbox(2)
    assert inbox.put_all([message(number) for number in range(100)], 0.0) == 32
    assert inbox.full()
    assert inbox.put_all([message()], SHORT) == 0
    assert inbox.get_nowait() == message()
    assert inbox.put_all([block(1), block(2)], 0.0) == 1
    assert inbox.put_all([message()], 0.0) == 0


def test_what_is_taken_at_once() -> None:
    """In the order in which it came, up to a message that takes its time, and not without end."""
    inbox = Inbox(32)
    assert inbox.get_some() == []
    reported = [message(1), block(2), message(3), *map(message, range(4, 50))]
    assert inbox.put_all(reported, 0.0) == len(reported)
    assert inbox.get_some() == reported[:2]
    rest = [*inbox.get_some(), *inbox.get_some()]
    assert rest == reported[2:]
    assert inbox.empty()
    inbox.put_all([block(number) for number in range(40)], 0.0)
    assert inbox.full()
    for number in range(32):
        assert inbox.get_some() == [block(number)]
    assert not inbox.full()


def test_what_is_oldest_is_known_of_the_queue_and_of_who_waits_for_room() -> None:
    """A loop that is behind judges until then: what was read before has been taken, whichever thread read it."""
    inbox = Inbox(1)
    assert inbox.oldest() == math.inf
    inbox.put(CaughtUp("/b", 7.0))
    inbox.put(Data("/c", 0, b"", 0.0, 8.0, 0))
    assert inbox.oldest() == 7.0
    waiting = threading.Thread(target=inbox.put_all, args=([CaughtUp("/a", 5.0)], LONG))
    while inbox.put_all([CaughtUp("/b", 9.0)], 0.0):
        pass
    waiting.start()
    while inbox.oldest() != 5.0:
        time.sleep(0.01)
    while inbox.get_some():
        pass
    waiting.join()
    assert inbox.oldest() == 5.0
    inbox.get_some()
    assert inbox.oldest() == math.inf
