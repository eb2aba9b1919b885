"""Rotation by rename and by copytruncate, once or several times between two looks, with copies that the pattern may
match: every line is delivered once, in the order in which it was written.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.follow.messages import CaughtUp, Data
from tests.conftest import examples
from tests.monitor.follow.test_model import History

ACTIONS = ["append", "append", "poll", "poll", "wait", "resume", "rename", "rename twice", "cut", "cut twice"]
ACTIONS += ["cut late", "backup", "cut while down", "cut twice while down"]


class Rotated(History):
    """Whatever is rotated away stays beside the log. Its first lines are the same each time, as a training's are."""

    began, ticks = 1_700_000_000.0, 0
    banner = b"".join(b"%05d a line of the banner that every launch prints" % number + b"\n" for number in range(320))

    def begin(self) -> None:
        """As a new launch does."""
        self.write(self.log, self.banner)
        self.do_append(2)

    def write(self, path: Path, data: bytes) -> None:
        """And the stamps tick, as they do where days lie between two rotations."""
        super().write(path, data)
        self.tick(path)

    def tick(self, path: Path) -> None:
        """It was written last."""
        self.ticks += 1
        os.utime(path, (self.began + self.ticks, self.began + self.ticks))

    def copy(self, name: Path) -> None:
        """As `cp` does."""
        shutil.copyfile(self.log, name)
        self.tick(name)

    def new_name(self) -> Path:
        """Under which the next rotated file lies."""
        self.rotations += 1
        suffix = [f".{self.rotations}", f"-2026112{self.rotations}", f".copy {self.rotations}"][self.rotations % 3]
        return self.log.with_name(self.log.name + suffix)

    def read_all(self) -> None:
        """A second or two for each file that came and went unread."""
        for _ in range(10):
            self.settle()
            if set(filter(None, self.written)) <= set(self.lines()):
                return
        raise AssertionError("not read")

    def do_rename(self, amount):
        """One rotation."""
        self.log.rename(self.log.with_name(f"{self.log.name}.{self.rotations}-{amount}"))
        self.rotations += 1
        self.begin()

    def do_rename_twice(self, amount):
        """Faster than anybody looks."""
        self.do_rename(amount)
        self.do_rename(amount)

    def do_cut(self, amount):
        """Copytruncate with lines that nobody had read."""
        self.do_append(amount)
        self.copy(self.new_name())
        self.log.write_bytes(b"")
        self.begin()

    def do_cut_twice(self, amount):
        """Faster than anybody looks: the second copy is of what never was read."""
        self.do_cut(amount)
        self.do_cut(amount)

    def do_cut_late(self, amount):
        """The writer goes on between the copy and the cut, and these lines are read before they are destroyed."""
        self.read_all()
        self.copy(self.new_name())
        self.do_append(amount)
        self.read_all()
        self.log.write_bytes(b"")
        self.begin()
        self.settle()

    def do_backup(self, amount):
        """A copy and no cut."""
        self.settle()
        self.copy(self.new_name())
        self.settle()
        self.do_append(amount)

    def do_cut_while_down(self, amount):
        """Between the death of one daemon and the start of the next."""
        self.do_cut(amount)
        self.do_resume(0)

    def do_cut_twice_while_down(self, amount):
        """What stood there between the two lies in a copy of what nobody had read."""
        self.do_cut_twice(amount)
        self.do_resume(0)

    def check(self) -> None:
        """Every line once, and in order."""
        for _ in range(4):
            self.settle()
            self.poll(10.0)
        wanted = {line for line in self.written if line}
        got = [line for line in self.lines() if line in wanted]
        assert len(got) == len(set(got)), "delivered twice"
        assert wanted == set(got), "lost"
        live = [line for one in self.rig.messages if isinstance(one, Data) for line in one.data.split(b"\n")]
        live = [line for line in live if line in wanted]
        assert live == sorted(live), "out of order"
        self.rig.reader.close()


def run(rig_class, actions, file_system, pattern):
    """One history in a directory of its own."""
    with tempfile.TemporaryDirectory() as directory:
        history = Rotated(rig_class, Path(directory), file_system, pattern, 64)
        history.begin()
        history.settle()
        for action, amount in actions:
            history.act(action, amount)
        history.check()


@pytest.mark.parametrize("pattern", ["log", "log*"])
@pytest.mark.parametrize("file_system", ["ext4", "nfs"])
@given(actions=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(1, 5)), max_size=8))
@examples(12)
def test_every_line_once_and_in_order(rig_class, file_system, pattern, actions):
    """Random histories."""
    run(rig_class, actions, file_system, pattern)


def test_a_copy_is_found_among_hundreds(make_rig, tmp_path):
    """Copytruncate, 150 times over, with lines that nobody had read."""
    log, written = tmp_path / "main.log", []
    rig = make_rig(tmp_path / "main.log*")
    for rotation in range(150):
        written += [
            b"%04d the line of a log that is rotated often, with text enough to prove it" % rotation,
            b"%d" % rotation,
        ]
        log.write_bytes(b"\n".join(written[-2:]) + b"\n")
        if rotation % 2:
            rig.poll()
        shutil.copyfile(log, tmp_path / f"main.log.{rotation}")
        log.write_bytes(b"")
        rig.poll()
        rig.poll(1.0)
    rig.settle(12)
    got = [line for source in rig.contents for text in rig.texts(source) for line in text.split(b"\n") if line]
    assert sorted(got) == sorted(written)


@pytest.mark.parametrize("reused", [False, True])
def test_two_rotations_while_nobody_looked_and_one_name_to_keep(make_rig, tmp_path, reused):
    """The file that was read is written over by the second, the log may have its inode again: what stood there between
    the two is read first.
    """
    log, old = tmp_path / "main.log", tmp_path / "main.log.1"
    lines = [b"%04d a line of a log that is rotated often, with text enough to prove it\n" % n for n in range(9)]
    now = os.stat(tmp_path).st_mtime
    log.write_bytes(b"".join(lines[:3]))
    os.utime(log, (now - 60.0, now - 60.0))
    rig = make_rig(log)
    rig.settle()
    inode = log.stat().st_ino
    rig.reader.close()
    log.rename(old)
    log.write_bytes(b"".join(lines[3:6]))
    os.utime(log, (now - 30.0, now - 30.0))
    if reused:
        between = log.rename(tmp_path / "between")
        old.rename(log)  # as if its inode had been free again
        between.rename(old)
        log.write_bytes(b"".join(lines[6:]))
    else:
        log.rename(old)
        (tmp_path / "other").write_bytes(b"takes the inode that became free\n")
        log.write_bytes(b"".join(lines[6:]))
    assert (log.stat().st_ino == inode) is reused
    rig = make_rig(log, after=rig)
    rig.settle(12)
    assert b"".join(rig.texts(log)) == b"".join(lines[3:])


def test_a_rotated_file_may_have_the_inode_of_one_that_lay_there_before(make_rig, tmp_path):
    """Two rotations between two looks, as a mount that answers again shows them: each name is written over."""
    log, old = tmp_path / "main.log", tmp_path / "main.log.1"
    lines = [b"%04d a line of a log that is rotated often, with text enough to prove it\n" % n for n in range(9)]
    now = os.stat(tmp_path).st_mtime
    old.write_bytes(b"what was printed before anybody looked, with text enough to prove it\n")
    os.utime(old, (now - 90.0, now - 90.0))
    log.write_bytes(b"".join(lines[:2]))
    rig = make_rig(log)
    rig.settle()
    with log.open("ab") as stream:
        stream.write(lines[2])
    os.utime(log, (now - 60.0, now - 60.0))
    rig.settle()
    inode, read = old.stat().st_ino, log.rename(tmp_path / "read")
    old.rename(log)  # as if its inode had been free again
    log.write_bytes(b"".join(lines[3:6]))
    os.utime(log, (now - 30.0, now - 30.0))
    log.rename(old)
    read.unlink()
    log.write_bytes(b"".join(lines[6:]))
    assert old.stat().st_ino == inode
    rig.settle(12)
    assert b"".join(rig.texts(log)) == b"".join(lines)


@pytest.mark.parametrize("unread", [0, 2])
@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("down", [True, False])
def test_what_stood_between_two_cuts_is_read_from_its_copy(make_rig, tmp_path, down, times, unread):
    """As logrotate and `cp` leave them: a copy's times are those of the copying, until it gets its next name."""
    log, other = tmp_path / "main.log", tmp_path / "main_7.log"
    lines = [b"%04d a line of a log that is rotated often, with text enough to prove it\n" % n for n in range(40)]
    log.write_bytes(b"".join(lines[:9]))
    rig = make_rig(log)
    rig.settle()
    if down:
        rig.reader.close()
    other.write_bytes(b"the log of another training, which nobody asked to be read\n")
    end = 9 + unread
    with log.open("ab") as stream:
        stream.write(b"".join(lines[9:end]))
    for _ in range(times):
        for number in range(times, 0, -1):
            with suppress(FileNotFoundError):
                (tmp_path / f"main.log.{number}").rename(tmp_path / f"main.log.{number + 1}")
        shutil.copyfile(log, tmp_path / "main.log.1")
        log.write_bytes(b"".join(lines[end : end + 3]))
        end += 3
    if down:
        rig = make_rig(log, after=rig)
    rig.settle(12)
    assert b"".join(rig.texts(log)) == b"".join(lines[9 * down : end])


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
