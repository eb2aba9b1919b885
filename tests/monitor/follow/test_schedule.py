"""What a pass touches: the files that are due, each once, in the order in which they became due."""

from __future__ import annotations

import pytest

from monitor.follow.follower import ReaderThread
from monitor.follow.schedule import Schedule


class Due:
    """As much of a source as a schedule knows."""

    def __init__(self, at):
        self.due_at = at


@pytest.fixture
def schedule():
    """Empty."""
    return Schedule()


def put(schedule, *times):
    """Sources that are due then."""
    sources = [Due(at) for at in times]
    for source in sources:
        schedule.put(source)
    return sources


def test_in_order(schedule):
    """The longest due comes first, then in the order of putting; what is not due stays."""
    late, first, second, early = put(schedule, 9.0, 2.0, 2.0, 1.0)
    assert schedule.next_at() == 1.0
    assert list(schedule.take(2.0)) == [early, first, second]
    assert schedule.next_at() == 9.0
    assert list(schedule.take(8.9)) == []
    assert list(schedule.take(9.0)) == [late]
    assert schedule.next_at() == float("inf")


def test_put_while_taking_waits(schedule):
    """A file that has more to read comes once a pass: the others must not wait for its end."""
    (source,) = put(schedule, 1.0)
    for taken in schedule.take(1.0):
        schedule.put(taken)
    assert list(schedule.take(1.0)) == [source]


def test_hastened(schedule):
    """A hint brings a file forward; its old place is void, and it never comes twice."""
    source, other = put(schedule, 10.0, 5.0)
    schedule.hasten(source, 1.0)
    schedule.hasten(source, 1.0)
    assert list(schedule.take(1.0)) == [source]
    source.due_at = 20.0
    schedule.put(source)
    assert list(schedule.take(15.0)) == [other]
    assert schedule.next_at() == 20.0


def test_all_hastened(schedule):
    """Everything is due, in the order given."""
    sources = put(schedule, 3.0, 1.0, 2.0)
    schedule.hasten_all(sources, 0.0)
    assert list(schedule.take(0.0)) == sources


def test_left_out(schedule):
    """A source that is followed no more is due at no time."""
    gone, kept = put(schedule, 1.0, 2.0)
    gone.due_at = float("inf")
    assert schedule.next_at() == 2.0
    assert list(schedule.take(5.0)) == [kept]


def test_passes_are_paced(make_rig, append, tmp_path):
    """A thread that follows thousands of silent files makes ten passes a second, not one for each file that is due."""
    for number in range(200):
        (tmp_path / f"{number}.log").write_text("x\n")
    rig = make_rig(tmp_path / "*.log", stats_per_second=100.0, read_bytes=100)
    rig.settle(3)
    thread = ReaderThread(rig.reader, None, rig.clock, None, None)
    looks = passes = 0
    for _ in range(400):
        rig.os.calls.clear()
        began = rig.clock.monotonic()
        list(rig.reader.poll(rig.clock))
        looks += rig.os.calls.get("stat", 0)
        passes += 1
        pause = thread.pause(began)
        assert 0.0999 <= pause <= 2.2
        rig.clock.advance(pause)
    assert looks > passes * 5
    append(tmp_path / "7.log", b"y" * 250)  # three reads
    began = rig.clock.monotonic()
    list(rig.reader.poll(rig.clock, {str(tmp_path / "7.log")}))
    assert thread.pause(began) == 0.0
    thread.waker.close()
