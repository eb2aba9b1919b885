"""What ends a reader's wait, and which paths it is given then. The observer is watchdog's own."""

import threading
import time

import pytest

from megatron_monitor.follow.waker import Waker

SECONDS = 10  # that no test needs


@pytest.fixture
def waker(tmp_path):
    """It watches the directory."""
    waker = Waker()
    waker.watches.watch({str(tmp_path): 0.0}, 0.0)
    yield waker
    waker.watches.close()


def taken(waker, count=1):
    """So many paths, of however many events."""
    found = set()
    while len(found) < count:
        waker.wait(SECONDS)
        paths, everything = waker.take()
        assert paths or not everything, "nobody called"
        assert paths, "nothing came in time"
        found |= paths
    return found


def test_a_write_is_named(waker, tmp_path):
    """The path of what was made, written, renamed or deleted; never of a directory."""
    assert waker.watches.working
    log = tmp_path / "x"
    (tmp_path / "d").mkdir()
    log.write_text("x")
    assert taken(waker) == {str(log)}
    with log.open("a") as stream:
        stream.write("y")
        stream.flush()
        assert str(log) in taken(waker)
    log.rename(tmp_path / "y")
    assert taken(waker, 2) == {str(log), str(tmp_path / "y")}
    (tmp_path / "y").unlink()
    assert taken(waker) == {str(tmp_path / "y")}


def test_too_many_names(waker, tmp_path, monkeypatch):
    """Beyond a bound every file is looked at instead of each name being kept."""
    monkeypatch.setattr("megatron_monitor.follow.waker._MOST_PATHS", 10)
    for number in range(11):
        waker._named(str(number))
    began = time.perf_counter()
    waker.wait(SECONDS, coalesce_seconds=0.2)
    assert time.perf_counter() - began >= 0.19  # a call would have ended it
    assert waker.take() == (set(), True)
    assert waker.take() == (set(), False)


def test_events_add_up_and_a_call_does_not_wait(waker, tmp_path):
    """`coalesce_seconds` holds events back, never a call."""
    (tmp_path / "x").write_text("x")
    caller = threading.Timer(0.3, waker.wake)
    caller.start()
    waker.wait(SECONDS, coalesce_seconds=SECONDS)
    assert waker.take() == ({str(tmp_path / "x")}, True)
    caller.join()


def test_what_came_while_events_added_up_ends_the_wait(waker, tmp_path):
    """At once when they have: it is not waited for another one."""
    waker._named("/x")
    waker.wait(SECONDS, coalesce_seconds=0.01)
    assert waker.take() == ({"/x"}, False)
    waker.wait(0.0)
    assert waker.take() == (set(), False)


def test_a_line_comes_in_pieces(waker):
    """After the first event it is waited a moment for more; a call ends that too."""
    waker._named("/x")
    caller = threading.Timer(0.1, waker.wake)
    caller.start()
    waker.wait(0.0, 0.0, debounce_seconds=SECONDS)
    assert waker.take() == ({"/x"}, True)
    caller.join()


def test_a_call_after_the_end(waker):
    """Other threads may not know yet."""
    waker.watches.close()
    waker.wake()
    waker.wait(SECONDS)
    assert waker.take() == (set(), True)
