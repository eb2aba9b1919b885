"""The files of pushed streams, which the observer follows as any other. What `append` has taken is on the disk.

A line of it is `2026-05-01T12:00:00.123456789Z [pod/...] <14>1 - node log - - - text`: forms that the parsers know.
Lines are written as they come; the core puts them in order (core/ordered.py). A line counts once: one with the same
nanosecond, writer and text as one of the last of its stream is dropped, over restarts too, for the end of the file is
read before more is written. A program that prints one text twice within a nanosecond is believed once (Loki's rule).

A full file is renamed, and replaces the one that was renamed before. Law: nothing is removed before the observer
has saved that it read it, or renamed before it has come to it. It writes how far it is to `read.json` (READ).
"""

import contextlib
import errno
import fcntl
import os
import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import msgspec

from megatron_monitor.parsers.wrappers import apart
from megatron_monitor.pushed import PATTERN
from megatron_monitor.receiver.labels import Written

READ = "read.json"
"""Stream -> (inode of the file, offset) up to which all of it, and of what was renamed before, is saved."""
_KEYS = 16_384  # lines of a stream that are remembered: a batch of Loki's 1 MiB holds as many
_TAIL = 4 << 20  # bytes that they take in the file
_LONGEST = (1 << 20) - 4096  # bytes of a line: with what stands before it the parsers still take it
_SEGMENT = 32 << 20  # bytes after which a file is renamed
_OPEN = 256  # files at once; the soft limit is 1024 for the whole process
_IDLE = 600.0  # seconds without a line after which a file is closed, and its end is read again if one comes
_KEPT = 7 * 86400.0  # seconds that the file of a stream is kept behind its last line
_SEARCH, _AGAIN = 6 * 3600.0, 1.0  # seconds between two searches for what can be removed; while there is no room


class SpoolError(OSError):
    """The directory cannot be used."""


class FullError(Exception):
    """The tenant has no room until the observer has read more."""


class Spool:
    """`append` may be called by any thread; streams do not wait for each other."""

    def __init__(self, directory: Path, size: int, segment: int = _SEGMENT) -> None:
        """`size`: bytes of all files of a tenant at most, `segment`: of one file."""
        self.directory, self.size, self._segment = directory, size, segment
        self._files: dict[str, _File] = {}
        self._lock = threading.Lock()
        self._descriptor = -1
        self._sizes: Counter[str] = Counter()  # tenant -> bytes of its files, as far as is known
        self._look_at = self._clean_at = 0.0  # Unix seconds
        self._read: dict[str, tuple[int, int]] = {}
        self._read_version = (0, 0)

    def open(self, now: float) -> None:
        """Take the directory; cut off a line that a death in a write has left. `now`: Unix seconds. SpoolError."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in self.directory.glob(PATTERN):
                _truncate(path)
            self._clean(now)
        except BlockingIOError as error:
            raise SpoolError(errno.EBUSY, f"{self.directory} is in use by another receiver") from error
        except OSError as error:
            raise SpoolError(error.errno, f"{error.filename}: {error.strerror}") from error

    def close(self) -> None:
        """Give every descriptor back."""
        for file in self._files.values():
            file.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def held(self) -> int:
        """Of all files."""
        return self._sizes.total()

    def append(self, stream: Written, entries: Iterable[tuple[int, bytes]], now: float) -> tuple[int, int]:
        """Write lines of (Unix nanoseconds, text) and have them on the disk; how many were new, how many were there.
        `now`: Unix seconds.

        Raises FullError, OSError: none of them may be called taken, though some are written.
        """
        tenant = _tenant(stream.name)
        with self._lock:
            self._make_room(tenant, now)
            file = self._files.get(stream.name)
            if file is None:
                file = self._files[stream.name] = _File(self.directory / stream.name)
            file.users += 1
            self._let_go(now)
        grown = 0
        try:
            with file.lock:
                file.open()
                file.used_at, before = now, file.size
                new, known = file.append(stream.head.encode(), entries)
                grown = file.size - before
                if file.size > self._segment and self._is_entered(stream.name):
                    grown -= file.rename()
        finally:
            with self._lock:
                file.users -= 1
                self._sizes[tenant] += grown
        return new, known

    def _let_go(self, now: float) -> None:
        """Close files that no thread writes to."""
        if len(self._files) <= _OPEN and now < self._look_at:
            return
        self._look_at = now + _IDLE / 10
        still = sorted((file.used_at, name) for name, file in self._files.items() if not file.users)
        for used_at, name in still:
            if now - used_at > _IDLE or len(self._files) > _OPEN:
                self._files.pop(name).close()

    # --- what the observer has read ---------------------------------------------------------------------------------

    def _is_entered(self, name: str) -> bool:
        """Has the observer come to the present file of a stream? It goes on with it under its other name, then."""
        return self._read_until(name)[0] == (self.directory / name).stat().st_ino

    def _removable(self, name: str) -> int | None:
        """Bytes of the renamed file of a stream, 0 if there is none; None: the observer has not read all of it."""
        path = self.directory / name
        try:
            old = os.stat(f"{path}.1")
        except FileNotFoundError:
            return 0
        inode, offset = self._read_until(name)
        with contextlib.suppress(FileNotFoundError):
            if inode == path.stat().st_ino or (inode == old.st_ino and offset >= old.st_size):
                return old.st_size
        return None

    def _is_read(self, name: str) -> bool:
        """Has the observer read the stream to its end?"""
        status = (self.directory / name).stat()
        inode, offset = self._read_until(name)
        return not status.st_size or (inode == status.st_ino and offset >= status.st_size)

    def _read_until(self, name: str) -> tuple[int, int]:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            path = self.directory / READ
            status = path.stat()
            if self._read_version != (version := (status.st_ino, status.st_mtime_ns)):
                self._read = msgspec.json.decode(path.read_bytes(), type=dict[str, tuple[int, int]])
                self._read_version = version
        return self._read.get(name, (0, 0))

    def _make_room(self, tenant: str, now: float) -> None:
        if not 0.0 < self._clean_at - now <= _SEARCH:
            self._clean(now)
        if self._sizes[tenant] > self.size:
            self._clean_at = min(self._clean_at, now + _AGAIN)
            raise FullError

    def _clean(self, now: float) -> None:
        """Remove streams without a line for a week; of tenants without room what is read, the oldest first."""
        self._clean_at = now + _SEARCH
        found, self._sizes = list[tuple[float, str]](), Counter()
        for path in self.directory.glob(f"{PATTERN}*"):
            with contextlib.suppress(FileNotFoundError):
                status, name = path.stat(), str(path.relative_to(self.directory))
                self._sizes[_tenant(name)] += status.st_size
                if path.suffix == ".log":
                    found.append((status.st_mtime, name))
        for written, name in sorted(found):
            with contextlib.suppress(FileNotFoundError):
                self._clean_stream(name, is_old=now - written > _KEPT)

    def _clean_stream(self, name: str, *, is_old: bool) -> None:
        tenant, path, file = _tenant(name), self.directory / name, self._files.get(name)
        if not (is_old or self._sizes[tenant] > self.size):
            return
        if (old := self._removable(name)) is None:
            return
        Path(f"{path}.1").unlink(missing_ok=True)
        self._sizes[tenant] -= old
        if (file is not None and file.users) or not self._is_read(name):
            return
        size = path.stat().st_size
        if is_old and file is None:
            path.unlink()
        elif size and self._sizes[tenant] > self.size:
            if file is not None:
                file.close()
            os.replace(_fresh(path), path)  # the observer has read the old one, and goes on with this one
        else:
            return
        self._sizes[tenant] -= size


def _tenant(name: str) -> str:
    return name.partition("/")[0]


class _File:
    """Of one stream. All but `lock` for who holds that."""

    def __init__(self, path: Path) -> None:
        self.lock = threading.Lock()
        self.users = 0
        """Threads that write to it, or wait for that."""
        self.used_at = 0.0
        self.size = 0
        self._path = path
        self._descriptor = -1
        self._rest = b""  # of what is written, what the disk has not taken yet
        self._unsynced = False
        self._keys: set[int] = set()
        self._order: deque[int] = deque()

    def append(self, head: bytes, entries: Iterable[tuple[int, bytes]]) -> tuple[int, int]:
        """(new, known)."""
        lines, known = [], 0
        for at, text in entries:
            for line in lines_of(at, head, text):
                key = hash(line)
                if key in self._keys:
                    known += 1
                else:
                    self._remember(key)
                    lines.append(line)
        self._rest += b"".join(lines)
        if self._rest:
            self._unsynced = True
            while self._rest:
                written = os.write(self._descriptor, self._rest)
                self._rest, self.size = self._rest[written:], self.size + written
        if self._unsynced:  # also for lines that were there: the answer that was lost may have been a refusal
            os.fdatasync(self._descriptor)
            self._unsynced = False
        return len(lines), known

    def rename(self) -> int:
        """The follower reads a renamed file to its end, and looks for another in its place. Bytes that are replaced."""
        self.close()
        replaced = 0
        with contextlib.suppress(FileNotFoundError):
            replaced = os.stat(f"{self._path}.1").st_size
        fresh = _fresh(self._path)
        os.replace(self._path, f"{self._path}.1")
        os.replace(fresh, self._path)
        self.open()
        return replaced

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def open(self) -> None:
        """Unless it is open."""
        if self._descriptor >= 0:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = not self._path.exists()
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if fresh:  # its name is to be on the disk, too
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
            os.fsync(folder)
            os.close(folder)
        self.size = os.fstat(self._descriptor).st_size
        if not self._keys:
            for path in (f"{self._path}.1", self._path):
                for line in _ending(path):
                    self._remember(hash(line))

    def _remember(self, key: int) -> None:
        self._keys.add(key)
        self._order.append(key)
        if len(self._order) > _KEYS:
            self._keys.discard(self._order.popleft())


def _fresh(path: Path) -> Path:
    """An empty file beside the path. Made while the old ones are there: its inode is none of theirs."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.touch(0o600)
    return fresh


def _ending(path: str | Path) -> Sequence[bytes]:
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL))
            return [line + b"\n" for line in stream.read().split(b"\n")[-_KEYS - 1 : -1]]
    except FileNotFoundError:
        return ()


def _truncate(path: Path) -> None:
    """Nobody was told that a line without an end is safe."""
    with path.open("rb+") as stream:
        size = stream.seek(0, os.SEEK_END)
        begin = max(0, size - 2 * _LONGEST)
        stream.seek(begin)
        end = begin + stream.read().rfind(b"\n") + 1
        if end < size:
            stream.truncate(end)


def lines_of(at: int, head: bytes, text: bytes) -> list[bytes]:
    """Those of an entry of that Unix nanosecond, as they lie in a file; each has a nanosecond of its own, so that they
    are told apart and stay in order.
    """
    pieces = [text]
    if text.startswith(b'{"'):
        pieces = apart(text, _LONGEST, f"{_second(at // 10**9).decode()}.{at % 10**9:09d}Z") or pieces
    if b"\n" in text:
        pieces = [line for piece in pieces for line in piece.rstrip(b"\n").split(b"\n")]
    return [
        b"%s.%09dZ %s%s\n" % (_second((at + index) // 10**9), (at + index) % 10**9, head, piece[:_LONGEST])
        for index, piece in enumerate(pieces)
    ]


@lru_cache(maxsize=4096)
def _second(second: int) -> bytes:
    """`2026-05-01T12:00:00`; many lines share it."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
