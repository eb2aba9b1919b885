"""The state file: one atomic, checksummed, versioned file; a cache, never the only copy of what is in a log.

A header line in JSON (format, version, sha256, bytes), then MessagePack. Written to a temporary file beside it, synced,
renamed; the directory is synced too, and the generation before is kept. What cannot be read is reported and rebuilt
from the logs. One daemon a directory: a lock on it, and on a file in it, is held while it runs.

A directory below /tmp may be made by somebody else first: one that is a link, or belongs to neither this user nor root,
is refused, and so is a file in it. No link is followed.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

_FORMAT = "megatron-monitor state"
VERSION = 3
_NAME = "state"
_INTERVAL = 1.0  # seconds between two saves of a small state
_BYTES_PER_SECOND = 250e3  # to a disk that others use too
_SHARE = 4000  # seconds between two saves for each second that one takes the loop
_LONGEST = 60.0
_NOTES = 1 << 20  # bytes of notes, of which those since the last save matter: then they begin anew
_log = logging.getLogger(__name__)
Earlier: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
"""What makes plain values of an earlier version those of the present one."""
_NONE: Mapping[int, Earlier] = {}


class StateInUseError(Exception):
    """Another daemon holds the state directory."""


class StateUnreadableError(Exception):
    """The file is damaged, or of another version: rebuild from the logs."""


class StateNewerError(StateUnreadableError):
    """The file is of a later version: it holds incidents that stand, and is not to be overwritten."""


def encode(value: Any) -> bytes:
    """The whole file for a value of plain types and dataclasses."""
    body = msgspec.msgpack.encode(value)
    header = {"format": _FORMAT, "version": VERSION, "sha256": hashlib.sha256(body).hexdigest(), "bytes": len(body)}
    return json.dumps(header).encode() + b"\n" + body


def decode(data: bytes, kind: Any, earlier: Mapping[int, Earlier] = _NONE) -> Any:
    """The value back, typed as `kind`. `earlier`: version -> what makes plain values of it those of the present one.
    Raises StateUnreadableError with the reason.
    """
    head, separator, body = data.partition(b"\n")
    try:
        header = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise StateUnreadableError("its header is no JSON") from error
    if not separator or not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise StateUnreadableError("it is no state file of megatron-monitor")
    version: int = header.get("version", 0)
    if isinstance(version, int) and version > VERSION:
        raise StateNewerError(f"it is of version {version}, this program reads {VERSION}")
    if version != VERSION and version not in earlier:
        raise StateUnreadableError(f"it is of version {version}, this program reads {VERSION}")
    if header.get("bytes") != len(body) or header.get("sha256") != hashlib.sha256(body).hexdigest():
        raise StateUnreadableError("its checksum does not match: it was cut or damaged")
    try:
        if version != VERSION:
            plain = earlier[version](msgspec.msgpack.decode(body, strict=False))
            return msgspec.msgpack.decode(msgspec.msgpack.encode(plain), type=kind)
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise StateUnreadableError(f"its contents do not fit: {error}") from error


def pause_after(size: int, seconds: float) -> float:
    """Seconds to the next save after one of `size` bytes that took the loop `seconds`.

    A small state is saved every second. A large one goes to the disk at 250 kB/s at most, and encoding it takes a
    part in 4,000 of the loop's time (20 s between two saves of 50 runs), down to a save a minute: what was read since
    is read again after a crash, from the saved offset on.
    """
    return max(_INTERVAL, min(_LONGEST, max(size / _BYTES_PER_SECOND, _SHARE * seconds)), 20 * seconds)


class Store:
    """The state directory of one daemon."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / _NAME
        self._locks: list[int] = []
        self.failures = 0

    def lock(self) -> None:
        """Take the directory; StateInUseError if another daemon has it, OSError if it cannot be made or is refused."""
        with contextlib.suppress(FileExistsError):  # a link that leads nowhere, which is refused below
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.directory.is_symlink():
            raise OSError(errno.ELOOP, "it is a link; name the directory itself")
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._locks.append(directory)
        try:
            _check_owner(os.fstat(directory))
            self._take(directory)  # stays where the file below is deleted
            file = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            self._locks.append(file)
            if not self._take(file):  # a network file system without locks
                _log.warning("state=%s cannot be locked; see that no other monitor uses it", self.directory)
        except BaseException:
            self.release()
            raise

    def _take(self, descriptor: int) -> bool:
        """False where the file system knows no locks."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateInUseError(f"{self.directory} is in use by another megatron-monitor") from error
        except OSError:
            return False
        return True

    def release(self) -> None:
        """Let the directory go."""
        while self._locks:
            os.close(self._locks.pop())

    def load(self, kind: Any, earlier: Mapping[int, Earlier] = _NONE) -> tuple[Any | None, list[str]]:
        """(the newest state that can be read, what was wrong with those that could not). Raises StateNewerError."""
        problems: list[str] = []
        for path in (self.path, self.path.with_suffix(".previous")):
            try:
                return decode(_read(path), kind, earlier), problems
            except FileNotFoundError:
                continue
            except StateNewerError as error:
                raise StateNewerError(f"{path}: {error}") from error
            except (StateUnreadableError, OSError) as error:
                problems.append(f"{path}: {error}")
        return None, problems

    def note(self, text: str) -> None:
        """Append a line to what `notes` gives, at once: it outlives the process, not the machine. From any thread."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            descriptor = os.open(self.path.with_suffix(".notes"), flags, 0o600)
            try:
                if os.fstat(descriptor).st_size > _NOTES:
                    os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{text}\n".encode())
            finally:
                os.close(descriptor)

    def notes(self) -> frozenset[str]:
        """The lines that were noted; none where they cannot be read."""
        with contextlib.suppress(OSError):
            return frozenset(_read(self.path.with_suffix(".notes")).decode("utf-8", "replace").splitlines())
        return frozenset()

    def save(self, value: Any) -> bool:
        """Write a new generation. False, logged once a streak, if the disk will not have it: watching goes on."""
        return self.write(encode(value))

    def write(self, data: bytes) -> bool:
        """As `save`, of what `encode` gave."""
        temporary, previous = self.path.with_suffix(".new"), self.path.with_suffix(".previous")
        try:
            self._write(temporary, data)
            with contextlib.suppress(FileNotFoundError):  # the first generation, or a crash came between these two
                os.replace(self.path, previous)
            os.replace(temporary, self.path)
            directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            self.failures += 1
            if self.failures == 1:
                _log.warning("state=%s not saved: %s; watching goes on", self.path, error)
            return False
        self.failures = 0
        return True

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o600)
        except FileExistsError:  # left by a crash, or laid there
            os.unlink(path)
            descriptor = os.open(path, flags, 0o600)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _read(path: Path) -> bytes:
    """The whole file. OSError also for one that is not ours to believe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        _check_owner(found)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        return stream.read()


def _check_owner(found: os.stat_result) -> None:
    """Raises OSError. Root's is taken: who is root needs no tricks, and volumes of containers are root's."""
    if found.st_uid not in (os.geteuid(), 0):
        raise OSError(errno.EPERM, f"it belongs to another user (uid {found.st_uid})")


class Keeps(Protocol):
    """Where a state is written to: the disk, or a topic."""

    def write(self, data: bytes) -> bool:
        """False: it is not there."""
        ...


class Saver:
    """Writes in a thread of its own, so that a disk that hangs does not stop the loop."""

    def __init__(self, store: Keeps, written: Callable[[], None] = lambda: None) -> None:
        """`written` is called in the saver's thread after each try."""
        self._store = store
        self._written = written
        self._data: bytes | None = None
        self._changed = threading.Condition()
        self._busy = self._ended = False
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="state", daemon=True)
        self._thread.start()

    def offer(self, data: bytes) -> None:
        """To be written next; what waits is replaced."""
        with self._changed:
            self._data = data
            self._changed.notify_all()

    @property
    def busy(self) -> bool:
        """Is something written, or does it wait?"""
        with self._changed:
            return self._busy or self._data is not None

    @property
    def failures(self) -> int:
        """Generations that the disk would not have, so far."""
        with self._changed:
            return self._failures

    def wait(self, timeout: float) -> bool:
        """Until nothing waits to be written, for so long at most."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy and self._data is None, timeout)

    def end(self) -> None:
        """Take nothing more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._data is not None or self._ended)
                if self._data is None:
                    return
                data, self._data, self._busy = self._data, None, True
            good = self._store.write(data)
            with self._changed:
                self._busy = False
                self._failures += not good
                self._changed.notify_all()
            self._written()
