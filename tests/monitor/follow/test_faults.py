"""System calls that fail, lie or lag: nothing that could not be observed is gone, nothing is read twice."""

import errno
import os
import shutil

import pytest

from megatron_monitor.follow.messages import Data, Readable, Restarted, Scanned, Unreadable
from tests.monitor.follow.conftest import LINES, text

ERRORS = [errno.ESTALE, errno.EIO, errno.EACCES, errno.ETIMEDOUT, errno.EHOSTDOWN]


@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["stat", "pread", "fstat"])
def test_ten_minutes_of_errors(begun, append, kinds, log, error, call):
    """An outage is told once after the second failure, costs few calls, and ends without a loss or a repetition."""
    rig = begun(4, file_system="nfs")
    append(log, LINES[4])
    rig.os.fail(error, call, "open")
    rig.os.calls.clear()
    messages = [message for _ in range(1200) for message in rig.poll(all_files=False)]
    append(log, LINES[5])
    if call == "fstat":  # only asked when a file is opened
        assert {type(message) for message in messages} <= {Data, Unreadable}
    else:
        assert kinds(messages) == ["Unreadable"]
        assert messages[0].errno == error
        assert sum(rig.os.calls.values()) < 200
    rig.os.heal()
    rig.settle(6)
    assert rig.texts(log) == [text(0, 6)]
    assert isinstance(rig.messages[-1], Readable | Scanned | Data)
    assert not any(isinstance(message, Restarted) for message in rig.messages)


def test_no_entry_for_the_whole_directory(begun, kinds, log):
    """A mount that shows nothing for ten minutes is not a deletion."""
    rig = begun(4, file_system="nfs")
    rig.os.fail(errno.ENOENT, "stat", "scandir", path=str(log.parent))
    assert kinds(rig.settle(600)) == ["Unreadable"]
    rig.os.heal()
    assert kinds(rig.settle(1)) == ["Readable"]
    assert rig.texts(log) == [text(0, 4)]


def test_unmounted_directory_is_empty_and_readable(begun, kinds, log):
    """An empty mount point lies on another device than the log did: nothing was deleted."""
    rig = begun(4, file_system="nfs")
    log.rename(log.parent.parent / "kept")
    rig.os.doctor = lambda found: os.stat_result((*found[:2], found[2] + 1, *found[3:]))
    assert kinds(rig.settle(60)) == ["Unreadable"]
    (log.parent.parent / "kept").rename(log)
    rig.os.doctor = None
    assert kinds(rig.settle(1)) == ["Readable"]


def test_short_reads_are_believed_after_two_opens(begun, kinds, log):
    """A network client that shows less than was read is asked again by fresh opens; time makes it a truncation."""
    rig = begun(4, file_system="nfs")
    shutil.copy(log, log.with_name("kept"))
    log.write_bytes(text(0, 1))
    assert kinds(rig.settle(2.5)) == []
    log.write_bytes(text(0, 4))  # the attributes are right again
    rig.settle(10)
    assert rig.texts(log) == [text(0, 4)]
    log.write_bytes(text(0, 1))
    assert kinds(rig.settle(5)) == ["Restarted", "Data", "CaughtUp"]


def test_unreadable_from_the_start(make_rig, kinds, log):
    """A file that was never readable is told by its error, and read from its start once it is."""
    log.write_bytes(text(0, 4))
    rig = make_rig(log)
    rig.os.fail(errno.EACCES, "open")
    messages = rig.settle(5)
    assert kinds(messages) == ["Unreadable"]
    assert (messages[0].errno, messages[0].message) == (errno.EACCES, "Permission denied")
    rig.os.heal()
    assert kinds(rig.settle(40)) == ["Opened", "Data", "CaughtUp", "Readable"]


def test_stale_handle_of_a_rotated_file(begun, log):
    """A server that drops the old file at its rotation does not hold up the new one."""
    rig = begun(4, file_system="nfs")
    log.unlink()
    log.write_bytes(text(20, 24))
    for descriptor in rig.os.paths:
        rig.os.paths[descriptor] = "<held>"
    rig.os.fail(errno.ESTALE, "pread", "fstat", path="<held>")
    rig.settle()
    assert rig.texts(log) == [text(0, 4), text(20, 24)]


def test_rotated_file_that_stays_unreadable(begun, log):
    """The rest of an old file that fails time and again is given up, and the new one begun."""
    rig = begun(4, file_system="nfs")
    log.rename(log.with_name("main.log.1"))
    log.write_bytes(text(20, 24))
    for descriptor in rig.os.paths:
        rig.os.paths[descriptor] = "<held>"
    rig.os.fail(errno.EIO, "pread", path="<held>")
    messages = rig.settle()
    assert [message.reason for message in messages if isinstance(message, Restarted)] == ["replaced"]
    assert rig.texts(log) == [text(0, 4), text(20, 24)]


def test_the_process_has_no_descriptors_left(make_rig, append, kinds, tmp_path):
    """EMFILE gives up the files read least recently and goes on; nobody is told, nothing is lost."""
    paths = [tmp_path / f"{number}.log" for number in range(40)]
    for path in paths:
        path.write_bytes(path.name.encode() * 9 + b"\n")
    rig = make_rig(tmp_path / "*.log")
    rig.os.limit = 10
    rig.poll()
    for path in paths:
        append(path, path.name.encode() * 20 + b"\n")
    rig.settle(2)
    assert "Unreadable" not in kinds(rig.messages)
    assert all(rig.texts(path) == [path.read_bytes()] for path in paths)


def test_errors_are_counted_by_name(make_rig, log):
    """The statistics tell which errors the mount gave, unreadable directories included."""
    rig = make_rig(log, log.parent / "*.txt")
    rig.os.fail(errno.EIO, "stat", "scandir")
    rig.settle(12)
    scanned = [message for message in rig.messages if isinstance(message, Scanned)]
    assert sum(message.errors.get("EIO", 0) for message in scanned) > 3
