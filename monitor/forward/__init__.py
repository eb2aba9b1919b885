"""Our own forwarder: files that are followed here, pushed to a monitor elsewhere.

The follower reads them as the monitor does. A batch and the positions behind it are saved before it is sent, and the
next one is made when it was taken: after any death the same batch is sent again, with the same nanoseconds, which the
monitor drops if it has it. So each line counts once.
"""

import base64
import gzip
import http.client
import logging
import random
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from megatron_monitor import config
from megatron_monitor.follow.follower import Follower
from megatron_monitor.follow.inbox import Inbox
from megatron_monitor.follow.marker import Marker
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
from megatron_monitor.identity import named
from megatron_monitor.store import Store
from megatron_monitor.system.clock import Clock

_log = logging.getLogger(__name__)

PATH = "/loki/api/v1/push"
_BATCH = 1 << 20  # bytes of lines
_PAUSE = 0.5  # seconds between two batches at least: what is read together goes together
_TIMEOUT = 60.0  # of a push
_LONGEST_PAUSE = 30.0  # seconds between two tries
_HOPELESS = frozenset({400, 413, 415})


@dataclass
class Target:
    """A receiver, and as whom we push."""

    url: str
    user: str = ""
    secret_file: Path | None = None
    """The user's password, or a bearer token where there is no user. Read at each push."""

    def push(self, body: bytes) -> float | None:
        """Loki's JSON in gzip. None if that is done, else seconds after which to try again."""
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        try:
            if self.secret_file is not None:
                secret = self.secret_file.read_text("utf-8").strip("\r\n")
                basic = f"Basic {base64.b64encode(f'{self.user}:{secret}'.encode()).decode()}"
                headers["Authorization"] = basic if self.user else f"Bearer {secret}"
            request = urllib.request.Request(self.url, body, headers)  # noqa: S310 - the command looked at it
            urllib.request.urlopen(request, timeout=_TIMEOUT).close()  # noqa: S310 - as above
        except urllib.error.HTTPError as error:
            said = error.read(200).decode("utf-8", "replace").strip()
            _log.warning("push refused: %d %s", error.code, said)
            later = error.headers.get("Retry-After", "0")
            return None if error.code in _HOPELESS else float(later) if later.isdigit() else 0.0
        except (OSError, http.client.HTTPException) as error:
            _log.warning("push failed: %s", error)
            return 0.0
        return None


_PART = "progress"  # all that is kept


@dataclass(slots=True)
class Progress:
    """What the state file holds."""

    positions: dict[str, Position] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    """The nanosecond of each file's last line: no two lines share one."""
    batch: bytes = b""
    """Sent, or to be sent, up to these positions."""


class _Tail:
    """One followed file: what was read of it, and what of that is to be sent."""

    def __init__(self, labels: dict[str, str], last: int, former: tuple[Fingerprint, ...]) -> None:
        self.labels, self.last = labels, last
        self.marker = Marker(former)
        self.caught_up = False
        self.rest = b""
        self.lines: list[tuple[str, str]] = []

    def take(self, data: bytes, at: float) -> int:
        """Lines that were written at about `at`, Unix seconds; their bytes."""
        whole, end, self.rest = (self.rest + data).rpartition(b"\n")
        if not end:
            return 0
        self.last = max(self.last, int(at * 1e9) - 1)
        for line in whole.split(b"\n"):
            self.last += 1
            self.lines.append((str(self.last), line.decode("utf-8", "replace")))
        return len(whole)

    def end(self, at: float) -> None:
        """No more comes of this content: what it ends with is a line."""
        if self.rest:
            self.take(b"\n", at)

    @property
    def position(self) -> Position:
        """Behind its last whole line."""
        return self.marker.position(self.marker.fed_to - len(self.rest))


class Forwarder:
    """Made from patterns; `run` until stopped."""

    def __init__(
        self,
        watches: Sequence[WatchedPath],
        target: Target,
        labels: Mapping[str, str],
        directory: Path,
        clock: Clock,
        heartbeat: tuple[str, str, float],
    ) -> None:
        """`labels` are put on every line, before those that a path tells. `heartbeat`: label, the agent's name, seconds
        between two. State in `directory`: StateInUseError, StateNewerError, OSError.
        """
        self._stopping = threading.Event()
        self._target, self._clock = target, clock
        label, name, self._every = heartbeat
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
        self._tails: dict[str, _Tail] = {}
        self._forgotten: set[str] = set()  # files that are followed no more
        self._inbox = Inbox(QUEUE_SIZE)
        self._follower = Follower(watches, self._progress.positions, self._inbox, clock=clock)
        self._beat_at = float("-inf")
        self._ready = 0  # bytes of lines that are to be sent

    def stop(self) -> None:
        """End at the next turn. Safe in a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Follow and push. RuntimeError if a reader thread has ended by a bug."""
        try:
            self._deliver()
            self._follower.start()
            while not self._stopping.is_set():
                self._turn()
                if self._follower.over and self._inbox.empty():
                    self._turn(last=True)
                    return
                if not self._follower.alive:
                    raise RuntimeError("a reader thread has ended: its traceback stands above")
        finally:
            self._follower.stop(STOP_SECONDS)
            self._store.release()

    def _turn(self, *, last: bool = False) -> None:
        self._inbox.wait(0.0 if last else _PAUSE, 0.0)
        while self._ready < _BATCH and (messages := self._inbox.get_some()):
            for message in messages:
                self._take(message)
        for tail in self._tails.values() if last else ():
            tail.end(self._clock.wall())
        blocked = any(mount.unobserved_seconds for mount in self._follower.status())
        self._push_lines()
        for name in self._forgotten:
            for kept in (self._tails, self._progress.positions, self._progress.last):
                kept.pop(name, None)
        self._forgotten.clear()
        # Behind the lines that were there: what is silent then was silent. Who cannot read does not say that he lives.
        if self._clock.monotonic() >= self._beat_at and not (blocked or self._stopping.is_set()):
            self._beat()

    def _push_lines(self) -> None:
        """What is there, once it is written down that it is on its way."""
        streams = [{"stream": tail.labels, "values": tail.lines} for tail in self._tails.values() if tail.lines]
        if not streams:
            return
        self._progress.positions |= {name: tail.position for name, tail in self._tails.items()}
        self._progress.last |= {name: tail.last for name, tail in self._tails.items()}
        self._progress.batch = gzip.compress(msgspec.json.encode({"streams": streams}), 1)
        parts = {_PART: msgspec.msgpack.encode(self._progress)}
        while not self._store.save(parts) and not self._stopping.wait(_LONGEST_PAUSE):
            pass  # what is sent without it would be sent twice after a death
        self._deliver()
        self._ready = 0
        for tail in self._tails.values():
            tail.lines = []

    def _beat(self) -> None:
        values = [(str(int(self._clock.wall() * 1e9)), "alive")]
        beat = {"stream": {**self._agent, "heartbeat": "forward"}, "values": values}
        self._beat_at = self._clock.monotonic() + self._every
        self._target.push(gzip.compress(msgspec.json.encode({"streams": [beat]})))

    def _take(self, message: Message) -> None:
        match message:
            case Opened():
                self._begin(message)
            case Scanned():
                self._forgotten.update(message.forgotten)
            case Data() if tail := self._tails.get(message.source):
                tail.marker.feed(message)
                at = message.at if tail.caught_up else min(message.mtime, message.at)
                self._ready += tail.take(message.data, at)
            case CaughtUp() if tail := self._tails.get(message.source):
                tail.caught_up = True
            case Restarted() | Gone() if tail := self._tails.get(message.source):
                tail.end(message.at)
                if isinstance(message, Restarted):
                    tail.marker.feed(message)

    def _begin(self, message: Opened) -> None:
        self._forgotten.discard(message.source)
        labels = {"run": named(message.source, self._watches).name, "filename": message.source, **self._labels}
        last = self._progress.last.get(message.source, 0)
        saved, before = self._progress.positions.get(message.source), self._tails.get(message.source)
        former = before.marker.former if before is not None else saved.former if saved is not None else ()
        self._tails[message.source] = tail = _Tail(labels, last, former)
        tail.marker.feed(message)

    def _deliver(self) -> None:
        """Push the saved batch until it is taken; what can never be read there is given up."""
        pause = 0.2
        while self._progress.batch and not self._stopping.is_set():
            wait = self._target.push(self._progress.batch)
            if wait is None:
                self._progress.batch = b""
            else:
                pause = min(_LONGEST_PAUSE, 2 * pause)
                self._stopping.wait(max(wait, pause * random.uniform(0.5, 1.0)))  # noqa: S311 - so that not all come at once
