"""A reader over a temporary directory, a clock that stands still, and system calls that fail when told to."""

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from megatron_monitor.follow.content import Content
from megatron_monitor.follow.messages import Data, Fingerprint, Message, Opened, Position, Restarted, Scanned
from megatron_monitor.follow.mounts import Mount, Mounts
from megatron_monitor.follow.os_layer import Entry, OsLayer
from megatron_monitor.follow.patterns import WatchedPath
from megatron_monitor.follow.readers import MountReader, Readers
from megatron_monitor.follow.settings import FollowSettings
from tests.clock import ManualClock

Fault = Callable[[str], OSError | None]
LINES = [b"%06d iteration line with enough text to be no accident\n" % number for number in range(200)]


def text(start: int, stop: int) -> bytes:
    """Some of the lines."""
    return b"".join(LINES[start:stop])


def stored(positions: Mapping[str, Position]) -> dict[str, Position]:
    """Through the state file's encoding and back."""
    return msgspec.json.decode(msgspec.json.encode(positions), type=dict[str, Position])


class FaultyOs(OsLayer):
    """The real calls, after `faults[call](path)` had its say. Counts calls; can show attributes that are not true."""

    def __init__(self) -> None:
        self.faults: dict[str, Fault] = {}
        self.calls: dict[str, int] = {}
        self.paths: dict[int, str] = {}
        self.doctor: Callable[[os.stat_result], os.stat_result] | None = None
        self.limit = 10**6

    def fail(self, error: int, *calls: str, path: str = "") -> None:
        """These calls fail with this error on paths that hold `path`."""
        for call in calls:
            self.faults[call] = lambda where: OSError(error, os.strerror(error), where) if path in where else None

    def heal(self) -> None:
        """Nothing fails any more."""
        self.faults.clear()
        self.doctor = None

    def _ask(self, call: str, path: str) -> None:
        self.calls[call] = self.calls.get(call, 0) + 1
        error = self.faults[call](path) if call in self.faults else None
        try:
            if error is not None:
                raise error
        finally:
            del error  # else it holds this frame, which holds it, and with them the file of whoever asked

    def stat(self, path: str) -> os.stat_result:
        """Attributes, doctored."""
        self._ask("stat", path)
        found = super().stat(path)
        return self.doctor(found) if self.doctor else found

    def open(self, path: str) -> int:
        """Refuses beyond the limit."""
        self._ask("open", path)
        if len(self.paths) >= self.limit:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        descriptor = super().open(path)
        self.paths[descriptor] = path
        return descriptor

    def close(self, descriptor: int) -> None:
        """Forgets the path."""
        self.paths.pop(descriptor)
        super().close(descriptor)

    def fstat(self, descriptor: int) -> os.stat_result:
        """Attributes, doctored."""
        self._ask("fstat", self.paths[descriptor])
        found = super().fstat(descriptor)
        return self.doctor(found) if self.doctor else found

    def pread(self, descriptor: int, count: int, offset: int) -> bytes:
        """May fail by the path that was opened."""
        self._ask("pread", self.paths[descriptor])
        return super().pread(descriptor, count, offset)

    def scandir(self, path: str) -> Iterator[Entry]:
        """May fail."""
        self._ask("scandir", path)
        return super().scandir(path)


def reader_of(
    *patterns: WatchedPath | str,
    mounts: str | Mounts = "ext4",
    os_layer: OsLayer | None = None,
    resume: Mapping[str, Position] | None = None,
    **settings: Any,
) -> MountReader:
    """The only reader of what these patterns name; `mounts`: a table, or the type of the only file system."""
    watches = [WatchedPath(one) if isinstance(one, str) else one for one in patterns]
    table = Mounts([Mount("/", mounts)]) if isinstance(mounts, str) else mounts
    readers = Readers(resume or {}, FollowSettings(**settings), os_layer or OsLayer())
    (reader,) = readers.sync_readers(watches, table, os.path.realpath)
    return reader


class Rig:
    """Polls a MountReader and keeps what each source delivered: one bytes object per content."""

    def __init__(
        self,
        *patterns: WatchedPath | str,
        resume: Mapping[str, Position] | None = None,
        file_system: str = "ext4",
        os_layer: FaultyOs | None = None,
        clock: ManualClock | None = None,
        **settings: Any,
    ) -> None:
        self.clock = clock or ManualClock()
        self.os = os_layer or FaultyOs()
        self.reader = reader_of(*patterns, mounts=file_system, os_layer=self.os, resume=resume, **settings)
        self.saved = resume or {}
        self.messages: list[Message] = []
        self.contents: dict[str, list[bytearray]] = {}
        self.read: dict[str, Content] = {}
        self.former: dict[str, tuple[Fingerprint, ...]] = {}
        self.written: dict[str, float] = {}
        self.starts: dict[str, int] = {}

    def poll(self, seconds: float = 0.5, *, all_files: bool = True) -> list[Message]:
        """Let time pass, then read whatever there is. Gives the new messages without the statistics."""
        self.clock.advance(seconds)
        self.reader.end_pass(self.clock.monotonic(), 0.0)  # the pause was meant
        new: list[Message] = []
        for _ in range(1000):
            new += self.reader.poll(self.clock, all_files=all_files)
            all_files = False
            if not any(source.has_more for source in self.reader.sources.values()):
                break
        for message in new:
            self._keep(message)
        self.messages.extend(new)
        return [message for message in new if not isinstance(message, Scanned)]

    def settle(self, seconds: float = 4.0) -> list[Message]:
        """Poll every half second for a while."""
        return [message for _ in range(int(seconds * 2)) for message in self.poll()]

    def text(self, path: Path | str) -> bytes:
        """What the source delivered of its present content."""
        return bytes(self.contents[str(path)][-1])

    def texts(self, path: Path | str) -> list[bytes]:
        """What the source delivered, content by content."""
        return [bytes(one) for one in self.contents.get(str(path), [])]

    def positions(self, back: int = 0) -> dict[str, Position]:
        """As the state file would hold them: each source at its last whole line, or `back` lines before."""
        found = {}
        for source, content in self.read.items():
            text, start = self.contents[source][-1], self.starts[source]
            end = len(text)
            for _ in range(back + 1):
                end = text.rfind(b"\n", 0, max(0, end - (end != len(text)))) + 1
            found[source] = content.position(start + end, self.former[source], self.written[source])
        return found

    def _keep(self, message: Message) -> None:
        if isinstance(message, Opened | Restarted):
            self.contents.setdefault(message.source, []).append(bytearray())
            self.starts[message.source] = message.offset if isinstance(message, Opened) else 0
            if message.source not in self.former:
                known = self.saved.get(message.source)
                self.former[message.source] = () if known is None else known.former
            if isinstance(message, Restarted):
                self.former[message.source] = message.former(self.former[message.source])
            else:
                self.written[message.source] = message.mtime
        elif isinstance(message, Data):
            assert message.data
            text = self.contents[message.source][-1]
            assert message.offset >= self.starts[message.source] + len(text), "delivered twice"
            hole = message.offset - self.starts[message.source] - len(text)
            if hole > 1 << 20:  # not to be filled in
                self.starts[message.source] += hole
                hole = 0
            text.extend(bytes(hole))
            text.extend(message.data)
            self.written[message.source] = message.mtime
        if isinstance(message, Opened | Restarted | Data) and message.content is not None:
            self.read[message.source] = message.content


@pytest.fixture(scope="session")
def rig_class() -> type[Rig]:
    """For tests that build their own."""
    return Rig


@pytest.fixture(scope="session")
def kinds() -> Callable[[list[Message]], list[str]]:
    """The names of messages, in order."""
    return lambda messages: [type(message).__name__ for message in messages]


@pytest.fixture(scope="session")
def append() -> Callable[[Path, bytes], None]:
    """Write as a logger does."""

    def write(path: Path, data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data)

    return write


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    """Builds rigs and closes their files."""
    rigs: list[Rig] = []

    def make(*patterns: WatchedPath | str | Path, after: Rig | None = None, **options: Any) -> Rig:
        """`after`: a daemon that was killed, whose state file the new one has."""
        if after is not None:
            options["resume"] = stored(after.positions())
        rigs.append(Rig(*(one if isinstance(one, WatchedPath) else str(one) for one in patterns), **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.reader.close()
        assert not rig.os.paths, "a descriptor leaked"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The path of the log, in a directory of its own."""
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs" / "main.log"


@pytest.fixture
def begun(make_rig: Callable[..., Rig], log: Path) -> Callable[..., Rig]:
    """Makes rigs that have read so many lines of the log."""

    def begin(lines: int, *patterns: WatchedPath | str | Path, **options: Any) -> Rig:
        log.write_bytes(text(0, lines))
        rig = make_rig(*(patterns or (log,)), **options)
        rig.poll()
        return rig

    return begin
