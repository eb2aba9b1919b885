"""Decides which runs are observed, and since when a run is not.

A blocked mount, a stale agent or an unreadable file makes the silence of its streams meaningless. A hang needs one
observed stream with steps; other incidents need any observed stream. The run's `Coverage` counts the observed time.
"""

import logging
from collections.abc import Collection, Mapping, Sequence

from megatron_monitor.core.logs import Log
from megatron_monitor.core.runs import Run
from megatron_monitor.core.sources import Source
from megatron_monitor.core.watched import Watched
from megatron_monitor.follow.messages import UnobservedTime
from megatron_monitor.pushed import AgentStates, agent_at

_LOST = 60.0  # seconds after which a stale agent is reported
_log = logging.getLogger(__name__)


class Observing:
    """The unobserved mounts and agents, with the instant until which each was observed."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._mounts: dict[str, float] = {}
        self._agents: dict[str, float] = {}
        self._lost: dict[str, bool] = {}  # reported stale agent -> its lines are refused
        self._beating: Collection[str] | None = None
        self._counted = 0, 0
        self._states: AgentStates | None = None
        self._receiver: float | None = None

    def listen(self, mounts: Mapping[str, float], now: float, states: AgentStates | None = None) -> None:
        """Update what is observed: `mounts` and the stale agents of `states` until the given instants, all others now.

        `states`: None if no stream is pushed. All read messages must be handled before.
        """
        self._states = states
        beating, offset = states and states.agents.keys(), self._watched.wall_offset
        agents = {agent: min(at - offset, now) for agent, at in states.stale.items()} if states else {}
        until = states.observed_until if states else None
        receiver = min(until - offset, now) if until is not None else None
        count = (0, 0) if beating is None else (len(self._watched.sources), len(self._watched.runs))
        known = self._mounts.keys(), self._agents.keys(), self._receiver is None, self._beating, self._counted
        if known != (mounts.keys(), agents.keys(), receiver is None, beating, count):
            self._mounts, self._agents, self._receiver = dict(mounts), agents, receiver
            self._beating, self._counted = beating, count
            for run in self._watched.runs.values():
                self.follow(run, now)
        refused = states.refused if states else ()
        known_until = now if receiver is None else receiver  # a receiver that does not run hears no agent
        self._report_lost({one: one in refused for one, since in agents.items() if known_until - since >= _LOST}, now)

    def _report_lost(self, lost: dict[str, bool], now: float) -> None:
        """Report the agents that have been stale for long (True: their lines are refused), and those that returned."""
        changed, self._lost = {agent for agent, _ in lost.items() ^ self._lost.items()}, lost
        for source in [one for one in self._watched.sources.values() if _agent(one) in changed] if changed else ():
            agent = _agent(source)
            why = "its agent {} sends neither lines nor heartbeats", "the receiver refuses the lines of its agent {}"
            text = why[lost[agent]].format(agent) if agent in lost else None
            self.note(source.run, source.name, source.log, text, now)

    def note(self, run: Run | None, name: str, log: Log, why: str | None, now: float) -> None:
        """Note in the run, if it has begun, why that source of its log cannot be read; None: it can be."""
        if run is None:
            return
        if why is None:
            run.state.unreadable.pop(name, None)
        else:
            run.state.unreadable[name] = why
        unreadable = run.state.unreadable
        run.state.lost = bool(unreadable) and unreadable.keys() >= log.sources.keys()
        self.follow(run, now)
        self._watched.request(run)

    def behind_us(self, source: Source) -> float:
        """Return the seconds to add to the times of a pushed stream's agent."""
        return self._states.clock_offset(_agent(source)) if self._states is not None else 0.0

    def shift_of(self, source: Source) -> float | None:
        """Return the seconds by which the clock of a pushed stream's agent was set back; None without heartbeats."""
        agent = self._states.agents.get(_agent(source)) if self._states is not None else None
        return None if agent is None else agent.shift

    def follow(self, run: Run, now: float) -> None:
        """Begin or end a gap in the run's coverage, depending on its streams."""
        reporting, state = run.log.with_steps(), run.state
        coverage = state.coverage
        state.no_heartbeat = bool(reporting) and all(
            source.ordered is not None and _agent(source) not in (self._beating or ()) for source in reporting
        )
        if run.away:
            return
        since = self._since_all(reporting)
        partial = since is not None and self._since_all([*run.log.sources.values()]) is None
        if since is None and state.lost:
            since, partial = now if coverage.until is None else coverage.until, True
        changed = coverage.go_on(now) if since is None else coverage.stop(since, partial=partial)
        if changed:
            self._watched.request(run)

    def _since_all(self, sources: Sequence[Source]) -> float | None:
        """Return the instant until which any source was observed; None if one is observed now, or without sources."""
        since = [one for one in map(self._since, sources) if one is not None]
        return max(since) if since and len(since) == len(sources) else None

    def _since(self, source: Source) -> float | None:
        receiver = self._receiver if source.ordered is not None else None
        found = [self._mounts.get(source.mount), self._agents.get(_agent(source)), receiver]
        return min((one for one in found if one is not None), default=None)

    def unobserved(self, message: UnobservedTime, now: float) -> None:
        """A mount was unobserved for some time, and its content follows; `listen` is called then."""
        self._mounts[message.mount] = min(now - message.seconds, self._mounts.get(message.mount, now))
        for run in self._watched.runs.values():
            if any(source.mount == message.mount for source in run.log.sources.values()):
                self.follow(run, now)
                self._watched.touch(run.log.name)
        self._watched.counts.add("unobserved_seconds_total", message.mount, by=message.seconds)
        _log.warning(
            "mount=%s was not observed for %.1f s: that time does not count as silence", message.mount, message.seconds
        )


def _agent(source: Source) -> str:
    return "" if source.ordered is None else agent_at(source.path)
