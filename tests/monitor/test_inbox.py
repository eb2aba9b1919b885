"""The loop's queue: what ends its pause, and what only lies there until the pause is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from monitor.follow.messages import CaughtUp
from monitor.inbox import Inbox

LONG = 10.0  # seconds that no test waits for
SHORT = 0.1


def message(number: int = 0) -> CaughtUp:
    """Any message."""
    return CaughtUp(f"/{number}", 0.0)


def later(act: Callable[[], object]) -> threading.Timer:
    """Do it in another thread, in a moment."""
    timer = threading.Timer(0.05, act)
    timer.start()
    return timer


def seconds(inbox: Inbox, pause: float, patience: float) -> float:
    """How long it waited."""
    began = time.perf_counter()
    inbox.wait(pause, patience)
    return time.perf_counter() - began


@pytest.mark.parametrize(("pause", "patience"), [(LONG, LONG), (0.0, LONG)])
def test_a_knock_ends_any_wait(pause: float, patience: float) -> None:
    """While the loop paces itself, and while it waits for a message; once."""
    inbox = Inbox(8)
    timer = later(inbox.knock)
    assert seconds(inbox, pause, patience) < LONG / 2
    timer.join()
    inbox.knock()
    assert seconds(inbox, LONG, LONG) < LONG / 2
    assert seconds(inbox, SHORT, 0.0) >= SHORT * 0.9


def test_a_message_ends_the_patience_and_not_the_pause() -> None:
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


def test_half_a_queue_ends_the_pause() -> None:
    """A reader with much to tell is not kept waiting."""
    inbox = Inbox(8)
    timer = later(lambda: [inbox.put(message(number)) for number in range(4)])
    assert seconds(inbox, LONG, LONG) < LONG / 2
    timer.join()
    assert seconds(inbox, LONG, LONG) < LONG / 2
    assert [inbox.get_nowait() for _ in range(4)] == [message(number) for number in range(4)]
