"""Which agents (carriers) were heard until when. An agent that sends heartbeats is deaf when they stay away; silence of
its streams is then no evidence. Of one that sends none nobody can say so.

Kept in a file beside the spool: an agent that died while the monitor was away must not look as if it had never been,
and the first lines that come to a new process are dated as those before.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import msgspec

from megatron_monitor.pushed import Heard, Remembered
from megatron_monitor.system.clock import Clock, SteadyClock

EVERY = 5.0  # seconds between two heartbeats: a twelfth of the shortest hang budget (60 s)
_OVERDUE = 1.5  # intervals between two heartbeats: one may be on its way
_FORGOTTEN = 7 * 86400.0  # seconds: the node is gone
_SAVED = 5.0  # seconds between two saves
_MOST = 20_000  # names that are kept
_DELAYS = 12  # heartbeats, of which the quickest tells how far its clock is from ours
_AGREE = 3  # of the last ones that come alike after they were sent: a backlog comes later and later, or sooner
_APART = 5.0  # seconds: clocks that NTP sets are nearer; less is the way


class Carriers:
    """Told by the threads that take pushes, asked by the loop."""

    def __init__(self, path: Path | None, every: float = EVERY, clock: Clock | None = None) -> None:
        """`path` is where they are kept (None: elsewhere), `every` seconds between two heartbeats. `clock` is ours, and
        may be set; None where times are another's.
        """
        self._path, self._every, self._late = path, every, _OVERDUE * every
        self._steady = SteadyClock(clock) if clock is not None else None
        self._behind: dict[str, float] = {}
        self._set_by = 0.0  # seconds, our clock since we began
        self._lock = threading.Lock()
        self._heard: dict[str, float] = {}
        self._beating: set[str] = set()
        self._delays: dict[str, deque[float]] = {}
        self._saved_at = 0.0
        self._unsaved = False  # an agent is new

    def load(self) -> None:
        """Those that were known. What cannot be read is none."""
        if self._path is not None:
            with contextlib.suppress(OSError, ValueError):  # no JSON, or no text
                self.restore(msgspec.json.decode(self._path.read_bytes(), type=dict[str, Remembered]))

    def restore(self, known: Mapping[str, Remembered]) -> None:
        """These were known."""
        for name, (heard, behind) in known.items():
            self._heard[name] = heard
            self._beating.add(name)
            if behind is not None:
                self._behind[name] = behind

    @property
    def kept(self) -> dict[str, Remembered]:
        """Of those that beat."""
        return {name: Remembered(self._heard[name], self._behind.get(name)) for name in self._beating}

    def note(self, carrier: str, until: float, now: float, *, heartbeat: bool) -> None:
        """It was heard at `now`, and told what had been until then by its own clock (Unix seconds)."""
        with self._lock:
            self._look(now)
            if len(self._heard) >= _MOST and carrier not in self._heard:
                return
            if heartbeat:
                delays = self._delays.setdefault(carrier, deque(maxlen=_DELAYS))
                delays.append(now - until)
                last = list(delays)[-_AGREE:]
                if len(last) > 1 and max(last) - min(last) < self._every / 2.0:
                    self._behind[carrier] = min(last)
                elif carrier in self._behind and now - until < self._behind[carrier]:
                    self._behind[carrier] = now - until  # nothing comes before it was sent
                self._unsaved = self._unsaved or carrier not in self._beating
                self._beating.add(carrier)
            until += self._behind.get(carrier, min(self._delays.get(carrier, (0.0,))))
            self._heard[carrier] = max(self._heard.get(carrier, 0.0), min(until, now))

    def save(self, now: float) -> None:
        """Keep what was noted, every few seconds; an agent that is new at once."""
        with self._lock:
            if self._unsaved or not 0.0 <= now - self._saved_at < _SAVED:
                self._save(now)

    def heard(self, now: float) -> Heard:
        """At this moment, Unix seconds."""
        with self._lock:
            self._look(now)
            deaf = {one: self._heard[one] for one in self._beating if now - self._heard[one] > self._late}
            count = len(self._beating)
            states = {"active": count - len(deaf), "stale": len(deaf), "without_heartbeat": len(self._heard) - count}
            behind = {one: seconds for one, seconds in self._behind.items() if abs(seconds) > _APART}
            others = self._set_by if abs(self._set_by) > _APART else 0.0
            return Heard(deaf, frozenset(self._beating), states, behind, others)

    def _look(self, now: float) -> None:
        """Was our clock set? What was told by it, and how far it was from others', moves with it."""
        if self._steady is None or not (step := self._steady.look()):
            return
        self._set_by += step
        self._heard = {one: at + step for one, at in self._heard.items()}
        self._behind = {one: seconds + step for one, seconds in self._behind.items()}
        self._delays = {one: deque((seconds + step for seconds in some), _DELAYS) for one, some in self._delays.items()}
        self._save(now)  # what was saved is another clock's

    def _save(self, now: float) -> None:
        """Not synced: who was heard is told anew within seconds of a power cut."""
        self._saved_at, self._unsaved = now, False
        for name in [name for name, at in self._heard.items() if now - at > _FORGOTTEN]:
            self._beating.discard(name)
            for table in (self._heard, self._behind, self._delays):
                table.pop(name, None)
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            temporary = self._path.with_suffix(".new")
            temporary.write_bytes(msgspec.json.encode(self.kept))
            os.replace(temporary, self._path)
