"""One path through appends, rotations, truncations, deletions: what is delivered, and what is said about it."""

import os
import shutil

import pytest

from megatron_monitor.follow import content
from megatron_monitor.follow.messages import Data, Gone, Restarted
from tests.monitor.follow.conftest import LINES, text


@pytest.fixture(params=["ext4", "nfs"])
def file_system(request):
    """Everything here must hold on local and on network mounts."""
    return request.param


@pytest.fixture(params=["in a tick", "at rest"])
def make_rig(make_rig, tmp_path, request):
    """By the clock, each change is so young that another may hide behind its time stamp, or a second old."""

    def make(*patterns, **options):
        rig = make_rig(*patterns, **options)
        if request.param != "in a tick":
            rig.clock.set_wall(tmp_path.stat().st_mtime + 1.0)
        return rig

    return make


def test_append(make_rig, append, kinds, log):
    """Lines are delivered as they are written, and the end is told once."""
    log.write_bytes(LINES[0])
    rig = make_rig(log)
    assert kinds(rig.poll()) == ["Opened", "Data", "CaughtUp"]
    append(log, LINES[1])
    assert kinds(rig.poll()) == ["Data"]
    assert rig.poll() == []
    assert rig.text(log) == text(0, 2)


def test_of_a_file_at_rest_the_hash_of_its_head_is_kept(make_rig, append, log):
    """A hundred thousand of them are followed; each is read on, and its proof stays the same."""
    log.write_bytes(text(0, 100))
    rig = make_rig(log)
    rig.clock.set_wall(log.stat().st_mtime + 3600.0)
    rig.poll()
    (source,) = rig.reader.sources.values()
    assert (source.content.head, len(source.content.tail)) == (b"", content.TAIL_BYTES)
    assert source.content.fingerprint().head_hash == content.digest(text(0, 100)[: content.HEAD_BYTES])
    append(log, LINES[100])
    rig.poll()
    assert source.content.fingerprint().offset == len(text(0, 101))
    assert rig.text(log) == text(0, 101)


def test_data_tells_offset_times_and_backlog(make_rig, log):
    """Each Data says where it lies, when it was read and written, and how much the file holds after it."""
    log.write_bytes(text(0, 100))
    rig = make_rig(log, read_bytes=1000)
    data = [message for message in rig.poll() if isinstance(message, Data)]
    size = len(text(0, 100))
    assert [one.offset for one in data] == list(range(0, size, 1000))
    assert [one.behind_bytes for one in data] == [max(0, size - one.offset - 1000) for one in data]
    assert data[0].at == rig.clock.wall()
    assert data[0].mtime == pytest.approx(log.stat().st_mtime)


def test_rename_rotation_with_late_writes(begun, append, log, file_system):
    """What is written to the old file after its rename, even after the new one was begun, is read before the new."""
    rig = begun(5, file_system=file_system)
    old = log.rename(log.with_name("main.log.1"))
    append(old, LINES[5])
    rig.poll()
    log.write_bytes(b"")
    append(old, LINES[6])
    rig.settle(2)
    append(log, LINES[10])
    append(old, LINES[7])
    rig.settle(0.5)
    append(old, LINES[8])
    messages = rig.settle(3)
    assert rig.texts(log) == [text(0, 9), LINES[10]]
    restarted = next(message for message in messages if isinstance(message, Restarted))
    assert restarted.reason == "rotated"
    assert restarted.left is not None
    assert not any(isinstance(message, Gone) for message in rig.messages)


@pytest.mark.parametrize("keep", [3, 40], ids=["smaller", "larger"])
def test_copytruncate(begun, log, file_system, keep):
    """A file cut and filled again is read anew whatever its size is now, and what was delivered is not repeated."""
    rig = begun(10, file_system=file_system)
    shutil.copy(log, log.with_name("main.log.1"))
    log.write_bytes(text(100, 100 + keep))
    messages = rig.settle(5)
    assert [message.reason for message in messages if isinstance(message, Restarted)] == ["truncated"]
    assert rig.texts(log) == [text(0, 10), text(100, 100 + keep)]


def test_same_size_rewrite_within_one_tick_of_the_time_stamps(make_rig, log):
    """A rewrite that leaves size and times as they were is found while the file is not yet quiet."""
    log.write_bytes(text(0, 4))
    rig = make_rig(log)
    kept = os.stat(log)
    rig.clock.set_wall(kept.st_mtime - 0.5)
    rig.poll()
    rig.os.doctor = lambda found: kept  # the file system's clock has not ticked
    log.write_bytes(text(50, 54))
    rig.settle(2)
    assert rig.texts(log) == [text(0, 4), text(50, 54)]


def test_truncated_to_nothing_then_silent(begun, kinds, log):
    """The cut is told although nothing follows."""
    rig = begun(4)
    os.truncate(log, 0)
    assert kinds(rig.poll()) == ["Restarted", "CaughtUp"]


def test_recreated_with_the_same_inode_after_it_was_gone(begun, kinds, log):
    """An inode that is used again is not taken for the file that had it: the bytes decide."""
    rig = begun(4)
    inode = log.stat().st_ino
    log.unlink()
    rig.settle()
    log.write_bytes(text(20, 30))
    rig.os.doctor = lambda found: os.stat_result((*found[:1], inode, *found[2:])) if found.st_size else found
    messages = rig.settle()
    assert kinds(messages)[:3] == ["Readable", "Restarted", "Data"]
    assert messages[1].reason == "replaced"
    assert rig.texts(log) == [text(0, 4), text(20, 30)]


def test_gone_and_back_unchanged(begun, append, kinds, log):
    """A log moved away and back goes on where it was."""
    rig = begun(4)
    away = log.rename(log.parent.parent / "away")
    assert kinds(rig.settle(310)) == ["Gone"]
    away.rename(log)
    append(log, LINES[4])
    assert kinds(rig.settle(2)) == ["Readable", "Data"]
    assert rig.text(log) == text(0, 5)


def test_renamed_for_good_is_read_on(begun, append, kinds, log):
    """A log that its writer keeps open is followed under the old name after a rename, until it is silent for long."""
    rig = begun(1)
    away = log.rename(log.with_name("final.txt"))
    for line in LINES[1:4]:
        append(away, line)
        assert kinds(rig.settle(120)) == ["Data"]
    assert rig.text(log) == text(0, 4)
    assert kinds(rig.settle(310)) == ["Gone"]


def test_parent_directory_renamed(begun, append, kinds, log):
    """A directory that is not there says nothing about its files; when it is back the log goes on."""
    rig = begun(2)
    away = log.parent.rename(log.parent.parent / "moved")
    assert kinds(rig.settle(120)) == ["Unreadable"]
    append(away / "main.log", LINES[2])
    away.rename(log.parent)
    assert kinds(rig.settle(1)) == ["Data", "Readable"]
    assert rig.texts(log) == [text(0, 3)]


@pytest.mark.parametrize("down", [False, True], ids=["live", "over a restart"])
@pytest.mark.parametrize("limit", [64, 1], ids=["held", "given up"])
def test_parent_directory_renamed_within_the_pattern(make_rig, append, tmp_path, limit, down):
    """The file is read on under its new name or its open descriptor: every line once, there and back."""
    (tmp_path / "job").mkdir()
    log = tmp_path / "job" / "main.log"
    log.write_bytes(text(0, 20))
    (tmp_path / "other.log").write_bytes(b"another\n")
    rig = make_rig(tmp_path / "**" / "*.log", max_open_files=limit)
    rig.settle()
    append(tmp_path / "other.log", b"another\n")
    rig.poll()  # with one descriptor, it is the other file's now
    if down:
        positions = rig.positions()
        rig.reader.close()
    away = log.parent.rename(tmp_path / "moved")
    append(away / "main.log", LINES[20])
    if down:
        rig = make_rig(tmp_path / "**" / "*.log", max_open_files=limit, resume=positions)
    rig.settle(60)
    append(away / "main.log", LINES[21])
    rig.settle(60)
    away.rename(log.parent)
    append(log, LINES[22])
    rig.settle(60)
    both = [one for path in (log, away / "main.log") for one in rig.texts(path)]
    delivered = b"".join(one.lstrip(b"\0") for one in both)
    expected = text(20, 23) if down else text(0, 23)
    assert sorted(delivered.splitlines()) == sorted(expected.splitlines())


def test_what_another_path_read_on_is_not_read_again(make_rig, append, tmp_path):
    """A file that was renamed and is back: its first path goes on behind what was read under the other name."""
    names = [tmp_path / "a.log", tmp_path / "b.log"]
    names[0].write_bytes(text(0, 20))
    rig = make_rig(tmp_path / "*.log")
    rig.settle()
    for number in range(20, 24):
        names[0].rename(names[1])
        rig.settle(320)
        append(names[1], LINES[number])
        rig.settle(320)
        names.reverse()
    delivered = b"".join(one for path in names for one in rig.texts(path))
    assert sorted(delivered.splitlines()) == sorted(text(0, 24).splitlines())


def test_a_path_that_becomes_another_name_of_a_followed_file_is_gone(make_rig, append, kinds, tmp_path):
    """The other name reads it; the rest of the path's own file was read before."""
    one, two = tmp_path / "a.log", tmp_path / "b.log"
    one.write_bytes(text(0, 20))
    two.write_bytes(text(50, 70))
    rig = make_rig(tmp_path / "*.log")
    rig.settle()
    append(one, LINES[20])
    os.link(two, tmp_path / "link")
    (tmp_path / "link").replace(one)
    append(two, LINES[70])
    assert kinds(rig.settle(30)) == ["Data", "Data", "Gone"]
    assert rig.texts(one) == [text(0, 21)]
    assert rig.texts(two) == [text(50, 71)]
