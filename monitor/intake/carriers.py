"""Which agents (carriers) were heard until when. An agent that sends heartbeats is deaf when they stay away; silence of
its streams is then no evidence. Of one that sends none nobody can say so.

Kept in a file beside the spool: an agent that died while the monitor was away must not look as if it had never been.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

_OVERDUE = 1.5  # intervals between two heartbeats: one may be on its way
_FORGOTTEN = 7 * 86400.0  # seconds: the node is gone
_SAVED = 5.0  # seconds between two saves
_MOST = 20_000  # names that are kept
_DELAYS = 12  # heartbeats, of which the quickest tells how far its clock is from ours


class Heard(NamedTuple):
    """Of the agents that send heartbeats."""

    deaf: dict[str, float]
    """Those of which nothing comes: until when they were heard, Unix seconds."""
    beating: frozenset[str]
    """All that send them."""
    states: dict[str, int]
    """How many are heard, deaf, or known by their lines alone."""


class Carriers:
    """Told by the threads that take pushes, asked by the loop."""

    def __init__(self, path: Path | None, every: float) -> None:
        """`path` is where they are kept (None: elsewhere), `every` seconds between two heartbeats."""
        self._path, self._late = path, _OVERDUE * every
        self._lock = threading.Lock()
        self._heard: dict[str, float] = {}
        self._beating: set[str] = set()
        self._delays: dict[str, deque[float]] = {}
        self._saved_at = 0.0

    def load(self) -> None:
        """Those that were known. What cannot be read is none."""
        if self._path is not None:
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                self.restore(msgspec.json.decode(self._path.read_bytes(), type=dict[str, float]))

    def restore(self, heard: Mapping[str, float]) -> None:
        """These were known."""
        self._heard, self._beating = dict(heard), set(heard)

    @property
    def kept(self) -> dict[str, float]:
        """What is to be known over a restart: until when those that beat were heard."""
        return {name: self._heard[name] for name in self._beating}

    def note(self, carrier: str, until: float, now: float, *, heartbeat: bool) -> None:
        """It was heard at `now`, and told what had been until then by its own clock (Unix seconds)."""
        with self._lock:
            if len(self._heard) < _MOST or carrier in self._heard:
                if heartbeat:
                    self._delays.setdefault(carrier, deque(maxlen=_DELAYS)).append(now - until)
                until += min(self._delays.get(carrier, (0.0,)))
                self._heard[carrier] = max(self._heard.get(carrier, 0.0), min(until, now))
                new = heartbeat and carrier not in self._beating
                if heartbeat:
                    self._beating.add(carrier)
                if new or (heartbeat and not 0.0 <= now - self._saved_at < _SAVED):
                    self._save(now)

    def heard(self, now: float) -> Heard:
        """At this moment, Unix seconds."""
        with self._lock:
            deaf = {one: self._heard[one] for one in self._beating if now - self._heard[one] > self._late}
            count = len(self._beating)
            states = {"heard": count - len(deaf), "deaf": len(deaf), "without_heartbeat": len(self._heard) - count}
            return Heard(deaf, frozenset(self._beating), states)

    def _save(self, now: float) -> None:
        """Not synced: who was heard is told anew within seconds of a power cut."""
        self._saved_at = now
        for name in [name for name, at in self._heard.items() if now - at > _FORGOTTEN]:
            del self._heard[name]
            self._beating.discard(name)
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            temporary = self._path.with_suffix(".new")
            temporary.write_bytes(msgspec.json.encode(self.kept))
            os.replace(temporary, self._path)
