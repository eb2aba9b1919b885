"""What a pass touches: the files that are due, each once, in that order; and how a file's pauses grow."""

import errno

import pytest

from megatron_monitor.follow.follower import ReaderThread


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


@pytest.mark.parametrize(("display_only", "pause"), [(0, 0.5), (10, 0.5), (100, 5.0), (200, 10.0), (1e6, 10.0)])
def test_pause_grows_with_silence(begun, log, display_only, pause):
    """A silent file is looked at every twentieth of its silence, every ten seconds at the least."""
    rig = begun(3)
    (source,) = rig.reader.sources.values()
    source.changed_at = rig.clock.monotonic() - display_only
    source.recheck_until = 0.0
    source.poll(rig.clock.monotonic(), rig.clock.wall())
    assert pause * 0.9 <= source.due_at - rig.clock.monotonic() <= pause


def test_failures_double_the_pause(begun, log):
    """Tries at what cannot be read become rare, and stay bounded however long it lasts."""
    rig = begun(3)
    rig.os.fail(errno.EIO, "stat")
    (source,) = rig.reader.sources.values()
    pauses = []
    for _ in range(100):
        source.poll(rig.clock.monotonic(), rig.clock.wall())
        pauses.append(source.due_at - rig.clock.monotonic())
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert set(pauses[7:]) == {30.0}


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
