"""What a pass touches: the files that are due, each once, in that order; and how a file's pauses grow."""

import pytest

from megatron_monitor.follow.follower import ReaderThread
from megatron_monitor.follow.schedule import Backoff, Schedule
from megatron_monitor.follow.settings import FollowSettings


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


def test_passes_are_paced(make_rig, append, tmp_path):
    """A thread that follows thousands of silent files makes ten passes a second, not one for each file that is due."""
    for number in range(200):
        (tmp_path / f"{number}.log").write_text("x\n")
    rig = make_rig(tmp_path / "*.log", stats_per_second=100.0, read_bytes=100)
    rig.settle(3)
    thread = ReaderThread(rig.reader, None, rig.clock, None)
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


@pytest.mark.parametrize(("quiet", "pause"), [(0, 0.5), (10, 0.5), (100, 5.0), (200, 10.0), (1e6, 10.0)])
def test_pause_grows_with_silence(quiet, pause):
    """A silent file is looked at every twentieth of its silence, every ten seconds at the least."""
    backoff = Backoff(FollowSettings())
    assert backoff.pause(1e7, quiet_since=1e7 - quiet, soon=False, spread_seconds=0.0) == pytest.approx(pause)
    assert backoff.pause(1e7, quiet_since=1e7 - quiet, soon=True, spread_seconds=99.0) == 0.5


def test_failures_double_the_pause():
    """Tries at what cannot be read become rare, and stay bounded however long it lasts."""
    backoff = Backoff(FollowSettings())
    assert [backoff.after_failure(n) for n in (1, 2, 3, 7, 10**9)] == [0.5, 1.0, 2.0, 30.0, 30.0]


def test_idle_files_stay_within_the_budget(make_rig, tmp_path):
    """1,000 files silent for an hour cost no more looks than the budget, while an active one is looked at in time."""
    for number in range(1000):
        (tmp_path / f"{number}.log").write_text("x\n")
    active = tmp_path / "0.log"
    rig = make_rig(tmp_path / "*.log", stats_per_second=20.0)
    rig.clock.set_wall(active.stat().st_mtime + 3600)
    rig.poll()
    rig.settle(2)
    for _ in range(300):
        rig.poll(0.5, all_files=False)
    rig.os.calls.clear()
    for step in range(200):
        if step % 20 == 0:
            with active.open("a") as file:
                file.write("y\n")
        rig.poll(0.5, all_files=False)
    assert rig.os.calls["stat"] <= 20 * 100 * 1.3 + 200
    assert rig.text(active) == b"x\n" + b"y\n" * 10
