"""When each agent was last seen, and how far its clock differs from the receiver's.

The silence of a stream means nothing while its agent is stale. Only an agent that sends heartbeats can become stale.
The report is written to a file each second, for the daemon and for a restarted receiver.
"""

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Mapping
from math import ceil
from pathlib import Path

import msgspec

from megatron_monitor.pushed import CLOCK_TOLERANCE, LATE, Agent, AgentReport
from megatron_monitor.store import replace_file
from megatron_monitor.system.clock import Clock, SteadyClock

_HEARTBEAT_INTERVAL = 5.0  # seconds: a twelfth of the shortest progress timeout (60 s)
_FORGET_AGENT = 7 * 86400.0  # seconds without a line
_MAX_AGENTS = 20_000
_DELAYS_KEPT = 12  # heartbeats: the smallest delay shows how far the clocks differ
_SIMILAR_DELAYS = 3  # last heartbeats with similar delays prove a clock; those of a backlog change steadily


class Agents:
    """The known agents. Any thread may note an agent and ask for the report."""

    def __init__(self, path: Path | None = None, clock: Clock | None = None) -> None:
        """`path`: the file of the report; None: no file. `clock`: the receiver's, which may be set; None if all times
        come from records.
        """
        self._path = path
        self._clock = clock
        self._steady = None if clock is None else SteadyClock(clock)
        self._lock = threading.Lock()
        self._agents: dict[str, Agent] = {}  # those that send heartbeats; times as if our clock was never set
        self._delays: dict[str, deque[float]] = {}
        self.tenants = 1
        """Number of tenants: each has its share of the agents."""
        self._of_tenant: Counter[str] = Counter()

    def load(self) -> None:
        """Restore the agents of the file. A file that cannot be read holds none. The time since it was written makes an
        agent stale, but is no silence of its own. If the host has not booted since, the monotonic clock shows by how
        much the wall clock was set meanwhile; otherwise it counts as not set.
        """
        if self._path is not None:
            with contextlib.suppress(OSError, ValueError):
                report = msgspec.json.decode(self._path.read_bytes(), type=AgentReport)
                if self._clock is not None:
                    self._steady = SteadyClock(self._clock, origin=report.origin)
                comparable = self._steady is not None and self._steady.origin == report.origin
                set_by = report.others_behind if comparable else 0.0
                written_at = report.written_at - set_by
                now = written_at if self._steady is None else self._steady.now()
                for agent in report.agents.values():
                    seen = agent.seen - set_by
                    agent.seen = min(seen + now - written_at, max(seen, now - LATE))
                    known = comparable or abs(agent.behind or 0.0) > CLOCK_TOLERANCE
                    agent.behind = agent.behind - set_by if known and agent.behind is not None else None
                    agent.refused = 0.0  # it says so again
                self.restore(report.agents)

    def restore(self, agents: Mapping[str, Agent]) -> None:
        """Add agents that were known before."""
        self._agents |= agents
        self._of_tenant = Counter(map(tenant_of, self._agents))

    def note(self, name: str, until: float, now: float, *, heartbeat: bool, refused: bool = False) -> None:
        """Note lines that came at `now` and were written at `until` by the agent's own clock (Unix seconds). `refused`:
        the heartbeat states that earlier lines wait for the receiver, so the agent's streams are not observed.
        """
        with self._lock:
            now -= self._set_by()
            agent = self._agents.get(name)
            if agent is None:
                tenant = tenant_of(name)
                if not heartbeat or max(self._of_tenant[tenant] * self.tenants, len(self._agents)) >= _MAX_AGENTS:
                    return
                agent = self._agents[name] = Agent(0.0)
                self._of_tenant[tenant] += 1
            if heartbeat:
                self._measure(name, agent, now - until)
            offset = min(self._delays.get(name, (0.0,))) if agent.behind is None else agent.behind + agent.shift
            if refused:
                agent.refused, agent.seen = now, agent.seen or now
            else:
                agent.seen = max(agent.seen, min(until + offset, now))

    def _measure(self, name: str, agent: Agent, delay: float) -> None:
        """Measure the agent's clock by a heartbeat that came `delay` seconds after it was sent."""
        delays = self._delays.setdefault(name, deque(maxlen=_DELAYS_KEPT))
        delays.append(delay)
        last = list(delays)[-_SIMILAR_DELAYS:]
        before = agent.behind
        if len(last) > 1 and max(last) - min(last) < _HEARTBEAT_INTERVAL / 2.0:
            behind = min(last) - agent.shift
            if before is not None and behind - before > CLOCK_TOLERANCE:  # its clock was set back
                agent.shift += ceil(behind - before)  # the stamps of its lines are moved by whole seconds
            else:
                agent.behind = behind
        elif before is not None and delay < before + agent.shift:
            agent.behind = delay - agent.shift  # nothing arrives before it was sent

    def offset(self, name: str) -> float:
        """Return the seconds to add to a time of its clock to get a time of the receiver's clock."""
        with self._lock:
            agent, set_by = self._agents.get(name), self._set_by()
        if agent is None:
            return set_by
        difference = 0.0 if agent.behind is None else agent.behind + set_by
        return (difference if abs(difference) > CLOCK_TOLERANCE else 0.0) + agent.shift

    def report(self, now: float) -> AgentReport:
        """Return the report at `now`, Unix seconds of the receiver's clock."""
        with self._lock:
            set_by = self._set_by()
            for name in [name for name, one in self._agents.items() if now - set_by - one.seen > _FORGET_AGENT]:
                del self._agents[name]
                self._of_tenant[tenant_of(name)] -= 1
                self._delays.pop(name, None)
            agents = {}
            for name, agent in self._agents.items():
                behind = None if agent.behind is None else agent.behind + set_by
                agents[name] = Agent(agent.seen + set_by, agent.refused + set_by, behind, agent.shift)
            return AgentReport(now, agents, set_by, ("", 0.0) if self._steady is None else self._steady.origin)

    def save(self, now: float) -> None:
        """Write the report. Not synced: after a power cut all agents send heartbeats within seconds."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                replace_file(self._path, [msgspec.json.encode(self.report(now))], 0o644, durably=False)

    def _set_by(self) -> float:
        """Return the seconds by which the receiver's clock was set."""
        if self._steady is None:
            return 0.0
        self._steady.look()
        return self._steady.offset


def tenant_of(agent: str) -> str:
    """Return the tenant of an agent by its name (see `labels.agent_of`)."""
    return agent.partition("%2F")[0]
