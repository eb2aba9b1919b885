"""Random histories of a log against a model: what was written is delivered once, unless it was destroyed."""

import errno
import os
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from megatron_monitor.follow.messages import Position
from tests.conftest import examples

SAFE = ["append", "append", "append", "partial", "rename", "rename", "late", "swap back", "poll", "poll", "wait"]
SAFE += ["resume", "rotate down", "blind", "blind", "size lag", "link"]
CUTTING = [*SAFE, "state lost", "same inode", "truncate", "copytruncate", "copytruncate larger", "delete", "recreate"]


class History:
    """A log that grows, is rotated and cut, and a reader of it that is restarted now and then."""

    def __init__(self, rig_class, directory: Path, file_system: str, pattern: str, max_open_files: int) -> None:
        self.rig_class = rig_class
        self.log = directory / "log"
        self.log.touch()
        self.count = self.rotations = 0
        self.destroyed: set[bytes] = set()
        self.unread: list[bytes] = []
        self.options = {"file_system": file_system, "max_open_files": max_open_files}
        self.pattern = str(directory / pattern)
        self.delivered: list[bytes] = []
        self.written: list[bytes] = []
        self.half = b""
        self.positions: dict[str, Position] = {}
        self.rig = self._rig({})

    def _rig(self, resume):
        return self.rig_class(self.pattern, resume=resume, **self.options)

    def line(self) -> bytes:
        """One that no other equals."""
        self.count += 1
        self.written.append(b"%05d the text of one line among many others of its kind" % self.count)
        return self.written[-1]

    def write(self, path: Path, data: bytes) -> None:
        """As a logger does."""
        with path.open("ab") as file:
            file.write(data)

    def finish(self) -> None:
        """End the line that was left half, so that a rotation never cuts one."""
        if self.half:
            self.write(self.log, self.half + b"\n")
            self.half = b""

    def poll(self, seconds: float = 0.5) -> None:
        """Read."""
        self.rig.poll(seconds)

    def lines(self) -> list[bytes]:
        """What was delivered, before the restarts too."""
        now = [line for source in self.rig.contents for text in self.rig.texts(source) for line in text.split(b"\n")]
        return self.delivered + now

    def lose(self) -> None:
        """What the log holds is about to be destroyed."""
        held = set(self.log.read_bytes().split(b"\n")) if self.log.exists() else set()
        self.destroyed |= held

    def act(self, action: str, amount: int) -> None:
        """One step."""
        getattr(self, "do_" + action.replace(" ", "_"))(amount)

    def do_append(self, amount):
        """Whole lines."""
        self.finish()
        self.write(self.log, b"".join(self.line() + b"\n" for _ in range(amount)))

    def do_partial(self, amount):
        """A line without its end."""
        self.finish()
        line = self.line()
        cut = 1 + amount % (len(line) - 1)
        self.write(self.log, line[:cut])
        self.half = line[cut:]

    def do_poll(self, amount):
        """One look."""
        self.poll()

    def do_wait(self, amount):
        """Several looks."""
        for _ in range(amount * 2):
            self.poll(1.0)

    def do_rename(self, amount):
        """Rotation as logrotate does it; a rotated file that nobody has seen yet is given time."""
        self.finish()
        self.fill()
        self.rotations += 1
        if self.log.exists():
            self.log.rename(self.log.with_name(f"log.{self.rotations}"))
        self.write(self.log, b"".join(self.line() + b"\n" for _ in range(amount)))

    def do_late(self, amount):
        """The writer has not moved over to the new file yet."""
        if self.half or not self.log.exists():
            return
        self.fill()
        self.rotations += 1
        old = self.log.rename(self.log.with_name(f"log.{self.rotations}"))
        self.poll()
        self.write(old, self.line() + b"\n")
        self.write(self.log, self.line() + b"\n")

    def do_swap_back(self, amount):
        """Moved away for a moment, as an editor or a server does."""
        if self.log.exists():
            away = self.log.rename(self.log.with_name("away"))
            self.poll()
            away.rename(self.log)

    def do_truncate(self, amount):
        """Cut to nothing."""
        self.finish()
        self.lose()
        self.log.write_bytes(b"")

    def do_copytruncate(self, amount):
        """Cut, and filled with a few lines."""
        self.finish()
        self.lose()
        self.log.write_bytes(b"".join(self.line() + b"\n" for _ in range(amount)))

    def do_copytruncate_larger(self, amount):
        """Cut, and filled to more than it held."""
        self.finish()
        self.lose()
        size = self.log.stat().st_size
        with self.log.open("wb") as file:
            while file.tell() <= size:
                file.write(self.line() + b"\n")

    def do_delete(self, amount):
        """No log for now."""
        self.finish()
        self.lose()
        self.log.unlink(missing_ok=True)

    def do_recreate(self, amount):
        """Another file of the same name."""
        self.do_delete(amount)
        self.write(self.log, self.line() + b"\n")

    def do_resume(self, amount):
        """The daemon is killed: the state file holds the last whole line of some moment before."""
        encoded = msgspec.json.encode(self.rig.positions(back=amount % 2))
        positions = msgspec.json.decode(encoded, type=dict[str, Position])
        self.positions |= positions  # a source that was not opened since keeps its own
        for source, texts in ((source, self.rig.texts(source)) for source in self.rig.contents):
            kept = positions[source].start - self.rig.starts[source]
            self.delivered += [line for text in [*texts[:-1], texts[-1][:kept]] for line in text.split(b"\n")]
        self.rig.reader.close()
        self.rig = self._rig(self.positions)

    def do_rotate_down(self, amount):
        """A rotation between the death of one daemon and the start of the next."""
        self.finish()
        self.fill()
        self.write(self.log, self.line() + b"\n")
        self.rotations += 1
        self.log.rename(self.log.with_name(f"log.{self.rotations}"))
        self.write(self.log, b"".join(self.line() + b"\n" for _ in range(amount)))
        self.do_resume(amount)

    def do_blind(self, amount):
        """The server answers with an error for a while, permission included; the log grows meanwhile."""
        errors = [errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT, errno.ENOENT]
        calls = [("stat",), ("open",), ("pread",), ("stat", "open", "pread", "scandir"), ("scandir",)][amount % 5]
        error = errors[(self.count + amount) % 5]
        if error == errno.ENOENT:  # one name or all of them; a directory that shows it as absent is believed in time
            calls = ("stat", "open", "scandir")
        self.rig.os.fail(error, *calls, path="" if error != errno.ENOENT else str(self.log.parent))
        for _ in range(amount):
            self.poll()
        self.do_append(1)
        self.poll()
        self.rig.os.heal()
        for _ in range(20):  # longer than any back-off
            self.poll(2.0)

    def do_size_lag(self, amount):
        """A client's attribute cache shows an old size."""
        self.do_append(amount)
        self.rig.os.doctor = lambda found: os.stat_result((*found[:6], min(found[6], 7), *found[7:]))
        for _ in range(amount):
            self.poll()
        self.rig.os.doctor = None
        self.poll()

    def do_link(self, amount):
        """The name becomes a link to another job's file."""
        self.finish()
        self.fill()
        self.rotations += 1
        self.log.rename(self.log.with_name(f"log.{self.rotations}"))
        target = self.log.with_name(f"job-{self.rotations}.text")
        self.write(target, b"".join(self.line() + b"\n" for _ in range(amount)))
        self.log.symlink_to(target)
        self.settle()
        target.replace(self.log)  # and a file again: the same one, moved over the link

    def do_state_lost(self, amount):
        """The state file is gone, damaged or of another version: everything that is still there is read anew."""
        self.finish()
        there = b"".join(path.read_bytes() for path in self.log.parent.iterdir() if self.watched(path))
        self.destroyed.update(line for line in self.written if line not in there)
        self.delivered, self.positions = [], {}
        self.rig.reader.close()
        self.rig = self._rig({})
        for _ in range(4):
            self.settle()

    def watched(self, path: Path) -> bool:
        """Does the pattern name it?"""
        return path.match(self.pattern)

    def do_same_inode(self, amount):
        """Deleted, and a new file that may get the old one's inode."""
        self.finish()
        self.lose()
        inode = self.log.stat().st_ino if self.log.exists() else 0
        self.log.unlink(missing_ok=True)
        self.settle()
        made = []
        for number in range(20):
            made.append(self.log.with_name(f"other-{number}"))
            made[-1].touch()
            if made[-1].stat().st_ino == inode:
                break
        self.write(made[-1], self.line() + b"\n")
        made.pop().rename(self.log)
        for one in made:
            one.unlink()

    def fill(self) -> None:
        """Before a rotation: an empty file is not begun while its predecessor has a name, nor is one not yet seen."""
        if not self.log.stat().st_size:
            self.write(self.log, self.line() + b"\n")
        self.settle()

    def settle(self) -> None:
        """Give every patience of the reader its time."""
        for _ in range(14):
            self.poll()

    def check(self) -> None:
        """Read everything, then compare."""
        self.finish()
        for _ in range(4):
            self.settle()
            self.poll(10.0)
        whole = [line for line in self.lines() if len(line) == len(b"%05d" % 0) + 51]
        assert sorted(set(whole)) == sorted(whole), "delivered twice"
        assert set(self.written) - self.destroyed <= set(whole), "lost"
        assert set(whole) <= set(self.written)
        self.rig.reader.close()
        assert not self.rig.os.paths


def histories(actions):
    """Up to 14 steps with an amount each."""
    return st.lists(st.tuples(st.sampled_from(actions), st.integers(1, 5)), max_size=14)


def run(rig_class, actions, file_system, pattern, max_open_files=64):
    """One history in a directory of its own."""
    with tempfile.TemporaryDirectory() as directory:
        history = History(rig_class, Path(directory), file_system, pattern, max_open_files)
        for action, amount in actions:
            if not history.log.exists() and action != "append":
                history.write(history.log, b"")
            history.act(action, amount)
        history.check()


@pytest.mark.parametrize("pattern", ["log", "log*"])
@pytest.mark.parametrize("file_system", ["ext4", "nfs"])
@given(actions=histories(SAFE), max_open_files=st.sampled_from([1, 64]))
@example(actions=[("append", 1), ("append", 1), ("rotate down", 1), ("blind", 1)], max_open_files=64)
@example(actions=[("rename", 3), ("blind", 2)], max_open_files=64)
@example(actions=[("append", 5), ("wait", 2), ("rotate down", 3), ("wait", 2)], max_open_files=64)
@example(actions=[("append", 5), ("partial", 9), ("wait", 2), ("resume", 2), ("append", 2)], max_open_files=64)
@example(actions=[("append", 5), ("wait", 2), ("size lag", 3), ("append", 1)], max_open_files=64)
@example(
    actions=[("append", 1), ("append", 4), ("poll", 1), ("resume", 1), ("blind", 4), ("rename", 1), ("size lag", 3)],
    max_open_files=64,
)
@examples(50)
def test_without_truncation_every_line_once(rig_class, file_system, pattern, actions, max_open_files):
    """Appends, rotations, late writes, restarts: every line that was written is delivered exactly once."""
    run(rig_class, actions, file_system, pattern, max_open_files)


@pytest.mark.parametrize("file_system", ["ext4", "nfs"])
@given(actions=histories(CUTTING))
@example(actions=[("append", 4), ("wait", 1), ("recreate", 1), ("append", 3)])
@example(actions=[("link", 1), ("resume", 1), ("same inode", 1), ("size lag", 1), ("same inode", 1), ("resume", 1)])
@examples(80)
def test_with_truncation_only_what_was_destroyed_is_lost(rig_class, file_system, actions):
    """Cuts and deletions as well: nothing comes twice, and nothing is lost but what was destroyed."""
    run(rig_class, actions, file_system, "log")


def test_the_model_can_fail(rig_class):
    """A line that is taken away behind the reader's back is noticed, so the checks above check something."""
    with tempfile.TemporaryDirectory() as directory:
        history = History(rig_class, Path(directory), "ext4", "log", 64)
        history.act("append", 3)
        os.truncate(history.log, 0)
        with pytest.raises(AssertionError, match="lost"):
            history.check()
        history.rig.reader.close()
