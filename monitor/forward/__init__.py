"""The forwarder: follows files on this host and pushes their lines to a receiver elsewhere.

It reads files like the monitor does. A batch and the positions after it are saved before it is sent, and the next batch
is made once it was accepted. After a kill the same batch is sent again, with equal nanoseconds, and the receiver drops
the lines that it has: each line counts once.
"""

import gzip
import http.client
import logging
import random
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from megatron_monitor import config
from megatron_monitor.follow.content import Content
from megatron_monitor.follow.follower import Follower
from megatron_monitor.follow.inbox import Inbox
from megatron_monitor.follow.messages import (
    CaughtUp,
    Data,
    Fingerprint,
    Gone,
    Message,
    Opened,
    Position,
    Restarted,
    Scanned,
)
from megatron_monitor.follow.patterns import WatchedPath
from megatron_monitor.follow.settings import QUEUE_SIZE, STOP_SECONDS
from megatron_monitor.identity.naming import named
from megatron_monitor.notifiers.posting import opener
from megatron_monitor.pushed import REFUSED
from megatron_monitor.store import Store
from megatron_monitor.system.clock import Clock, SteadyClock
from megatron_monitor.system.flag import Flag

_log = logging.getLogger(__name__)

PATH = "/loki/api/v1/push"
_BATCH_BYTES = 1 << 20
# Seconds:
_MIN_PAUSE = 0.5  # between two batches
_TIMEOUT = 60.0  # of a push
_MAX_RETRY_PAUSE = 30.0
_ACCEPTED = 204
_PERMANENT_ERRORS = frozenset({400, 413, 415})
_PART = "progress"  # the only part of the state file


@dataclass
class Target:
    """A receiver."""

    url: str
    token_file: Path | None = None
    """Read at each push."""

    def push(self, body: bytes) -> float | None:
        """Push Loki's JSON in gzip. Returns the seconds after which to try again; None if no other try is needed.

        Only the answer of a receiver confirms lines: no redirect is followed, and a page of another server is none.
        """
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        try:
            if self.token_file is not None:
                headers["Authorization"] = f"Bearer {self.token_file.read_text('utf-8').strip()}"
            request = urllib.request.Request(self.url, body, headers)  # noqa: S310 - the command checked it
            with opener().open(request, timeout=_TIMEOUT) as answer:
                status, text = answer.status, answer.read(200).decode("utf-8", "replace").strip()
                retry_after = answer.headers.get("Retry-After", "0")
        except (OSError, http.client.HTTPException) as error:
            _log.warning("push to %s failed: %s", self.url, error)
            return 0.0
        if status == _ACCEPTED:
            return None
        _log.warning("push to %s refused: %d %s", self.url, status, text)
        if status in _PERMANENT_ERRORS:
            return None
        return min(_MAX_RETRY_PAUSE, float(retry_after)) if retry_after.isdecimal() else 0.0


@dataclass(slots=True)
class Progress:
    """The content of the state file."""

    positions: dict[str, Position] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    """File -> Unix nanosecond of its last line; no two lines share one."""
    batch: bytes = b""  # the lines before these positions, until they are accepted
    wall_offset: float = 0.0  # seconds by which the wall clock was set
    saved_at: float = float("-inf")


class _NeverSet:
    """The host's clocks, but wall time does not jump. Otherwise all lines after the clock was set back would have the
    time of the last one before, because no two lines share a nanosecond and none goes back.
    """

    def __init__(self, clock: Clock, steady: SteadyClock) -> None:
        self.wall, self.monotonic, self.sleep = steady.now, clock.monotonic, clock.sleep


class _ForwardedFile:
    """A followed file: what was read of it, and the lines to be sent."""

    def __init__(self, labels: dict[str, str], last: int, former: tuple[Fingerprint, ...]) -> None:
        self.labels, self.last = labels, last
        self.content, self.former, self.written = Content(), former, 0.0
        self.caught_up = False
        self.rest = b""
        self.lines: list[tuple[str, str]] = []

    def add(self, data: bytes, at: float) -> int:
        """Add bytes that were written at about `at` (Unix seconds). Returns the bytes of the complete lines."""
        complete, end, self.rest = (self.rest + data).rpartition(b"\n")
        if not end:
            return 0
        self.last = max(self.last, int(at * 1e9) - 1)
        for line in complete.split(b"\n"):
            self.last += 1
            self.lines.append((str(self.last), line.decode("utf-8", "replace")))
        return len(complete)

    def end_content(self, at: float) -> None:
        """End the last line: no more bytes of this content come."""
        if self.rest:
            self.add(b"\n", at)

    @property
    def position(self) -> Position:
        """The position after the last complete line."""
        return self.content.position(self.content.offset - len(self.rest), self.former, self.written)


class Forwarder:
    """Follows patterns and pushes their lines; `run` until stopped."""

    def __init__(
        self,
        watches: Sequence[WatchedPath],
        target: Target,
        labels: Mapping[str, str],
        directory: Path,
        clock: Clock,
        heartbeat: tuple[str, str, float],
    ) -> None:
        """`labels` are added to every line and override those from its path. `heartbeat`: label, the agent's name,
        seconds between two. The state is in `directory`: StateInUseError, StateNewerError, OSError.
        """
        self._stopping = Flag()
        self._target = target
        label, name, self._heartbeat_interval = heartbeat
        self._agent = {label: name}
        self._labels = {**self._agent, "node_name": name, **labels}
        self._watches = (config.Watch(paths=tuple(watch.pattern for watch in watches)),)
        self._store = Store(directory)
        self._store.lock()
        parts, problems = self._store.load()
        self._progress = Progress()
        try:
            self._progress = msgspec.msgpack.decode(parts[_PART], type=Progress) if parts else self._progress
        except (msgspec.MsgspecError, KeyError) as error:
            problems.append(f"{self._store.path}: its contents do not fit: {error}")
        for problem in problems:
            _log.warning("state %s; the files are sent from their beginnings", problem)
        self._files: dict[str, _ForwardedFile] = {}
        self._forgotten: set[str] = set()
        self._steady = SteadyClock(clock, self._progress.wall_offset, self._progress.saved_at)
        self._clock = _NeverSet(clock, self._steady)
        self._inbox = Inbox(QUEUE_SIZE)
        self._follower = Follower(watches, self._progress.positions, self._inbox, clock=self._clock)
        self._heartbeat_at = float("-inf")
        self._ready_bytes = 0

    def stop(self) -> None:
        """End at the next turn. Safe in a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Follow and push. Raises RuntimeError if a reader thread has ended by a bug."""
        try:
            self._deliver()
            self._follower.start()
            while not self._stopping.is_set():
                self._turn()
                if self._follower.over and self._inbox.empty():
                    self._turn(last=True)
                    return
                if not self._follower.alive:
                    raise RuntimeError("a reader thread has ended by a bug: see the traceback above")
        finally:
            self._follower.stop(STOP_SECONDS)
            self._store.release()

    def _turn(self, *, last: bool = False) -> None:
        self._inbox.wait(0.0 if last else _MIN_PAUSE, 0.0)
        while self._ready_bytes < _BATCH_BYTES and (messages := self._inbox.get_some()):
            for message in messages:
                self._handle(message)
        for file in self._files.values() if last else ():
            file.end_content(self._clock.wall())
        is_observed = not any(mount.unobserved_seconds for mount in self._follower.status())
        self._push_lines()
        for name in self._forgotten:
            for table in (self._files, self._progress.positions, self._progress.last):
                table.pop(name, None)
        self._forgotten.clear()
        # After the lines, so that a silence before the heartbeat is real; none while a mount cannot be read.
        if is_observed and not self._stopping.is_set():
            self._send_heartbeat("forward")

    def _send_heartbeat(self, kind: str) -> None:
        if self._clock.monotonic() >= self._heartbeat_at:
            self._heartbeat_at = self._clock.monotonic() + self._heartbeat_interval
            values = [(str(int(self._clock.wall() * 1e9)), "alive")]
            stream = {"stream": {**self._agent, "heartbeat": kind}, "values": values}
            self._target.push(gzip.compress(msgspec.json.encode({"streams": [stream]})))

    def _push_lines(self) -> None:
        """Save the lines as a batch with their positions, then push them."""
        streams = [{"stream": file.labels, "values": file.lines} for file in self._files.values() if file.lines]
        if not streams:
            return
        self._progress.positions |= {name: file.position for name, file in self._files.items()}
        self._progress.last |= {name: file.last for name, file in self._files.items()}
        self._progress.batch = gzip.compress(msgspec.json.encode({"streams": streams}), 1)
        self._steady.look()
        self._progress.wall_offset, self._progress.saved_at = self._steady.offset, self._steady.now()
        parts = {_PART: msgspec.msgpack.encode(self._progress)}
        while not self._store.save(parts) and not self._stopping.wait(_MIN_PAUSE):
            pass  # a batch that is sent without being saved would be sent twice after a kill
        self._deliver()
        self._ready_bytes = 0
        for file in self._files.values():
            file.lines = []

    def _handle(self, message: Message) -> None:
        match message:
            case Opened():
                self._open(message)
            case Scanned():
                self._forgotten.update(message.forgotten)
            case Data() if file := self._files.get(message.source):
                file.content = message.content or Content(offset=message.offset + len(message.data))
                file.written = message.mtime
                at = message.at if file.caught_up else min(message.mtime, message.at)
                self._ready_bytes += file.add(message.data, at)
            case CaughtUp() if file := self._files.get(message.source):
                file.caught_up = True
            case Restarted() | Gone() if file := self._files.get(message.source):
                file.end_content(message.at)
                if isinstance(message, Restarted) and message.content is not None:
                    file.content, file.former = message.content, message.former(file.former)

    def _open(self, message: Opened) -> None:
        self._forgotten.discard(message.source)
        labels = {"run": named(message.source, self._watches).name, "filename": message.source, **self._labels}
        last = self._progress.last.get(message.source, 0)
        saved, before = self._progress.positions.get(message.source), self._files.get(message.source)
        former = before.former if before is not None else saved.former if saved is not None else ()
        self._files[message.source] = file = _ForwardedFile(labels, last, former)
        file.content, file.written = message.content or Content(), message.mtime

    def _deliver(self) -> None:
        """Push the saved batch until it is accepted, or refused because it can never be read."""
        pause = 0.2
        while self._progress.batch and not self._stopping.is_set():
            wait = self._target.push(self._progress.batch)
            if wait is None:
                self._progress.batch = b""
            else:
                pause = min(_MAX_RETRY_PAUSE, 2 * pause)
                left = max(wait, pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the agents
                while left > 0.0 and not self._stopping.is_set():
                    if wait:  # the receiver answers
                        self._send_heartbeat(REFUSED)
                    self._stopping.wait(min(left, self._heartbeat_interval))
                    left -= self._heartbeat_interval
