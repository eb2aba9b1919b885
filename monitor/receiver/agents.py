"""When each agent was last heard from, and how far its clock is from the receiver's.

The silence of a stream means nothing while its agent is stale. Only an agent that sends heartbeats can be stale. The
report is written to a file each second: the observer reads it, and so does a receiver that starts again.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import msgspec

from megatron_monitor.pushed import Agent, AgentReport
from megatron_monitor.system.clock import Clock, SteadyClock

_EVERY = 5.0  # seconds between two heartbeats: a twelfth of the shortest hang budget (60 s)
_FORGOTTEN = 7 * 86400.0  # seconds: the node is gone
_MOST = 20_000  # agents that are known
_DELAYS = 12  # heartbeats, of which the quickest tells how far the clock is from ours
_AGREE = 3  # of the last ones that come alike after they were sent: a backlog comes later and later, or sooner
_APART = 5.0  # seconds: clocks that NTP sets are nearer; less is the way


class Agents:
    """Any thread may note an agent and ask for the report."""

    def __init__(self, path: Path | None = None, clock: Clock | None = None) -> None:
        """`path`: the file of the report; None: no file. `clock` is ours, and may be set; None where all times are
        another's.
        """
        self._path = path
        self._steady = SteadyClock(clock) if clock is not None else None
        self._lock = threading.Lock()
        self._beating: dict[str, Agent] = {}
        self._silent: dict[str, float] = {}  # agents without heartbeat -> their last line
        self._delays: dict[str, deque[float]] = {}
        self._set_by = 0.0  # seconds by which our clock was set since we began

    def load(self) -> None:
        """Know the agents of the file again. A file that cannot be read holds none."""
        if self._path is not None:
            with contextlib.suppress(OSError, ValueError):
                self.restore(msgspec.json.decode(self._path.read_bytes(), type=AgentReport).agents)

    def restore(self, known: Mapping[str, Agent]) -> None:
        """These were known."""
        self._beating |= known

    def note(self, agent: str, until: float, now: float, *, heartbeat: bool) -> None:
        """Something came from it at `now` that was written at `until` by its own clock (Unix seconds)."""
        with self._lock:
            self._look()
            known = self._beating.get(agent)
            if known is None and not heartbeat:
                if len(self._silent) < _MOST or agent in self._silent:
                    self._silent[agent] = now
                return
            if known is None:
                if len(self._beating) >= _MOST:
                    return
                known = self._beating[agent] = Agent(0.0)
                self._silent.pop(agent, None)
            if heartbeat:
                self._measure(agent, known, now - until)
            offset = min(self._delays.get(agent, (0.0,))) if known.behind is None else known.behind + known.shift
            known.seen = max(known.seen, min(until + offset, now))

    def _measure(self, agent: str, known: Agent, delay: float) -> None:
        """How far its clock is from ours, by a heartbeat that came `delay` seconds after it was sent."""
        delays = self._delays.setdefault(agent, deque(maxlen=_DELAYS))
        delays.append(delay)
        last = list(delays)[-_AGREE:]
        before = known.behind
        if len(last) > 1 and max(last) - min(last) < _EVERY / 2.0:
            found = min(last) - known.shift
            if before is not None and found - before > _APART:  # its clock was set back
                known.shift += found - before
            else:
                known.behind = found
        elif before is not None and delay < before + known.shift:
            known.behind = delay - known.shift  # nothing comes before it was sent

    def shift(self, agent: str) -> float:
        """Seconds to add to the stamps of its lines before they are written."""
        known = self._beating.get(agent)
        return known.shift if known is not None else 0.0

    def offset(self, agent: str) -> float:
        """Seconds to add to a time by its own clock to have ours."""
        known = self._beating.get(agent)
        apart = self._set_by if known is None else known.behind or 0.0
        return (apart if abs(apart) > _APART else 0.0) + self.shift(agent)

    def report(self, now: float) -> AgentReport:
        """At `now`, Unix seconds by our clock."""
        with self._lock:
            self._look()
            for table in (self._beating, self._silent):
                for name in [name for name, one in table.items() if now - _seen(one) > _FORGOTTEN]:
                    del table[name]
                    self._delays.pop(name, None)
            agents = {
                name: Agent(one.seen, one.behind if abs(one.behind or 0.0) > _APART else None, one.shift)
                for name, one in self._beating.items()
            }
            others = self._set_by if abs(self._set_by) > _APART else 0.0
            return AgentReport(now, agents, len(self._silent), others)

    def save(self, now: float) -> None:
        """Write the report. Not synced: after a power cut all agents send heartbeats within seconds."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                temporary = self._path.with_suffix(".new")
                temporary.write_bytes(msgspec.json.encode(self.report(now)))
                os.replace(temporary, self._path)

    def _look(self) -> None:
        """If our clock was set, what was measured by it moves with it."""
        if self._steady is None or not (step := self._steady.look()):
            return
        self._set_by += step
        self._silent = {name: at + step for name, at in self._silent.items()}
        self._delays = {name: deque((one + step for one in some), _DELAYS) for name, some in self._delays.items()}
        for one in self._beating.values():
            one.seen += step
            one.behind = one.behind + step if one.behind is not None else None


def _seen(known: Agent | float) -> float:
    return known.seen if isinstance(known, Agent) else known
