"""Hearing: which runs nobody listens to.

A mount whose reader is blocked, and an agent (carrier) that is not heard, make the silence of the streams behind them
no evidence. A hang is judged while one of the streams that told the run's steps is heard, all else while any stream is.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from megatron_monitor.core.runs import Run, not_listened
from megatron_monitor.core.sources import Source
from megatron_monitor.core.watched import Watched
from megatron_monitor.follow.messages import Unheard
from megatron_monitor.pushed import Heard, carrier_at

_MOVED = 2.0  # seconds by which that instant has moved where a loop that is behind goes on taking what was read
_LOST = 60.0  # seconds after which people are told that an agent is deaf
_log = logging.getLogger(__name__)

Note = Callable[[Source, str | None, float], None]


class Hearing:
    """Since when nobody listens to what."""

    def __init__(self, watched: Watched, note: Note) -> None:
        """`note` tells a source's run why it cannot be read; None: it can."""
        self._watched, self._note = watched, note
        self._deaf: dict[str, float] = {}  # mount -> since when nobody listens to it
        self._silent: dict[str, float] = {}  # carrier -> since when nothing is heard of it
        self._lost: set[str] = set()  # of these, those of which people were told
        self._beating: Collection[str] | None = None
        self._counted = 0, 0
        self._heard: Heard | None = None
        self.heard_again: dict[str, float] = {}
        """Mount -> when somebody listened again after the last lapse."""

    def listen(self, deaf: Mapping[str, float], heard: Heard | None = None, now: float = 0.0) -> None:
        """Since these instants nobody listens to these mounts, nor to the carriers that are deaf in `heard` (None:
        nobody can push); to all others somebody listens. What was read was handled before.
        """
        self._heard = heard
        beating, offset = heard and heard.beating, self._watched.wall_offset
        silent = {carrier: min(at - offset, now) for carrier, at in heard.deaf.items()} if heard else {}
        count = (0, 0) if beating is None else (len(self._watched.sources), len(self._watched.runs))
        known = self._deaf.keys(), self._silent.keys(), self._beating, self._counted
        moved = any(since - self._deaf.get(mount, since) > _MOVED for mount, since in deaf.items())
        if moved or known != (deaf.keys(), silent.keys(), beating, count):
            carriers_before, self._silent = self._silent, silent
            self._deaf, self._beating, self._counted = dict(deaf), beating, count
            for run in self._watched.runs.values():
                self._judge_until(run, carriers_before, now)
        self._tell_lost({carrier for carrier, since in silent.items() if now - since >= _LOST}, now)

    def _tell_lost(self, lost: set[str], now: float) -> None:
        """These carriers are deaf for long, and no others."""
        changed, self._lost = lost ^ self._lost, lost
        for source in [one for one in self._watched.sources.values() if _carrier(one) in changed] if changed else ():
            carrier = _carrier(source)
            why = f"nothing is heard of its agent {carrier}: neither lines nor heartbeats"
            self._note(source, why if carrier in lost else None, now)

    def behind_us(self, source: Source) -> float:
        """Seconds to add to the times that the agent of a pushed stream gives."""
        return self._heard.behind_us(_carrier(source)) if self._heard is not None else 0.0

    def _judge_until(self, run: Run, carriers_before: Mapping[str, float], now: float) -> None:
        telling, state = self._watched.sources.telling(run.log), run.state
        before = state.deaf_since if state.blind_since is None else state.blind_since
        blind = self._since_all(telling)
        deaf = blind is not None and self._since_all(self._watched.sources.of_run(run.log)) is not None
        state.deaf_since, state.blind_since = (blind, None) if deaf else (None, blind)
        state.no_heartbeat = bool(telling) and all(
            source.ordered is not None and _carrier(source) not in (self._beating or ()) for source in telling
        )
        carried = any(_carrier(source) in carriers_before for source in telling)
        if carried and before is not None and blind is None:
            not_listened(state, now - before, now)
        if blind != before:
            self._watched.schedule.request(run)

    def _since_all(self, sources: Sequence[Source]) -> float | None:
        """Since when nobody listens to any of them; None: somebody does, or there are none."""
        since = [one for one in map(self._since, sources) if one is not None]
        return max(since) if since and len(since) == len(sources) else None

    def _since(self, source: Source) -> float | None:
        found = [self._deaf.get(source.mount), self._silent.get(_carrier(source))]
        return min((one for one in found if one is not None), default=None)

    def unheard(self, message: Unheard, now: float) -> None:
        """Nobody listened for a while, and what was written meanwhile comes now: that time is no silence of a run."""
        self.heard_again[message.mount] = now
        runs = {one.run for one in self._watched.sources.values() if one.mount == message.mount}
        for run in self._watched.runs.values():
            if run.log in runs:
                not_listened(run.state, message.seconds, now)
                self._watched.touch(run.log)
        self._watched.counts.add("unheard_seconds_total", message.mount, by=message.seconds)
        _log.warning("mount=%s nobody listened for %.1f s: that time is no silence", message.mount, message.seconds)


def _carrier(source: Source) -> str:
    return "" if source.ordered is None else carrier_at(source.path)
