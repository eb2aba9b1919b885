"""Two processes for one reading to the end: a fork reads and parses, this one folds and judges.

What the readers give crosses a pipe, in order; its size bounds how far the fork is ahead. Law: the core is left as one
process leaves it. A fork that dies ends the reading with ReadingError, never with less than all. The fork leaves by
os._exit: nothing that the parent has still to write or to do at its exit happens twice. It ends with the parent (nobody
reads the pipe any more), and the parent never leaves it behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import IO, NamedTuple, NoReturn, TypeAlias

from monitor.ahead import Absent, Parsed, ReadingError
from monitor.follow.messages import CaughtUp, Data, Gone, Message, Opened, Restarted, Scanned, Unreadable
from monitor.known import Source
from parsers.events import Event, LogEvent
from parsers.packed import Packed, pack, unpack
from parsers.reader import SourceReader
from parsers.scan import Rule

_PIPE_BYTES = 1 << 20  # what Linux lets anybody have; a message of a dense log has half of that
_LENGTH_BYTES = 8

Inert: TypeAlias = Callable[[Event], bool]
_Counted: TypeAlias = tuple[int, int, int]
"""Of one reader: bytes, lines, matched lines."""


class _Read(NamedTuple):
    """What one Data said."""

    source: str
    size: int
    mtime: float
    at: float
    behind_bytes: int
    counted: _Counted
    packed: Packed


class _Left(NamedTuple):
    """What the reader of a source gave when it was flushed."""

    source: str
    counted: _Counted
    entries: list[LogEvent]


class _Failed(NamedTuple):
    """An exception ended the reading."""

    traceback: str


class _End(NamedTuple):
    """Everything was read."""


_Wire: TypeAlias = Message | _Read | _Left | _Failed | _End


def may_part() -> bool:
    """Whether a second process gains something, and lacks nothing: a fork has of all threads only its own."""
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        return False
    return threading.active_count() == 1 and threading.current_thread() is threading.main_thread()


def read_elsewhere(
    messages: Iterator[Message], sources: Mapping[str, Source], rules: Sequence[Rule], inert: Inert
) -> Iterator[Message | Parsed]:
    """The rest of the messages, from another process; from this one, if there can be no other. `inert` is the core's
    (SourceReader.feed_stretches). Raises ReadingError.
    """
    inlet, outlet = os.pipe()
    # No interrupt may come to the other process before it knows that it is the other one.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        child = os.fork()
    except OSError:  # no memory, or too many processes
        child = -1
    if child == 0:
        _live(inlet, outlet, _reading(messages, sources, rules, inert))
    status: int | None = None
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(outlet)
        with open(inlet, "rb") as stream:
            if child < 0:
                yield from messages
                return
            if isinstance(messages, Generator):
                messages.close()  # the files are read from their descriptors over there
            yield from _received(stream)
    except EOFError:
        _, status = os.waitpid(child, 0)
        raise ReadingError(f"the process that reads the logs has died ({_end(status)}): not all was read") from None
    finally:
        if child > 0 and status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _end(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return f"exit status {os.waitstatus_to_exitcode(status)}"


def _received(stream: IO[bytes]) -> Iterator[Message | Parsed]:
    """Raises EOFError where they end too early."""
    readers: dict[str, Absent] = {}
    while not isinstance(message := _next(stream), _End):
        if isinstance(message, _Failed):
            raise ReadingError(f"the process that reads the logs has failed:\n{message.traceback}")
        if isinstance(message, _Read):
            reader = readers.setdefault(message.source, Absent())
            reader.told(message.counted)
            entries = unpack(message.packed)
            yield Parsed(message.source, message.size, message.mtime, message.at, message.behind_bytes, entries, reader)
        elif not isinstance(message, _Left):
            yield message
        elif message.source in readers:  # another was read to its end before and still has its own reader
            readers[message.source].told(message.counted)
            readers[message.source].left += message.entries


def _next(stream: IO[bytes]) -> _Wire:
    head = stream.read(_LENGTH_BYTES)
    size = int.from_bytes(head, "little")
    body = stream.read(size)
    if len(head) < _LENGTH_BYTES or len(body) < size:
        raise EOFError
    message: _Wire = pickle.loads(body)  # noqa: S301  (our own process wrote it)
    return message


# --- in the other process --------------------------------------------------------------------------------------------


def _live(inlet: int, outlet: int, messages: Iterator[_Wire]) -> NoReturn:
    """Everything that the other process does."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells both: the parent ends this one
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(inlet)
        gc.freeze()  # what is shared with the parent stays shared: the collector does not write into it
        with contextlib.suppress(OSError):  # a person's pipes may be used up
            fcntl.fcntl(outlet, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            for message in messages:
                _send(outlet, message)
            _send(outlet, _End())
            status = 0
        except BrokenPipeError:  # nobody wants to know any more
            pass
        except Exception:  # noqa: BLE001  (told by the parent)
            _send(outlet, _Failed(traceback.format_exc()))
    finally:
        os._exit(status)


def _send(outlet: int, message: _Wire) -> None:
    body = pickle.dumps(message, protocol=5)
    head = len(body).to_bytes(_LENGTH_BYTES, "little")
    written = os.writev(outlet, [head, body]) - len(head)  # more than a page: the head goes as a whole
    rest = memoryview(body)[written:]
    while rest:
        rest = rest[os.write(outlet, rest) :]


def _reading(
    messages: Iterator[Message], sources: Mapping[str, Source], rules: Sequence[Rule], inert: Inert
) -> Iterator[Message | _Read | _Left]:
    """Reads as the core does that these messages come to."""
    readers = {name: source.reader for name, source in sources.items()}
    caught_up = {name for name, source in sources.items() if source.caught_up}
    for message in messages:
        if isinstance(message, Data):
            if message.source in readers:
                yield _read(message, readers[message.source], None if message.source in caught_up else inert)
            continue
        if isinstance(message, Opened):
            readers[message.source] = SourceReader(rules)
            readers[message.source].skip(message.offset)
            caught_up.discard(message.source)
        elif isinstance(message, Restarted | Gone) and message.source in readers:
            if isinstance(message, Gone) or message.reason != "truncated":
                yield _left(message.source, readers[message.source])
            readers[message.source] = SourceReader(rules)
        elif isinstance(message, CaughtUp | Unreadable):
            caught_up.add(message.source)
        elif isinstance(message, Scanned):
            for name in message.forgotten:
                readers.pop(name, None)
        yield message
    for name, reader in readers.items():
        yield _left(name, reader)


def _read(message: Data, reader: SourceReader, inert: Inert | None) -> _Read:
    gap = message.offset - reader.fed_bytes
    if gap > 0:
        reader.skip(gap)
    reader.numbered = True
    packed = pack(reader.feed(message.data) if inert is None else reader.feed_stretches(message.data, inert))
    size = len(message.data)
    return _Read(message.source, size, message.mtime, message.at, message.behind_bytes, _counted(reader), packed)


def _left(source: str, reader: SourceReader) -> _Left:
    entries = reader.flush()
    return _Left(source, _counted(reader), entries)


def _counted(reader: SourceReader) -> _Counted:
    return reader.fed_bytes, reader.lines, reader.matched_lines
