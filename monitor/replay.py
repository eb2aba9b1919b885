"""A finished log on its own clock: what the daemon would have reported, and when. The same judgement, no waiting.

Each source has a clock (run/source_clock.py): the times that its lines print where they print any, else the sum of the
iterations' times, evaluation and saving included where the log prints them. The sources of a run are merged in the
order of their clocks. Only a silence that the lines prove is judged.
Law: pure but for the iterators that are handed in; memory does not grow with the log.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from monitor.incidents import Transition
from monitor.judgement import Judge, Judged
from monitor.run import derived, goodput
from monitor.run.history import History
from monitor.run.log_clock import log_clock
from monitor.run.phases import ENDED
from monitor.run.source_clock import Proof, SourceClock, clocked
from monitor.run.state import RunState
from monitor.run.steady import Sample
from parsers.events import Event, LogEvent, TimeShown

_LEAST_GAP = 1.0  # seconds between two events below which no deadline is looked for
_EPSILON = 1e-6
_OWN_TIME = 0.9  # of a silence: the share that the first iteration must say it took, to have been at work all the time
_DAY = 86400.0
_YEAR = 365 * _DAY
_OPENING = 1000  # events of a source among which its year is looked for


class Replay:
    """One run. `play` takes events in the order of their times and gives the transitions; `finish` the rest."""

    def __init__(self, judge: Judge, name: str) -> None:
        self.run = Judged(RunState(name=name, history=History(kept=False)))
        self.run.state.live = True
        self.dated = False
        self.first: float | None = None
        self.now = 0.0
        self._judge = judge
        self._seconds, self._samples, self._tflops = Sample(), Sample(), Sample()
        self._detected: dict[str, int] = {}

    def play(
        self, at: float, entry: LogEvent, source: str, proof: Proof = "proved", *, dated: bool = True, took: float = 0.0
    ) -> Iterator[Transition]:
        """One event at its time. `proof`, `dated` and `took` are those of `Placed`."""
        at = self.now if at == float("inf") else max(at, self.now)
        if self.first is None:
            self.first = self.now = at
        state = self.run.state
        if at - self.now > _LEAST_GAP and at > self._judge.calm_until(self.run):
            if proof == "unknown" and state.phase == "crashed":  # a relaunch: the crash is told, and it may follow then
                told = self._judge.crash_told_at(self.run)
                yield from self.pass_until(min(at, (told or self.now) + 2 * _EPSILON))
                self.now = at
            elif proof != "proved" or took > 0:
                at = self._unproved(at, entry.event, proof, dated, took)
            yield from self.pass_until(at)
        self.now = at
        if type(entry.event) is TimeShown:
            return
        before, timed = state.iterations_total, state.step_seconds is not None
        yield from self._judge.take(self.run, (entry,), source, at, True)
        if state.iterations_total != before or not timed:  # DeepSpeed prints a step's time on the next line
            self._sample(state)

    def leaves_open(self, at: float, event: Event, proof: Proof, took: float) -> bool:
        """Whether nothing may be concluded from the silence before `at`: the lines do not prove it."""
        state = self.run.state
        if state.phase in ENDED or state.progress_at is None:
            return False
        if proof == "lawful":
            return at <= state.progress_at + self._judge.lawful_silence(self.run, event)
        if proof == "beside":
            return state.iterations_total == 0
        return proof == "unknown" or 0 < took >= _OWN_TIME * (at - state.progress_at)

    def _unproved(self, at: float, event: Event, proof: Proof, dated: bool, took: float) -> float:
        """The event's time. Up to it nothing is judged where the silence is open, or as far as it may be."""
        state = self.run.state
        if self.leaves_open(at, event, proof, took):
            self.now = at
            if dated and proof in ("lawful", "unknown"):
                state.progress_at = at  # the last undated line may have been written just now
        elif proof == "lawful" and not dated and state.progress_at is not None and state.phase not in ENDED:
            at = self.now = max(self.now, state.progress_at + self._judge.lawful_silence(self.run, event))
        return at

    def finish(self, after: float) -> Iterator[Transition]:
        """The log has ended; `after` seconds more are watched. What became of a run that had not ended by then is
        unknown.
        """
        last = self.now
        yield from self.pass_until(last + after)
        yield from self._judge.judge(self.run, self.now)
        self.now = last

    def pass_until(self, until: float) -> Iterator[Transition]:
        """Time passes without an event: each deadline on the way is judged at its instant."""
        while (deadline := self._judge.deadline(self.run, self.now)) is not None and deadline < until:
            self.now = deadline + _EPSILON
            yield from self._judge.judge(self.run, self.now)
        self.now = max(self.now, until)

    def _sample(self, state: RunState) -> None:
        if state.step_seconds is None:
            return
        self._seconds.add(state.step_seconds)
        rate = derived.samples_per_second(state)
        if rate is not None:
            self._samples.add(rate)
        if state.latest.tflops is not None:
            self._tflops.add(state.latest.tflops)

    def time_of(self, at: float) -> str | float:
        """ISO 8601 where the log prints times, else seconds since the first line."""
        if self.dated:
            return datetime.fromtimestamp(at, UTC).replace(tzinfo=None).isoformat(timespec="seconds")
        return round(at - (self.first or 0.0), 3)

    def summary(self) -> dict[str, Any]:
        """The run in figures; absent where the log does not show it."""
        state = self.run.state
        seconds = self.now - (self.first or 0.0)
        fields: dict[str, Any] = {
            "run": state.name,
            "state": state.phase if state.phase in ENDED else "open",
            "iterations": state.iterations_total,
            "last_iteration": state.latest.iteration,
            "seconds": round(seconds, 3),
            "effective_training_time_ratio": _rounded(derived.effective_ratio(state)),
            "lost_iterations": state.lost_iterations_total,
            "lost_seconds": {cause: round(value, 1) for cause, value in sorted(state.lost_seconds_total.items())},
            "at_risk_seconds": _rounded(derived.at_risk_seconds(state)),
            "restarts": state.restarts,
            "failures": dict(sorted(state.failures_total.items())),
            "incidents": dict(sorted(self.run.book.counts.items())),
            "median_seconds_per_iteration": _rounded(self._seconds.median),
            "median_samples_per_second": _rounded(self._samples.median),
            "median_tflops": _rounded(self._tflops.median),
            **goodput.figures(state, seconds),
        }
        return {name: value for name, value in fields.items() if value is not None}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def replay(
    judge: Judge,
    name: str,
    sources: Mapping[str, Iterable[LogEvent]],
    after: float = 10.0,
    written: Mapping[str, float] | None = None,
) -> Iterator[tuple[Replay, Transition | None]]:
    """Every transition of one run with the replay that gave it; last, once, with None at the end.

    `written`: when each source was last written, Unix seconds, for stamps without a year.
    """
    player = Replay(judge, name)
    clocks, streams = {}, []
    opened = {source: _opened(entries) for source, entries in sources.items()}
    near = min((moment for moment, _ in opened.values() if moment is not None), default=None)
    for source, (_, entries) in opened.items():
        last = (written or {}).get(source)
        clocks[source] = SourceClock(written=last, latest=math.inf if last is None else last + _DAY)
        if near is not None:
            clocks[source] = SourceClock(written=near)
        streams.append(clocked(entries, source, clocks[source]))
    for at, entry, source, proof, dated, took in heapq.merge(*streams, key=itemgetter(0)):
        apart = False
        if not player.dated and clocks[source].dated:
            player.dated = True
            if player.first is not None and at - player.now > _YEAR:  # another source prints no times: counted from 0
                apart = True
                player.first += at - player.now
        known: Proof = "unknown" if apart else proof
        for transition in player.play(at, entry, source, known, dated=dated, took=took):
            yield player, transition
    for transition in player.finish(after):
        yield player, transition
    yield player, None


def _opened(entries: Iterable[LogEvent]) -> tuple[float | None, Iterator[LogEvent]]:
    """(the first full stamp near the beginning of a source, its entries)."""
    rest = iter(entries)
    read: list[LogEvent] = []
    for entry in itertools.islice(rest, _OPENING):
        read.append(entry)
        moment = log_clock(entry.event.logged_at)
        if moment is not None:
            return moment, itertools.chain(read, rest)
    return None, itertools.chain(read, rest)
