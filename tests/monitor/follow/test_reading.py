"""Holes, reserved blocks, proofs, backoff: the pure parts."""

import os

from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.follow.content import Content, digest
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
    position = data[1].content.position((10 << 30) + 6, (), 0.0)
    assert position.tail_bytes == 6
    again = make_rig(log, resume={str(log): position})
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
def test_a_proof_is_the_same_in_any_pieces(chunks, data):
    """In any chunking, a position is proved by the hashes of the file, wherever it begins."""
    content, text = Content(1, 2), b"".join(chunks)
    for chunk in chunks:
        content = content.advance(content.offset, chunk)
    start = data.draw(st.integers(0, len(text)))
    position, mark = content.position(start, (), 0.0), Content(1, 2).advance(0, text).fingerprint()
    assert position.start == start
    assert all(getattr(position, name) == getattr(mark, name) for name in mark.__struct_fields__ if name != "unread")


def test_a_proof_over_a_resume_and_a_rotation():
    """Until something is read the old proof holds; then the head grows. Of files left behind the last 16,384 stay."""
    old = Position(0, 0, 4, digest(b"abc\n"), 9, 4, "", 5)
    resumed = Content(1, 2, 4, b"abc\n", b"abc\n", proved=old)
    assert resumed.position(4, (), 7.0) == Position(1, 2, 4, digest(b"abc\n"), 9, 4, "", 5, written=7.0)
    position = resumed.advance(4, b"def\n").position(8, (), 0.0)
    assert (position.head_hash, position.tail_hash) == (digest(b"abc\ndef\n"), digest(b"abc\ndef\n"))
    former: tuple[Fingerprint, ...] = ()
    for inode in range(16_386):
        former = Restarted("s", "rotated", "", left=Fingerprint(1, inode, 0, "", 0, 0, "")).former(former)
    assert [one.inode for one in former] == list(range(2, 16_386))


def test_a_proof_over_a_hole():
    """A hole ends head and tail: neither proves what may still be filled."""
    position = Content().advance(0, b"abc\n").advance(5000, b"def\n").position(5004, (), 0.0)
    assert (position.head_hash, position.tail_hash) == (digest(b"abc\n"), digest(b"def\n"))


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
