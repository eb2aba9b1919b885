"""The state file: named parts. It is a cache, never the only copy of what a log has.

It has a header line in JSON (format, version) and one frame of MessagePack per save: {part: its value, or None if it no
longer exists}. A save appends the changed parts at once and syncs them. The newest value of a part is valid. When the
file has doubled, it is rewritten to a temporary file and renamed. Each frame has checksums, so that the file represents
the moment of its last complete save, even if later bytes are missing or damaged. Unreadable parts are reported and
rebuilt from the logs. A directory has one daemon: it holds a lock on the directory and on a file in it.

SQLite is not used: its WAL and locks do not work on NFS, its journals follow links that another user places, its pages
have no checksums, and a damaged database represents no moment. Append and rename work on every file system.

Another user may create a directory below /tmp first. A directory that is a link or belongs to neither this user nor
root is refused, and so is a file in it. No link is followed.
"""

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import logging
import os
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from struct import Struct
from typing import BinaryIO, TypeAlias

import msgspec

_FORMAT = "megatron-monitor state"
VERSION = 12
_NAME = "state"
_SIZE = Struct(">Q")  # length of a frame's body in bytes
_SUMS = Struct(">I16s")  # checksums of the length and of the body
_SLACK = 4 << 20  # bytes by which a file grows before it is rewritten
_NOTES = 1 << 20  # bytes of notes; those before the last save are obsolete, and the file restarts
_log = logging.getLogger(__name__)
Parts: TypeAlias = dict[str, bytes | None]
"""Name -> value as MessagePack. None: the part no longer exists."""


class StateInUseError(Exception):
    """Another daemon holds the state directory."""


class StateUnreadableError(Exception):
    """The file is damaged or of another version: rebuild from the logs."""


class StateNewerError(StateUnreadableError):
    """The file is of a later version. It has open incidents and must not be overwritten."""


_HEADER = json.dumps({"format": _FORMAT, "version": VERSION}).encode() + b"\n"


def encoded(parts: Mapping[str, bytes | None]) -> bytes:
    """Return a file of these parts as bytes, for a state that is a record."""
    return b"".join([_HEADER, *_frame(parts)])


def decoded(data: bytes) -> tuple[dict[str, bytes], str]:
    """Return (its parts, what is damaged after them). Raises StateNewerError, StateUnreadableError."""
    found, _, problem = _read(io.BytesIO(data))
    return found, problem


class Store:
    """The state directory of one daemon."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / _NAME
        self._locks: list[int] = []
        self._locked = False
        self.failures = 0
        self._end = 0
        """Position of the next frame. 0: the file must be rewritten."""
        self._whole = 0  # bytes of the valid values when they were last counted

    def lock(self) -> None:
        """Lock the directory. Raises StateInUseError if another daemon has it, OSError if it cannot be created or is
        refused.
        """
        with contextlib.suppress(FileExistsError):  # a dangling link, which is refused below
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.directory.is_symlink():
            raise OSError(errno.ELOOP, "it is a link; configure the directory itself")
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._locks.append(directory)
        try:
            _check_owner(os.fstat(directory))
            self._take(directory)  # this lock survives the deletion of the file below
            file = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            self._locks.append(file)
            self._locked = True
            if not self._take(file):  # a network file system without locks
                _log.warning("state=%s cannot be locked; make sure that no other monitor uses it", self.directory)
        except BaseException:
            self.release()
            raise

    def _take(self, descriptor: int) -> bool:
        """Lock the file. Return False if the file system has no locks."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateInUseError(f"{self.directory} is in use by another megatron-monitor") from error
        except OSError:
            return False
        return True

    def release(self) -> None:
        """Unlock the directory."""
        while self._locks:
            os.close(self._locks.pop())

    # --- reading ---------------------------------------------------------------------------------------------------

    def load(self) -> tuple[dict[str, bytes] | None, list[str]]:
        """Return (the readable parts, what is wrong with the others). Raises StateNewerError."""
        self._end = 0
        try:
            with _opened(self.path) as stream:
                found, end, problem = _read(stream)
        except FileNotFoundError:
            return None, []
        except StateNewerError as error:
            raise StateNewerError(f"{self.path}: {error}") from error
        except (StateUnreadableError, OSError) as error:
            return None, [f"{self.path}: {error}"]
        self._end, self._whole = end, sum(map(len, found.values()))
        return found, [f"{self.path}: {problem}"] if problem else []

    # --- writing ---------------------------------------------------------------------------------------------------

    def save(self, parts: Mapping[str, bytes | None]) -> bool:
        """Save these parts in addition to the existing ones. Return False if the disk refuses, which is logged once per
        series of failures. The monitor continues.
        """
        try:
            if self._locked:
                self._check_directory()
            if self._end:
                self._append(parts)
            else:
                self._write_anew(parts)
        except (OSError, StateInUseError) as error:
            self.failures += 1
            if self.failures == 1:
                _log.warning("state=%s not saved: %s; the monitor continues", self.path, error)
            return False
        self.failures = 0
        if self._end > 2 * self._whole + _SLACK:
            self._compact()
        return self._end > 0

    def _check_directory(self) -> None:
        """If somebody has removed or moved the directory, make and lock it again. Raises OSError: all is saved next."""
        with contextlib.suppress(FileNotFoundError, IndexError):
            if os.path.samestat(os.stat(self.directory), os.fstat(self._locks[0])):
                return
        self.release()
        self._end = 0
        self.lock()
        raise OSError(errno.ESTALE, "its directory was removed or moved, and is made again")

    @property
    def wants_all(self) -> bool:
        """Return True if the file was removed or truncated, so that the next save must have all parts."""
        return not self._end

    def _append(self, parts: Mapping[str, bytes | None]) -> None:
        """Append a frame. Raises OSError, also if the file is not as it was written."""
        try:
            with _descriptor(self.path, os.O_WRONLY) as file:
                if os.fstat(file).st_size < self._end:
                    self._end = 0
                    raise OSError(errno.ESTALE, "somebody has cut it")
                end = _written(file, _frame(parts), self._end)  # overwrites the remains of a failed save
                os.ftruncate(file, end)
                os.fsync(file)
                self._end = end
        except FileNotFoundError:
            self._end = 0
            raise

    def _compact(self) -> None:
        """Rewrite the valid values of the file."""
        try:
            with _opened(self.path) as stream:
                found, _, problem = _read(stream)
            if problem:
                raise StateUnreadableError(problem)
            self._write_anew(found)
        except StateUnreadableError as error:  # another program damaged it
            self._end = 0
            _log.warning("state=%s: %s; the whole state is saved again", self.path, error)
        except OSError as error:
            self._whole = self._end  # until it has doubled again
            _log.warning("state=%s cannot be rewritten: %s; it continues to grow", self.path, error)

    def _write_anew(self, parts: Mapping[str, bytes | None]) -> None:
        whole = {name: value for name, value in parts.items() if value is not None}
        self._end = self._whole = replace_file(self.path, [_HEADER, *_frame(whole)])

    # --- notes ------------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Append a line to the result of `notes` at once. It survives the process, not the machine. Callable from any
        thread.
        """
        path, flags = self.path.with_suffix(".notes"), os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with contextlib.suppress(OSError), _descriptor(path, flags) as file:
            if os.fstat(file).st_size > _NOTES:
                os.ftruncate(file, 0)
            os.write(file, f"{text}\n".encode())

    def notes(self) -> frozenset[str]:
        """Return the noted lines, or none if they cannot be read."""
        with contextlib.suppress(OSError), _opened(self.path.with_suffix(".notes")) as stream:
            return frozenset(stream.read().decode("utf-8", "replace").splitlines())
        return frozenset()


def replace_file(path: Path, pieces: Iterable[bytes], mode: int = 0o600, *, durably: bool = True) -> int:
    """Replace a file by a rename; `durably`: it survives a power cut. Return its bytes. Raises OSError."""
    temporary = path.with_suffix(".new")
    with contextlib.suppress(FileNotFoundError):  # left by a crash, or placed there
        os.unlink(temporary)
    with _descriptor(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode) as file:
        size = _written(file, pieces, 0)
        if durably:
            os.fsync(file)
    os.replace(temporary, path)
    if durably:
        with _descriptor(path.parent, os.O_RDONLY | os.O_DIRECTORY) as directory:
            os.fsync(directory)
    return size


@contextlib.contextmanager
def _descriptor(path: Path, flags: int, mode: int = 0o600) -> Iterator[int]:
    """Open a file that may be another user's trap: no link is followed, and a FIFO does not block."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(stream: BinaryIO) -> tuple[dict[str, bytes], int, str]:
    """Return (the parts, position of the next frame, what is damaged after them)."""
    try:
        header = json.loads(stream.readline(1 << 20))
    except (ValueError, RecursionError) as error:
        raise StateUnreadableError("its header is no JSON") from error
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise StateUnreadableError("it is not a state file of megatron-monitor")
    version: int = header.get("version", 0)
    if isinstance(version, int) and version > VERSION:
        raise StateNewerError(f"it is of version {version}, this program reads {VERSION}")
    if version != VERSION:
        raise StateUnreadableError(f"it is of version {version}, this program reads {VERSION}")
    found: Parts = {}
    end, problem = 0, ""
    try:
        for parts, after in _frames_of(stream):
            found.update(parts)
            end = after
    except StateUnreadableError as error:
        problem = f"{error}; later content is read from the logs again"
    if not end:
        raise StateUnreadableError(problem or "it was cut")
    return {name: value for name, value in found.items() if value is not None}, end, problem


def _frame(parts: Mapping[str, bytes | None]) -> tuple[bytes, bytes]:
    """Return the frame of one save: its head and its body."""
    body = msgspec.msgpack.encode(parts)
    size = _SIZE.pack(len(body))
    return size + _SUMS.pack(zlib.crc32(size), _digest(body)), body


def _frames_of(stream: BinaryIO) -> Iterator[tuple[Parts, int]]:
    """Yield (parts, end of the frame) up to the end or to an incomplete save. Raises StateUnreadableError for a damaged
    frame.
    """
    while len(head := stream.read(_SIZE.size + _SUMS.size)) == _SIZE.size + _SUMS.size:
        (size,), (crc, digest) = _SIZE.unpack_from(head), _SUMS.unpack_from(head, _SIZE.size)
        if crc != zlib.crc32(head[: _SIZE.size]):
            raise StateUnreadableError(f"it is damaged at byte {stream.tell() - len(head)}")
        body = stream.read(size)
        if len(body) < size:
            return
        if digest != _digest(body):
            raise StateUnreadableError(f"it is damaged between the bytes {stream.tell() - size} and {stream.tell()}")
        yield msgspec.msgpack.decode(body, type=Parts), stream.tell()


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


def _written(descriptor: int, pieces: Iterable[bytes], at: int) -> int:
    """Write frames from position `at` on. Return the end of the last one."""
    for piece in pieces:
        left = memoryview(piece)
        while left:
            count = os.pwrite(descriptor, left, at)
            left, at = left[count:], at + count
    return at


def read_foreign(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of a file that another program writes. Raises OSError, also for a link and for a
    device or FIFO, which may have no end.
    """
    with _opened(path, own=False) as stream:
        return stream.read(most)


@contextlib.contextmanager
def _opened(path: Path, *, own: bool = True) -> Iterator[BinaryIO]:
    """Open a file for reading. Raises OSError, with `own` also for a file of another user."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if own:
            _check_owner(found)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        yield stream


def _check_owner(found: os.stat_result) -> None:
    """Raise OSError if the file belongs to another user. Root's is accepted, because volumes of containers
    are root's.
    """
    if found.st_uid not in (os.geteuid(), 0):
        raise OSError(errno.EPERM, f"it belongs to another user (uid {found.st_uid})")
