"""The spool: a file a stream, which the follower reads as any other. What `append` has taken is on the disk.

A line of it is `2026-05-01T12:00:00.123456789Z [pod/...] <14>1 - node log - - - text`: forms that the parsers know.
Lines lie as they came; the core puts them in order (core/ordered.py). A line counts once: one with the same nanosecond,
writer and text as one of the stream's last is dropped, over restarts too, for what the file ends with is looked at
before more is written. A program that prints one text twice within a nanosecond is believed once (Loki's own rule).
"""

import contextlib
import errno
import fcntl
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from megatron_monitor.intake.labels import Written
from megatron_monitor.parsers.wrappers import apart

_KEYS = 16_384  # lines of a stream that are remembered: a batch of Loki's 1 MiB holds as many
_TAIL = 4 << 20  # bytes that they take in the file
_LONGEST = (1 << 20) - 4096  # bytes of a line: with what stands before it the parsers still take it
_PER_STREAM = 64 << 20  # bytes: a file is begun anew at half of it, and the half before is kept beside it
_OPEN = 256  # files at once; the soft limit is 1024 for the whole process
_IDLE = 600.0  # seconds without a line after which a file is closed, and what it ends with is read again if one comes
_KEPT = 7 * 86400.0  # seconds that a stream's file is kept behind its last line
ENDING = ".log"


class SpoolError(OSError):
    """The directory cannot be used."""


class Spool:
    """Opened before the follower begins. `append` may be called by any thread; streams do not wait for each other."""

    def __init__(self, directory: Path, total: int, on_new: Callable[[], None], per_stream: int = _PER_STREAM) -> None:
        """Bytes of all files and of one stream at most. `on_new`: a file was made."""
        self.directory, self._total, self._per_stream, self._on_new = directory, total, per_stream, on_new
        self._files: dict[str, _File] = {}
        self._lock = threading.Lock()
        self._descriptor = -1
        self._size = 0  # bytes of all files, as far as is known
        self._look_at = self._clean_at = 0.0  # Unix seconds

    def open(self, wall: float) -> None:
        """Take the directory; cut what a death in the middle of a write has left, remove what has been still for a
        week at `wall`, Unix seconds. SpoolError.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in self.directory.rglob(f"*{ENDING}"):
                if path.is_file():
                    _cut(path)
            self._clean(wall)
        except BlockingIOError as error:
            raise SpoolError(errno.EBUSY, f"{self.directory} is in use by another megatron-monitor") from error
        except OSError as error:
            raise SpoolError(error.errno, f"{error.filename}: {error.strerror}") from error

    def close(self) -> None:
        """Give every descriptor back."""
        for file in self._files.values():
            file.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def append(self, stream: Written, entries: Iterable[tuple[int, bytes]], now: float) -> tuple[int, int]:
        """Write lines of (Unix nanoseconds, text) and have them on the disk; how many were new, how many were there.
        `now`: Unix seconds.

        Raises OSError: none of them may be called taken, though some are written.
        """
        with self._lock:
            if self._size > self._total or now >= self._clean_at:
                self._clean(now)
            if self._size > self._total:
                raise OSError(errno.ENOSPC, "receiver.spool_size is used up")
            file = self._files.get(stream.name)
            if file is None:
                file = self._files[stream.name] = _File(self.directory / f"{stream.name}{ENDING}")
            file.users += 1
            self._let_go(now)
        grown = fresh = 0
        try:
            with file.lock:
                file.used_at, before = now, file.size
                new, known, fresh = file.append(stream.head.encode(), entries)
                grown = file.size - before
                if file.size > self._per_stream // 2:
                    file.begin_anew()
        finally:
            with self._lock:
                file.users -= 1
                self._size += grown
        if fresh:
            self._on_new()
        return new, known

    def _let_go(self, now: float) -> None:
        """Of the files that nobody writes to now."""
        if len(self._files) <= _OPEN and now < self._look_at:
            return
        self._look_at = now + _IDLE / 10
        still = sorted((file.used_at, name) for name, file in self._files.items() if not file.users)
        for used_at, name in still:
            if now - used_at > _IDLE or len(self._files) > _OPEN:
                self._files.pop(name).close()

    def _clean(self, now: float) -> None:
        """Remove what nobody has written to for a week; while there is more than may be, halves that were left, then
        files that nobody writes to, the oldest first.
        """
        self._clean_at = now + _KEPT / 28
        found = []
        for path in self.directory.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if path.is_file():
                    found.append((not path.name.endswith(f"{ENDING}.1"), status.st_mtime, status.st_size, path))
        self._size = sum(size for _, _, size, _ in found)
        open_now = {str(self.directory / f"{name}{ENDING}") for name in self._files}
        for is_whole, written, size, path in sorted(found):
            is_free = not is_whole or (path.name.endswith(ENDING) and str(path) not in open_now)
            if is_free and (now - written > _KEPT or self._size > self._total):
                path.unlink(missing_ok=True)
                self._size -= size


class _File:
    """One stream's. All but `lock` for who holds that."""

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

    def append(self, head: bytes, entries: Iterable[tuple[int, bytes]]) -> tuple[int, int, bool]:
        """(new, known, whether the file was made)."""
        fresh = self._descriptor < 0 and self._open()
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
        return len(lines), known, fresh

    def begin_anew(self) -> None:
        """The follower reads a renamed file to its end, and looks for another in its place."""
        self.close()
        os.replace(self._path, f"{self._path}.1")
        self._open()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> bool:
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
        return fresh

    def _remember(self, key: int) -> None:
        self._keys.add(key)
        self._order.append(key)
        if len(self._order) > _KEYS:
            self._keys.discard(self._order.popleft())


def _ending(path: str | Path) -> Sequence[bytes]:
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL))
            return [line + b"\n" for line in stream.read().split(b"\n")[-_KEYS - 1 : -1]]
    except FileNotFoundError:
        return ()


def _cut(path: Path) -> None:
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
