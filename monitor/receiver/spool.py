"""The spool: a file for each pushed stream, which the daemon follows like any log. Appended lines are on disk.

A line is `2026-05-01T12:00:00.123456789Z [pod/...] <14>1 - node log - - - text`, a form that the parsers know. Lines
are written as they arrive; the core orders them (core/ordered.py). A duplicate (equal nanosecond, writer and text) of
one of the stream's last lines is dropped, also after a restart, because the end of the file is read first. So a text
that a program prints twice within a nanosecond counts once (Loki's rule).

A full file is renamed and replaces the one renamed before. The daemon writes to `read.json` how far it has read. A file
is only renamed after the daemon has begun to read it, and bytes are only removed after it has saved that it read them.
"""

import contextlib
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import msgspec

from megatron_monitor.parsers.wrappers import apart
from megatron_monitor.pushed import PATTERN, STAMP
from megatron_monitor.receiver.labels import StreamFile
from megatron_monitor.store import Store

READ_OFFSETS = "read.json"
"""Stream -> (inode, offset): the daemon has saved that it read the renamed file, and this one up to the offset."""
_MAX_REMEMBERED_LINES = 16_384  # of a stream: a batch of Loki's 1 MiB holds as many
_REMEMBERED_BYTES = 4 << 20  # read from the end of a file to remember its last lines
_MAX_LINE_BYTES = (1 << 20) - 4096  # with time and writer the line still fits the parsers' bound
_MAX_FILE_BYTES = 32 << 20  # a larger file is renamed
_MAX_OPEN_FILES = 256  # the soft limit of the process is 1024
# Seconds:
_CLOSE_AFTER = 600.0  # without a line; the end of the file is read again at the next line
_KEEP = 7 * 86400.0  # after the last line, then the file is removed
_CLEAN_INTERVAL = 6 * 3600.0  # between two searches for files to remove
_CLEAN_INTERVAL_FULL = 1.0  # the same while there is no room


class QuotaError(Exception):
    """The tenant has used up a quota; `args`: which one, and the seconds until it may push again."""


class Spool:
    """The spool directory. Any thread may call `append`; streams do not wait for each other."""

    def __init__(self, directory: Path, size: int, segment: int = _MAX_FILE_BYTES) -> None:
        """`size`: most bytes of all files of a tenant; `segment`: of one file."""
        self.directory, self.size, self._segment = directory, size, segment
        self.streams = 2**62
        """Streams of a tenant beyond so many are removed like old ones, those written first before others."""
        self._files: dict[str, _SpoolFile] = {}
        self._lock = threading.Lock()
        self._store = Store(directory)
        self._sizes: Counter[str] = Counter()  # tenant -> bytes of its files
        self._close_at = self._clean_at = 0.0  # next closing of idle files, next cleaning: Unix seconds
        self._clean_full_at: dict[str, float] = {}  # tenant without room -> its next cleaning
        self._read: dict[str, tuple[int, int]] = {}
        self._read_version = (0, 0)

    def open(self, now: float) -> None:
        """Lock the directory; remove incomplete last lines of a killed receiver. `now`: Unix seconds. Raises
        StateInUseError and OSError.
        """
        self._store.lock()
        for path in self.directory.glob(PATTERN):
            _remove_incomplete_line(path)
        self._clean(now)

    def close(self) -> None:
        """Close every file and unlock the directory."""
        for file in self._files.values():
            file.close()
        self._store.release()

    @property
    def held(self) -> int:
        """Bytes of all files."""
        return self._sizes.total()

    def append(
        self,
        stream: StreamFile,
        entries: Iterable[tuple[int, bytes]],
        now: float,
        date: Callable[[int], object] = lambda _: None,
    ) -> tuple[int, int]:
        """Write lines of (Unix nanoseconds, text) to the disk. Returns the numbers of new and of duplicate lines.
        `now`: Unix seconds. `date` is called before `entries` are read, with the nanosecond of the newest line of the
        stream, also over a restart. After QuotaError or OSError some lines may be written, but none may be confirmed.
        """
        grown = 0
        try:
            with self._opened(stream.name, now) as file:
                before = file.size
                date(file.newest)
                new, duplicates = file.append(stream.head.encode(), entries)
                grown = file.size - before
                if file.size > self._segment and self._is_being_read(stream.name):
                    grown -= file.rename()
        finally:
            with self._lock:
                self._sizes[_tenant(stream.name)] += grown
        return new, duplicates

    @contextlib.contextmanager
    def _opened(self, name: str, now: float) -> Iterator["_SpoolFile"]:
        """Give the open file of a stream, locked. QuotaError without room."""
        with self._lock:
            self._make_room(_tenant(name), now)
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = _SpoolFile(self.directory / name)
            file.users += 1
            self._close_idle(now)
        try:
            with file.lock:
                file.open()
                file.used_at = now
                yield file
        finally:
            with self._lock:
                file.users -= 1

    def _close_idle(self, now: float) -> None:
        if len(self._files) <= _MAX_OPEN_FILES and now < self._close_at:
            return
        self._close_at = now + _CLOSE_AFTER / 10
        kept = _MAX_OPEN_FILES if len(self._files) <= _MAX_OPEN_FILES else _MAX_OPEN_FILES // 2  # so rarely too many
        unused = sorted((file.used_at, name) for name, file in self._files.items() if not file.users)
        for used_at, name in unused:
            if now - used_at > _CLOSE_AFTER or len(self._files) > kept:
                self._files.pop(name).close()

    # --- what the daemon has read -----------------------------------------------------------------------------------

    def _is_being_read(self, name: str) -> bool:
        """Return True if the daemon reads the present file of a stream, so that it follows a rename of the file."""
        return self._read_until(name)[0] == (self.directory / name).stat().st_ino

    def _read_until(self, name: str) -> tuple[int, int]:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            path = self.directory / READ_OFFSETS
            status = path.stat()
            if self._read_version != (version := (status.st_ino, status.st_mtime_ns)):
                self._read = msgspec.json.decode(path.read_bytes(), type=dict[str, tuple[int, int]])
                self._read_version = version
        return self._read.get(name, (0, 0))

    def _make_room(self, tenant: str, now: float) -> None:
        if not 0.0 < self._clean_at - now <= _CLEAN_INTERVAL:
            self._clean(now)
        is_due = not 0.0 < self._clean_full_at.get(tenant, now) - now <= _CLEAN_INTERVAL_FULL
        if self._sizes[tenant] > self.size and is_due:
            self._clean_full_at[tenant] = now + _CLEAN_INTERVAL_FULL
            self._clean(now, tenant)
        if self._sizes[tenant] > self.size:
            raise QuotaError("receiver.spool_size is full of lines that the daemon has not read yet", 5.0)

    def _clean(self, now: float, tenant: str = "") -> None:
        """Remove streams without a line for a week; for tenants without room also those that are read, oldest first.
        `tenant`: whose, so that others do not wait for a search of theirs; empty: of all.
        """
        found = list[tuple[float, str]]()
        if tenant:
            self._sizes[tenant] = 0
        else:
            self._clean_at, self._sizes = now + _CLEAN_INTERVAL, Counter()
        for path in self.directory.glob(f"{tenant or '*'}{PATTERN[1:]}*"):
            with contextlib.suppress(FileNotFoundError):
                status, name = path.stat(), str(path.relative_to(self.directory))
                self._sizes[_tenant(name)] += status.st_size
                if path.suffix == ".log":
                    found.append((status.st_mtime, name))
        left = Counter(_tenant(name) for _, name in found)
        for written, name in sorted(found):
            with contextlib.suppress(FileNotFoundError):
                self._clean_stream(name, is_old=now - written > _KEEP or left[_tenant(name)] > self.streams)
            left[_tenant(name)] -= 1

    def _clean_stream(self, name: str, *, is_old: bool) -> None:
        """Remove what is read of a stream, unless a thread writes to it: that may rename the file meanwhile."""
        tenant, path, file = _tenant(name), self.directory / name, self._files.get(name)
        if (file is not None and file.users) or not (is_old or self._sizes[tenant] > self.size):
            return
        (inode, offset), present = self._read_until(name), path.stat()
        with contextlib.suppress(FileNotFoundError):
            renamed = os.stat(f"{path}.1")
            if inode != present.st_ino and (inode != renamed.st_ino or offset < renamed.st_size):
                return
            os.unlink(f"{path}.1")
            self._sizes[tenant] -= renamed.st_size
        if (size := present.st_size) and (inode != present.st_ino or offset < size):
            return
        if is_old and file is None:
            path.unlink()
            with contextlib.suppress(OSError):  # other streams of the run
                path.parent.rmdir()
        elif size and self._sizes[tenant] > self.size:
            if file is not None:
                file.close()
            os.replace(_empty_file(path), path)  # the daemon has read the old file and continues with this one
        else:
            return
        self._sizes[tenant] -= size


def _tenant(name: str) -> str:
    return name.partition("/")[0]


class _SpoolFile:
    """The file of one stream. `lock` guards all other attributes but `users`."""

    def __init__(self, path: Path) -> None:
        self.lock = threading.Lock()
        self.users = 0  # threads that write to it or wait to do so
        self.used_at = 0.0
        self.size = 0
        self._path = path
        self._descriptor = -1
        self._rest = b""  # lines that are not written yet
        self._unsynced = False
        self._newest = b""  # timestamp of the newest line
        self._hashes: set[int] = set()  # of the last lines
        self._order: deque[int] = deque()

    @property
    def newest(self) -> int:
        """The time of the newest line in Unix nanoseconds; 0 without lines."""
        with contextlib.suppress(ValueError):
            second = datetime.fromisoformat(f"{self._newest[:19].decode()}+00:00")
            return int(second.timestamp()) * 10**9 + int(self._newest[20 : STAMP - 1])
        return 0

    def append(self, head: bytes, entries: Iterable[tuple[int, bytes]]) -> tuple[int, int]:
        """Write the lines that are new and sync. Returns the numbers of new and of duplicate lines."""
        lines, duplicates = [], 0
        for at, text in entries:
            for line in lines_of(at, head, text):
                if hash(line) in self._hashes:
                    duplicates += 1
                else:
                    self._remember(line)
                    lines.append(line)
        self._rest += b"".join(lines)
        if self._rest:
            self._unsynced = True
            while self._rest:
                written = os.write(self._descriptor, self._rest)
                self._rest, self.size = self._rest[written:], self.size + written
        if self._unsynced:  # also for duplicates: the first try may have failed here
            os.fdatasync(self._descriptor)
            self._unsynced = False
        return len(lines), duplicates

    def rename(self) -> int:
        """Rotate the file. Returns the bytes of the replaced one. The follower reads a rotated file to its end."""
        self.close()
        replaced = 0
        with contextlib.suppress(FileNotFoundError):
            replaced = os.stat(f"{self._path}.1").st_size
        fresh = _empty_file(self._path)
        os.replace(self._path, f"{self._path}.1")
        os.replace(fresh, self._path)
        self.open()
        return replaced

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def open(self) -> None:
        """Open the file unless it is open, and remember its last lines."""
        if self._descriptor >= 0:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = not self._path.exists()
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if fresh:  # sync its name, too
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
            os.fsync(folder)
            os.close(folder)
        self.size = os.fstat(self._descriptor).st_size
        if not self._hashes:
            for path in (f"{self._path}.1", self._path):
                for line in _last_lines(path):
                    self._remember(line)

    def _remember(self, line: bytes) -> None:
        self._hashes.add(hash(line))
        self._order.append(hash(line))
        self._newest = max(self._newest, line[:STAMP])
        if len(self._order) > _MAX_REMEMBERED_LINES:
            self._hashes.discard(self._order.popleft())


def _empty_file(path: Path) -> Path:
    """Make an empty file beside the path, while the old ones exist: so its inode differs from theirs."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.touch(0o600)
    return fresh


def _last_lines(path: str | Path) -> Sequence[bytes]:
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _REMEMBERED_BYTES))
            return [line + b"\n" for line in stream.read().split(b"\n")[-_MAX_REMEMBERED_LINES - 1 : -1]]
    except FileNotFoundError:
        return ()


def _remove_incomplete_line(path: Path) -> None:
    """Cut off a last line without an end; it was never confirmed to the sender."""
    with path.open("rb+") as stream:
        size = stream.seek(0, os.SEEK_END)
        begin = max(0, size - 2 * _MAX_LINE_BYTES)
        stream.seek(begin)
        end = begin + stream.read().rfind(b"\n") + 1
        if end < size:
            stream.truncate(end)


def lines_of(at: int, head: bytes, text: bytes) -> list[bytes]:
    """Return the file's lines of an entry with that Unix nanosecond. Each further line is a nanosecond later, so that
    equal lines stay distinct and in order.
    """
    pieces = [text]
    if text.startswith(b'{"'):
        pieces = apart(text, _MAX_LINE_BYTES, f"{_second(at // 10**9).decode()}.{at % 10**9:09d}Z") or pieces
    if b"\n" in text:
        pieces = [line for piece in pieces for line in piece.rstrip(b"\n").split(b"\n")]
    return [
        b"%s.%09dZ %s%s\n" % (_second((at + index) // 10**9), (at + index) % 10**9, head, piece[:_MAX_LINE_BYTES])
        for index, piece in enumerate(pieces)
    ]


@lru_cache(maxsize=4096)
def _second(second: int) -> bytes:
    """Return `2026-05-01T12:00:00`; many lines share it."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
