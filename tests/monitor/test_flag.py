"""A flag that a signal handler may set."""

import sys
import threading
from types import FrameType
from typing import Any

from megatron_monitor.system.flag import Flag
from tests.programs import slack


def test_set_may_be_interrupted_by_set() -> None:
    """A signal can come between any two lines of `set`, and its handler sets the flag, too. threading.Event blocks."""
    flag, inner = Flag(), list[int]()

    def interrupt(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and len(inner) < 20:
            inner.append(frame.f_lineno)
            flag.set()
        return interrupt

    def handler() -> None:
        sys.settrace(interrupt)
        flag.set()
        sys.settrace(None)

    thread = threading.Thread(target=handler, daemon=True)
    thread.start()
    thread.join(slack(5))
    assert not thread.is_alive()
    assert inner
    assert flag.wait(0.0)


def test_a_wait_ends_when_the_flag_is_set_and_only_then() -> None:
    """As threading.Event."""
    flag = Flag()
    assert not flag.wait(0.001)
    flag.set()
    flag.set()
    assert flag.is_set()
    assert flag.wait(10.0)
    flag.clear()
    assert not flag.is_set()
    assert not flag.wait(0.001)
    threading.Timer(0.05, flag.set).start()
    assert flag.wait(slack(10))
