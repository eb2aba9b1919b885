"""A finished log on its own clock: what the daemon would have reported, and when. The same judgement, no waiting.

Each source has a clock: the times that its lines print where they print any, else the sum of the iterations' times,
evaluation and saving included where the log prints them. The sources of a run are merged in the order of their clocks.
Law: pure but for the iterators that are handed in; memory does not grow with the log.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from monitor.incidents import Transition
from monitor.judgement import Judge, Judged
from monitor.naming import experiment_name
from monitor.run import derived, goodput
from monitor.run.ends import settle
from monitor.run.experiments import BOUNDS, Experiments
from monitor.run.history import History
from monitor.run.log_clock import log_clock
from monitor.run.phases import ENDED
from monitor.run.state import Experiment, RunState
from monitor.run.steady import Sample
from parsers.events import EngineStepLogged, Event, IterationLogged, LogEvent, TrainerProgressed

_LEAST_GAP = 1.0  # seconds between two events below which no deadline is looked for
_EPSILON = 1e-6


@dataclass(slots=True)
class SourceClock:
    """The clock of one source: seconds, never backwards."""

    now: float | None = None
    dated: bool = False
    """Some line printed a time: then `now` is Unix time, read as UTC."""
    last_iteration: int | None = None

    def at(self, event: Event) -> float | None:
        """When the event was written; None before any line that shows the time."""
        if event.logged_at is not None:
            moment = log_clock(event.logged_at)
            if moment is not None:
                if not self.dated:
                    self.dated, self.now = True, moment
                self.now = max(self.now or moment, moment)
                if isinstance(event, IterationLogged):
                    self.last_iteration = event.iteration
                return self.now
        if isinstance(event, IterationLogged):
            self._count(event.iteration, event.seconds_per_iteration)
        elif isinstance(event, EngineStepLogged):
            self._count(event.step, event.seconds_per_step)
        elif isinstance(event, TrainerProgressed) and event.elapsed_seconds is not None:
            self.now = max(self.now or 0.0, event.elapsed_seconds)
        return self.now

    def _count(self, iteration: int, seconds: float | None) -> float:
        """Iterations that took `seconds` each; one that several lines report counts once."""
        last = self.last_iteration
        if iteration != last:
            steps = iteration - last if last is not None and 0 < iteration - last <= 1000 else 1
            self.now = (self.now or 0.0) + (seconds or 0.0) * steps
        self.last_iteration = iteration
        return self.now or 0.0


def clocked(entries: Iterable[LogEvent], source: str) -> Iterator[tuple[float, LogEvent, str]]:
    """(time, event, source) in order; what stands before the first line that shows a time gets that time. A source
    that never shows one is placed at the end of the others (infinity).
    """
    clock = SourceClock()
    waiting: list[LogEvent] = []
    for entry in entries:
        at = clock.at(entry.event)
        if at is None:
            waiting.append(entry)
            continue
        for early in waiting:
            yield at, early, source
        waiting.clear()
        yield at, entry, source
    for late in waiting:
        yield float("inf"), late, source


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

    def play(self, at: float, entry: LogEvent, source: str) -> Iterator[Transition]:
        """One event at its time."""
        at = self.now if at == float("inf") else max(at, self.now)
        if self.first is None:
            self.first = self.now = at
        if at - self.now > _LEAST_GAP and at > self._judge.calm_until(self.run):
            yield from self.pass_until(at)
        self.now = at
        state = self.run.state
        before, timed = state.iterations_total, state.step_seconds is not None
        yield from self._judge.take(self.run, (entry,), source, at, True)
        if state.iterations_total != before or not timed:  # DeepSpeed prints a step's time on the next line
            self._sample(state)

    def finish(self, after: float) -> Iterator[Transition]:
        """The log has ended; `after` seconds more are watched. What became of a run that had not ended by then is
        unknown.
        """
        last = self.now
        yield from self.pass_until(last + after)
        yield from self._judge.judge(self.run, self.now)
        settle(self.run.state, self.now, 0.0)  # what said that it was done, and nothing more, is done
        self.now = last

    def retire(self, at: float) -> Iterator[Transition]:
        """Another experiment begins in the log."""
        yield from self.pass_until(self.now if at == float("inf") else at)
        last = self.run.state.progress_at
        yield from self._judge.retire(self.run, self.now)
        self.now = self.now if last is None else last  # what comes behind its last line is not its own time

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


class Players:
    """The experiments of a log, each a replay of its own, in the order in which they began."""

    def __init__(self, judge: Judge, name: str, sources: Iterable[str]) -> None:
        self.all = [Replay(judge, name)]
        self._judge, self._name = judge, name
        self._by_label = {"": self.all[0]}
        self._experiments = {source: Experiments() for source in sources}
        self._latest = Experiments()  # of the source that is furthest

    def noting(self, entries: Iterable[LogEvent]) -> Iterator[LogEvent]:
        """The same, and whether any source of the log prints times is noted."""
        for entry in entries:
            if entry.event.logged_at is not None and not self.all[0].dated:
                for player in self.all:
                    player.dated = True
            yield entry

    def play(self, at: float, entry: LogEvent, source: str) -> Iterator[tuple[Replay, Transition]]:
        """One event at its time, as far as it is known whose it is."""
        experiments = self._experiments[source]
        if not experiments.held and entry.event.kind not in BOUNDS:
            player = self.current(source)
            for transition in player.play(at, entry, source):
                yield player, transition
            return
        before, number = self.current(source), experiments.number
        due = experiments.take(entry, at, before.run.state)
        if experiments.told and experiments.number >= self._latest.number:
            self._latest = experiments
        player = self.current(source)
        if experiments.number != number and experiments is self._latest:
            player.run.archived = False  # a sweep may come back to one
            for transition in before.retire(due[0][1]):
                yield before, transition
        for written, event in ((written, event) for event, written in due):
            for transition in player.play(written, event, source):
                yield player, transition

    def current(self, source: str | None = None) -> Replay:
        """The one that a source's lines belong to, the newest if none is given."""
        own = self._experiments[source] if source is not None else self._latest
        own = own if own.told else self._latest
        player = self._by_label.get(own.label)
        if player is None:
            player = self._by_label[own.label] = Replay(self._judge, experiment_name(self._name, own.label))
            player.run.state.experiment = Experiment(self._name, own.number, own.label)
            player.dated = self.all[0].dated
            self.all.append(player)
        return player

    def finish(self, after: float) -> Iterator[tuple[Replay, Transition]]:
        """The log has ended; `after` seconds more are watched."""
        for source, experiments in self._experiments.items():
            player = self.current(source)
            for entry, at in experiments.release():
                for transition in player.play(at, entry, source):
                    yield player, transition
        player = self.current()
        for transition in player.finish(after):
            yield player, transition


def replay(
    judge: Judge, name: str, sources: Mapping[str, Iterable[LogEvent]], after: float = 10.0
) -> Iterator[tuple[Replay, Transition | None]]:
    """Every transition of one log with the replay that gave it; last, once for each of its experiments, with None."""
    players = Players(judge, name, sources)
    streams = [clocked(players.noting(entries), source) for source, entries in sources.items()]
    for at, entry, source in heapq.merge(*streams, key=itemgetter(0)):
        yield from players.play(at, entry, source)
    yield from players.finish(after)
    for player in players.all:
        yield player, None
