"""Holes, reserved blocks, the Marker, backoff: the pure parts."""

import os

from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.follow.content import Content, digest
from megatron_monitor.follow.marker import Marker
from megatron_monitor.follow.messages import Data, Fingerprint, Opened, Position, Restarted
from megatron_monitor.follow.patterns import looks_binary


def test_nuls_before_text_are_passed_on(make_rig, tmp_path):
    """A hole that a writer without O_APPEND left after copytruncate stays in the offsets."""
    log = tmp_path / "log"
    log.write_bytes(b"one\n" * 100)
    rig = make_rig(log)
    rig.poll()
    os.truncate(log, 0)
    rig.poll()
    with log.open("r+b") as file:
        file.seek(400)
        file.write(b"two\n")
    rig.settle(2)
    assert rig.texts(log) == [b"one\n" * 100, bytes(400) + b"two\n"]
    assert rig.positions()[str(log)].head_bytes == 0


def test_sparse_ten_gigabytes(make_rig, tmp_path):
    """A hole costs a few calls whatever its size, and the offset jumps over it."""
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.write(b"before\n")
        file.seek(10 << 30)
        file.write(b"after\n")
    rig = make_rig(log)
    data = [message for message in rig.poll() if isinstance(message, Data)]
    assert [bytes(one.data).strip(b"\0") for one in data] == [b"before\n", b"after\n"]
    assert data[1].offset + len(data[1].data) == (10 << 30) + 6
    assert rig.os.calls["pread"] < 20
    marker = Marker()
    for message in rig.messages:
        if isinstance(message, Opened | Data):
            marker.feed(message)
    assert marker.position((10 << 30) + 6).tail_bytes == 6
    again = make_rig(log, resume={str(log): marker.position((10 << 30) + 6)})
    assert again.poll()[0].resumed


def test_real_zeros_are_looked_through_in_slices(make_rig, tmp_path):
    """Megabytes of written zeros are skipped, a few blocks a pass."""
    log = tmp_path / "log"
    log.write_bytes(b"before\n" + bytes(40_000) + b"after\n")
    rig = make_rig(log, read_bytes=1000)
    rig.poll()
    assert rig.text(log) == b"before\n" + bytes(40_000) + b"after\n"


def test_pages_that_have_not_arrived_are_waited_for(make_rig, tmp_path):
    """On a network mount NULs up to a page boundary may be filled: the bytes arrive in order, none is lost."""
    page = b"x" * 4095 + b"\n"
    log = tmp_path / "log"
    log.write_bytes(page + bytes(4096) + page)
    rig = make_rig(log, file_system="lustre")
    rig.settle(1)
    assert rig.text(log) == page
    log.write_bytes(page * 3)
    rig.settle(1)
    assert rig.text(log) == page * 3


def test_a_hole_that_stays_is_passed(make_rig, kinds, tmp_path):
    """After two seconds a page of NULs is a fact; until then the source has not caught up."""
    page = b"x" * 4095 + b"\n"
    log = tmp_path / "log"
    log.write_bytes(page + bytes(4096) + page)
    rig = make_rig(log, file_system="lustre")
    assert kinds(rig.settle(1)) == ["Opened", "Data"]
    assert kinds(rig.settle(2)) == ["Data", "CaughtUp"]
    assert rig.text(log) == page + bytes(4096) + page


@given(st.lists(st.binary(min_size=1, max_size=400), min_size=1, max_size=30), st.data())
def test_marker_agrees_with_the_follower(chunks, data):
    """In any chunking, a position is proved by the hashes that a reader of the file computes, wherever it begins."""
    text = b"".join(chunks)
    marker = Marker()
    marker.feed(Opened("s", "/s", None, 0, 0.0, False, device=1, inode=2))
    offset = 0
    for chunk in chunks:
        marker.feed(Data("s", offset, chunk, 0.0, 0.0, 0))
        offset += len(chunk)
    content = Content(1, 2)
    content.advance(0, text)
    start = data.draw(st.integers(0, offset))
    position, mark = marker.position(start), content.fingerprint()
    assert position.start == start
    assert all(getattr(position, name) == getattr(mark, name) for name in mark.__struct_fields__ if name != "unread")


def test_marker_over_a_resume_and_a_rotation():
    """The head goes on growing after a resume, and files left behind are listed, the last 16,384."""
    marker = Marker()
    marker.feed(Opened("s", "/s", None, 0, 0.0, True, offset=4, device=1, inode=2, head=b"abc\n", tail=b"abc\n"))
    marker.feed(Data("s", 4, b"def\n", 0.0, 0.0, 0))
    assert marker.position(8).head_hash == digest(b"abc\ndef\n")
    assert marker.position(8).tail_hash == digest(b"abc\ndef\n")
    former = [Fingerprint(1, inode, 0, "", 0, 0, "") for inode in range(16_386)]
    marker.feed(Opened("s", "/s", Position(1, 2, 0, "", 0, 0, "", former=tuple(former[:16_384])), 0, 0.0, True))
    for one in former[-2:]:
        marker.feed(Restarted("s", "rotated", "", 1, one.inode, former=one))
    assert [former.inode for former in marker.position(0).former] == list(range(2, 16_386))
    assert marker.position(0).inode == 16_385


def test_marker_over_a_hole():
    """A hole ends head and tail: neither proves what may still be filled."""
    marker = Marker()
    marker.feed(Opened("s", "/s", None, 0, 0.0, False))
    marker.feed(Data("s", 0, b"abc\n", 0.0, 0.0, 0))
    marker.feed(Data("s", 5000, b"def\n", 0.0, 0.0, 0))
    assert marker.position(5004).tail_hash == digest(b"def\n")
    assert marker.position(5004).head_hash == digest(b"abc\n")


def test_looks_binary():
    """Terminal control and holes are text; other control characters and known magic numbers are not."""
    assert not looks_binary(b"")
    assert not looks_binary(bytes(100) + b"\x1b[31mred\x1b[0m\r\n\t\b")
    assert not looks_binary("naïve café ✓\n".encode() + b"\xff\xfe")
    assert looks_binary(b"PK\x03\x04text")
    assert looks_binary(b"\x80\x02\x05\x01\x03" * 20)


def test_what_moved_last_is_read_first(make_rig, append, tmp_path):
    """The newest of an archive first, in slices, between which those are looked at that move; each once, and a restart
    reads nothing again.
    """
    rig = make_rig(tmp_path / "*.log", poll_interval=0.1)
    ages = {"a": 5000, "b": 10, "c": 2000, "d": 3000, "e": 20}
    for name, age in ages.items():
        log = tmp_path / f"{name}.log"
        log.write_bytes(b"one of %s\n" % name.encode())
        os.utime(log, (rig.clock.wall() - age, rig.clock.wall() - age))

    def slow(status: os.stat_result) -> os.stat_result:
        rig.clock.advance(0.12)
        return status

    rig.os.doctor = slow
    first = rig.poll()
    assert rig.reader.unopened > 0
    assert rig.reader.has_more
    append(tmp_path / "b.log", b"two\n")
    passes = [first, *(rig.poll(all_files=False) for _ in range(8))]
    opened = [message.source[-5] for found in passes for message in found if isinstance(message, Opened)]
    assert opened == ["e", "b", "c", "d", "a"]  # of files that may belong together the one written first
    came = [
        (message.source[-5], bytes(message.data)) for found in passes for message in found if hasattr(message, "data")
    ]
    assert came.index(("b", b"two\n")) < came.index(("a", b"one of a\n"))
    assert len(came) == 6
    assert rig.reader.unopened == 0
    again = make_rig(tmp_path / "*.log", resume=rig.positions(), clock=rig.clock)
    found = [message for _ in range(9) for message in again.poll(all_files=False)]
    assert [message.resumed for message in found if isinstance(message, Opened)] == [True] * 5
    assert not [message for message in found if isinstance(message, Data)]
