"""A restart goes on where the state file says, if the file proves it, and anew if not."""

import os

import msgspec
import pytest

from megatron_monitor.follow.messages import CaughtUp, Data, Gone, Opened
from tests.monitor.follow.conftest import LINES, stored, text


def elsewhere(positions):
    """The same, on another device."""
    return {key: msgspec.structs.replace(one, device=one.device + 7) for key, one in positions.items()}


@pytest.mark.parametrize("name", [b"token=5ecret9beef77aBcD", b"caf\xe9"])
def test_a_name_that_is_not_shown_as_it_is(make_rig, append, log, name):
    """What has a secret in its name, or bytes that are no text, goes on where it was, once the search has found it."""
    log = log.parent / os.fsdecode(name) / "main.log"
    log.parent.mkdir()
    log.write_bytes(text(0, 30))
    first = make_rig(log.parent.parent / "*" / "*.log")
    first.poll()
    (source,) = first.positions()
    assert "5ecret" not in source
    append(log, text(30, 33))
    second = make_rig(log.parent.parent / "*" / "*.log", after=first)
    second.settle(3)
    assert second.text(source) == text(30, 33)


@pytest.mark.parametrize("inode_kept", [True, False])
@pytest.mark.parametrize("end", [60, 30, 10])
def test_replaced_while_down(begun, make_rig, log, inode_kept, end):
    """Another text under the same name is read from its start, whatever its size and inode."""
    first = begun(30)
    positions = stored(first.positions())
    if not inode_kept:
        other = log.with_name("other")
        other.write_bytes(b"")
        log.unlink()
        other.rename(log)
    log.write_bytes(text(100, 100 + end))
    second = make_rig(log, resume=positions)
    opened = second.poll()[0]
    assert isinstance(opened, Opened)
    assert not opened.resumed
    assert opened.offset == 0
    assert second.texts(log) == [text(100, 100 + end)]


def test_same_head_other_tail(begun, make_rig, log):
    """The same banner does not prove a position: the bytes before the offset do."""
    first = begun(30)
    log.write_bytes(text(0, 25) + text(100, 150))
    second = make_rig(log, after=first)
    assert not second.poll()[0].resumed
    assert second.texts(log) == [text(0, 25) + text(100, 150)]


def test_truncated_on_a_network_mount_needs_a_second_look(begun, make_rig, kinds, log):
    """Right after a start a network client's short size is not accepted either."""
    first = begun(30)
    whole = log.read_bytes()
    log.write_bytes(whole[:100])
    second = make_rig(log, after=first, file_system="nfs")
    assert kinds(second.settle(2)) == []
    log.write_bytes(whole + LINES[30])
    second.settle(2)
    assert second.texts(log) == [LINES[30]]


def test_deleted_while_down(begun, make_rig, kinds, log):
    """A source of the state file whose path was deleted is told as gone, once; made anew it is read from its start."""
    first = begun(30)
    log.unlink()
    second = make_rig(log, after=first)
    assert kinds(second.settle(30)) == ["Gone"]
    log.write_bytes(text(100, 103))
    assert kinds(second.poll()) == ["Opened", "Data", "CaughtUp"]
    assert second.texts(log) == [text(100, 103)]


@pytest.mark.parametrize("mounted", [True, False])
def test_not_there_because_the_mount_is_not(begun, make_rig, kinds, log, mounted):
    """A source of the state file that lay on another device than what is there now is not gone: its mount is away. On
    the same device its directory was removed.
    """
    first = begun(30)
    positions = stored(first.positions())
    if mounted:
        positions = elsewhere(positions)
    log.parent.rename(log.parent.parent / "away")
    second = make_rig(log, resume=positions)
    assert kinds(second.settle(60)) == (["Unreadable"] if mounted else ["Gone"])
    (log.parent.parent / "away").rename(log.parent)
    assert kinds(second.settle(1)) == ["Opened", "CaughtUp", *(["Readable"] if mounted else [])]


def test_another_device_number_after_a_reboot(begun, make_rig, append, log):
    """Device numbers may change with a reboot; head and tail prove the position."""
    first = begun(30)
    changed = elsewhere(first.positions())
    append(log, LINES[30])
    second = make_rig(log, resume=changed)
    assert second.poll()[0].resumed
    assert second.text(log) == LINES[30]


def test_short_text_does_not_prove_against_another_inode(make_rig, log):
    """A few bytes agree by chance: with another inode the file counts as new."""
    log.write_bytes(b"start\n")
    first = make_rig(log)
    first.poll()
    other = log.with_name("other")
    other.write_bytes(b"start\nmore\n")
    os.replace(other, log)
    second = make_rig(log, after=first)
    opened = second.poll()[0]
    assert not opened.resumed
    assert second.texts(log) == [b"start\nmore\n"]


def test_left_files_are_remembered(begun, make_rig, append, log):
    """A rotated file that was read under its old name is not read again after a restart; what is added to it is."""
    pattern = str(log) + "*"
    first = begun(30)
    log.rename(log.with_name("main.log.1"))
    log.write_bytes(text(100, 110))
    first.settle()
    second = make_rig(pattern, after=first)
    second.settle(3)
    assert second.texts(str(log) + ".1") == []
    append(log.with_name("main.log.1"), LINES[30])
    messages = second.settle(12)
    assert second.texts(str(log) + ".1") == [LINES[30]]
    opened = next(message for message in messages if isinstance(message, Opened))
    assert opened.offset == len(text(0, 30))
    assert not opened.resumed


def test_position_for_a_source_that_nobody_follows(begun, make_rig, kinds, log, tmp_path):
    """A position that no pattern covers any more says nothing and holds nothing back."""
    first = begun(30)
    link = tmp_path / "link.log"
    os.link(log, link)
    second = make_rig(link, after=first)
    assert kinds(second.settle(30)) == ["Opened", "Data", "CaughtUp"]
    assert second.texts(link) == [text(0, 30)]
    assert not any(isinstance(message, Gone) for message in second.messages)


def test_numbered_files_moved_up_while_down(make_rig, append, log):
    """Each file is finished by the source that had it, although every name now shows another's file."""
    numbered = log.with_name("main.log.1")
    numbered.write_bytes(text(0, 30))
    log.write_bytes(text(50, 80))
    pattern = str(log) + "*"
    first = make_rig(pattern)
    first.poll()
    append(numbered, LINES[30])
    append(log, LINES[80])
    numbered.rename(log.with_name("main.log.2"))
    log.rename(numbered)
    log.write_bytes(text(100, 103))
    for order in (1, -1):
        positions = dict(sorted(stored(first.positions()).items())[::order])
        second = make_rig(pattern, resume=positions)
        second.settle(30)
        assert second.texts(log) == [LINES[80], text(100, 103)]
        assert second.texts(numbered) == [LINES[30]]
        assert second.texts(log.with_name("main.log.2")) == []


def test_inode_of_a_deleted_file_is_used_again(make_rig, tmp_path):
    """A file known to be deleted is not continued under another name, even if the new one begins like it."""
    old, new = tmp_path / "a.log", tmp_path / "b.log"
    old.write_bytes(b"start\n")
    rig = make_rig(tmp_path / "*.log")
    rig.poll()
    inode = old.stat().st_ino
    old.unlink()
    rig.settle(4)
    new.write_bytes(b"start\nmore\n")
    rig.os.doctor = lambda found: os.stat_result((*found[:1], inode, *found[2:])) if found.st_size == 11 else found
    rig.settle(12)
    assert rig.texts(new) == [b"start\nmore\n"]


def test_unreadable_at_the_start_keeps_its_claim(begun, make_rig, append, log):
    """A file that its source cannot resume yet is not read from the start under the name it was moved to meanwhile."""
    numbered = log.with_name("main.log.1")
    first = begun(30, str(log) + "*")
    append(log, LINES[30])
    log.rename(numbered)
    log.write_bytes(text(100, 103))
    second = make_rig(str(log) + "*", after=first)
    second.os.faults["stat"] = lambda path: OSError(5, "I/O error") if path == str(log) else None
    second.settle(20)
    assert second.texts(numbered) == []
    second.os.heal()
    second.settle(40)
    assert second.texts(log) == [LINES[30], text(100, 103)]
    assert second.texts(numbered) == []


def test_who_was_away_has_caught_up_with_the_new_file_alone(make_rig, tmp_path):
    """A log that was rotated meanwhile: the end of the old file is no proof that nothing was written since."""
    log = tmp_path / "main.log"
    log.write_bytes(b"a line of the log, with text enough to prove it, and more than that\n" * 3)
    rig = make_rig(log)
    rig.settle()
    rig.reader.close()
    log.rename(tmp_path / "main.log.1")
    log.write_bytes(b"what was written while nobody looked, and what is read at last\n")
    rig = make_rig(log, after=rig)
    rig.settle()
    kinds = [type(one) for one in rig.messages if isinstance(one, Data | CaughtUp)]
    assert kinds == [Data, CaughtUp]


def test_the_rest_of_a_rotated_file_comes_before_the_files_that_followed_it(begun, make_rig, append, log):
    """A daemon that was killed reads on in the order in which the lines were written."""
    first, began = begun(30, f"{log}*"), log.stat().st_mtime
    append(log, LINES[30])
    log.rename(log.with_name("main.log.2"))
    log.with_name("main.log.1").write_bytes(text(31, 33))
    log.write_bytes(text(33, 35))
    for number, name in enumerate(("main.log.2", "main.log.1", "main.log"), 1):
        os.utime(log.with_name(name), (began + number, began + number))
    second = make_rig(f"{log}*", after=first)
    second.settle(5)
    assert b"".join(one.data for one in second.messages if isinstance(one, Data)) == text(30, 35)
