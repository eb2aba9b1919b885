"""A finished log on its own clock: what the daemon would have reported, and when. The same judgement, no waiting.

Each source has a clock (source_clock/): the times that its lines print where they print any, else the sum of the
iterations' times, evaluation and saving included where the log prints them. The sources of a run are merged in the
order of their clocks. Only a silence that the lines prove is judged.
Law: pure but for the iterators that are handed in; memory does not grow with the log.
"""

import heapq
import math
from collections.abc import Generator, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any

from megatron_monitor.charts.history import History
from megatron_monitor.charts.steady import Sample
from megatron_monitor.detectors.base import stated
from megatron_monitor.detectors.slowdown.words import level, standing
from megatron_monitor.identity.naming import experiment_name
from megatron_monitor.incidents import Transition
from megatron_monitor.judgement import Judge, Judged, Timed
from megatron_monitor.parsers.events import Event, GenerationMoved, LogEvent, PartBegan, TimeShown
from megatron_monitor.run import derived
from megatron_monitor.run.evidence import settle
from megatron_monitor.run.experiments import BOUNDS, Experiments
from megatron_monitor.run.log_clock import log_clock
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.records import Experiment
from megatron_monitor.run.state import RunState
from megatron_monitor.source_clock import Placed, SourceClock, clocked

_LEAST_GAP = 1.0  # seconds between two events below which no deadline is looked for
_EPSILON = 1e-6
_OWN_TIME = 0.9  # of a silence: the share that the first iteration must say it took, to have been at work all the time
_DAY = 86400.0
_YEAR = 365 * _DAY
_UNPLACED: frozenset[type[Event]] = frozenset({PartBegan, GenerationMoved})
"""Lines without a stamp between two steps: nobody knows how the step's time is shared between them."""
_MOST = 1024  # events that the judge is handed at once
_OPENING = 1000  # events of a source among which its year is looked for


class Replay:
    """One run. `play` takes events in the order of their times and gives the transitions; `finish` the rest."""

    def __init__(self, judge: Judge, name: str) -> None:
        self.run = Judged(RunState(name=name, history=History(kept=False)))
        self.run.state.live = True
        self.dated = False
        self.first: float | None = None
        self.now = 0.0
        self._open_until = float("-inf")  # nothing is judged up to there, that instant included
        self._judged_until = float("-inf")  # deadlines before are; lines may have followed too closely to look for more
        self._judge = judge
        self._due: Placed | None = None
        self._seconds, self._samples, self._tflops = Sample(), Sample(), Sample()

    def play(self, items: Iterable[Placed]) -> Iterator[Transition]:
        """Events in the order of their times, each at its own."""
        events: Iterator[Placed] = filter(_has_a_place, items)
        while (due := self._due or next(events, None)) is not None:
            begin = yield from self._wait_for(due)
            self._due = None
            yield from self._judge.follow(self.run, self._stretch(chain((begin,), islice(events, _MOST))), True)

    def _wait_for(self, placed: Placed) -> Generator[Transition, None, Placed]:
        """Time passes until the event is due: at the time that it then has."""
        at = self.now if placed.at == float("inf") else max(placed.at, self.now)
        if self.first is None:
            self.first = self.now = at
        if at - self.now > _LEAST_GAP and self._is_to_wait(placed, at):
            state = self.run.state
            reported = self._judge.crash_reported_at(self.run) if state.launch.phase == "crashed" else None
            if state.launch.phase == "crashed" and (placed.proof == "unknown" or _failed_since(state, reported, at)):
                # a relaunch, or what failed only now: the crash is reported, and it may follow
                yield from self.pass_until(min(at, (reported or self.now) + 2 * _EPSILON))
                self.now = self._open_until = at
            elif placed.proof != "proved" or placed.took > 0:
                at = self._unproved(placed._replace(at=at))
            yield from self.pass_until(at)
        self.now = at
        return placed._replace(at=at)

    def _is_to_wait(self, placed: Placed, at: float) -> bool:
        """Whether time alone may change a verdict before the event, or nobody knows how long the silence before it was.
        Where not, the time has passed.
        """
        if at <= self._judge.calm_until(self.run):
            return False
        if placed.proof != "proved" or placed.took > 0:
            return True
        deadline = self._judge.deadline(self.run, self._judged_before())
        if deadline is None or deadline >= at:
            self._judged_until = at
            return False
        return True

    def _judged_before(self) -> float:
        """Deadlines up to there need no judgement any more."""
        return max(math.nextafter(self._judged_until, 0.0), self._open_until)

    def _stretch(self, items: Iterable[Placed]) -> Iterator[Timed]:
        """Events up to one before which time alone may change a verdict: that one is due then."""
        state, never = self.run.state, float("inf")
        for placed in items:
            at, entry, source, *_ = placed
            if at < self.now or at == never:
                at = self.now
            if at - self.now > _LEAST_GAP and self._is_to_wait(placed, at):
                self._due = placed
                return
            self.now = at
            if type(entry.event) is TimeShown:
                continue
            before, timed = state.iterations_total, state.launch.step_seconds is not None
            yield entry, source, at
            if state.iterations_total != before or not timed:  # DeepSpeed prints a step's time on the next line
                self._sample(state)

    def _sample(self, state: RunState) -> None:
        if state.launch.step_seconds is None:
            return
        self._seconds.add(state.launch.step_seconds)
        rate, tflops = derived.samples_per_second(state), state.launch.latest.tflops
        if rate is not None:
            self._samples.add(rate)
        if tflops is not None:
            self._tflops.add(tflops)

    def leaves_open(self, placed: Placed) -> bool:
        """Whether nothing may be concluded from the silence before a line: the lines do not prove it."""
        state = self.run.state
        if state.launch.phase in ENDED or state.progress_at is None:
            return False
        if placed.proof == "lawful":
            return placed.at <= state.progress_at + self._judge.lawful_silence(self.run, placed.entry.event)
        if placed.proof == "beside":
            return state.iterations_total == 0
        return placed.proof == "unknown" or 0 < placed.took >= _OWN_TIME * (placed.at - state.progress_at)

    def _unproved(self, placed: Placed) -> float:
        """The event's time. Up to it nothing is judged where the silence is open, or as far as it may be."""
        state, at, moved_at = self.run.state, placed.at, self.run.state.progress_at
        if self.leaves_open(placed):
            self.now = self._open_until = at
            if placed.dated and placed.proof in ("lawful", "unknown"):
                state.progress_at = at  # the last undated line may have been written just now
        elif placed.proof == "lawful" and not placed.dated and moved_at is not None and state.launch.phase not in ENDED:
            at = self.now = self._open_until = max(
                self.now, moved_at + self._judge.lawful_silence(self.run, placed.entry.event)
            )
        return at

    def finish(self, after: float) -> Iterator[Transition]:
        """The log has ended; `after` seconds more are watched, or until what may have been caught is believed: nobody
        went on behind it. What became of a run that had not ended by then is unknown.
        """
        last = self.now
        yield from self.pass_until(max(last + after, self._judge.believed_at(self.run) + 2 * _EPSILON))
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
        """Time passes without an event: each deadline is judged at its instant; one that came among the last lines, at
        the last of them.
        """
        after = self._judged_before()
        while (deadline := self._judge.deadline(self.run, after)) is not None and deadline < until:
            after = deadline + _EPSILON
            self.now = max(self.now, after)
            yield from self._judge.judge(self.run, self.now)
        self.now = self._judged_until = max(self.now, until)

    def time_of(self, at: float) -> str | float:
        """ISO 8601 where the log prints times, else seconds since the first line."""
        if self.dated:
            return datetime.fromtimestamp(at, UTC).replace(tzinfo=None).isoformat(timespec="seconds")
        return round(at - (self.first or 0.0), 3)

    def summary(self) -> dict[str, Any]:
        """The run in figures; absent where the log does not show it."""
        state = self.run.state
        seconds = self.now - (self.first or 0.0)
        return stated({
            "run": state.name,
            "state": derived.run_state(state, False) if state.launch.phase in ENDED else "open",
            "iterations": state.iterations_total,
            "last_iteration": state.launch.latest.iteration,
            "seconds": round(seconds, 3),
            "effective_training_time_ratio": _rounded(derived.effective_ratio(state)),
            "lost_iterations": state.lost_iterations_total,
            "lost_seconds": {cause: round(value, 1) for cause, value in sorted(state.lost_seconds_total.items())},
            "at_risk_seconds": _rounded(derived.at_risk_seconds(state)),
            "restarts": state.restarts,
            "failures": dict(sorted(state.failures_total.items())),
            "incidents": dict(sorted(self.run.book.counts.items())),
            "slowdown": None if (found := level(state)) is None else standing(found),
            "median_seconds_per_iteration": _rounded(self._seconds.median),
            "median_samples_per_second": _rounded(self._samples.median),
            "median_tflops": _rounded(self._tflops.median),
            "unplanned_restarts": state.unplanned_ends,
            "mean_time_between_failures_seconds": _rounded(derived.mean_time_between_failures_seconds(state)),
            "advised_save_interval_seconds": _rounded(derived.advised_save_interval(state)),
        })  # fmt: skip


def _failed_since(state: RunState, reported: float | None, at: float) -> bool:
    """Whether what failed may have done so right before `at`: no line says when, and no step how long one takes."""
    failure = state.launch.failure
    undated = failure is not None and failure.logged_at is None and not state.launch.iterations
    return undated and reported is not None and at > reported + _LEAST_GAP


def _has_a_place(placed: Placed) -> bool:
    return placed.dated or type(placed.entry.event) not in _UNPLACED


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


class Players:
    """The experiments of a log, each a replay of its own, in the order in which they began."""

    def __init__(self, judge: Judge, name: str, clocks: Mapping[str, SourceClock]) -> None:
        self.all = [Replay(judge, name)]
        self._judge, self._name, self._clocks = judge, name, clocks
        self._by_label = {"": self.all[0]}
        self._experiments = {source: Experiments() for source in clocks}
        self._latest = Experiments()  # of the source that is furthest

    def play(self, items: Iterable[Placed]) -> Iterator[tuple[Replay, Transition]]:
        """Events in the order of their times, each at its own, as far as it is known whose it is."""
        for (player, dated), several in groupby(items, self._whose):
            those = self._date(several, dated)
            if player is not None:
                yield from ((player, transition) for transition in player.play(those))
            else:
                for placed in those:
                    yield from self._play_bound(placed)

    def _whose(self, placed: Placed) -> tuple[Replay | None, bool]:
        """(whose the event is, None where that is to be decided; whether the log has printed times by then)."""
        experiments = self._experiments[placed.source]
        decided = not experiments.held and placed.entry.event.kind not in BOUNDS
        dated = self.all[0].dated or self._clocks[placed.source].scale.dated
        return self.current(placed.source) if decided else None, dated

    def _play_bound(self, placed: Placed) -> Iterator[tuple[Replay, Transition]]:
        """One event that may tell of another experiment, or comes behind one that may."""
        experiments = self._experiments[placed.source]
        before, number = self.current(placed.source), experiments.number
        due = experiments.take(placed.entry, placed, before.run.state)
        if experiments.told and experiments.number >= self._latest.number:
            self._latest = experiments
        player = self.current(placed.source)
        if experiments.number != number and experiments is self._latest:
            player.run.archived = False  # a sweep may come back to one
            yield from ((before, transition) for transition in before.retire(due[0][1].at))
        yield from ((player, transition) for transition in player.play(item for _, item in due))

    def _date(self, items: Iterator[Placed], dated: bool) -> Iterator[Placed]:
        """Where the log prints times from here on: what was counted from 0, of a source that prints none, is moved
        there.
        """
        if not dated or self.all[0].dated:
            return items
        for player in self.all:
            player.dated = True
        placed = next(items)
        first, now = self.all[0].first, self.current(placed.source).now
        if first is not None and placed.at - now > _YEAR:
            self.all[0].first = first + placed.at - now
            placed = placed._replace(proof="unknown")
        return chain((placed,), items)

    def current(self, source: str | None = None) -> Replay:
        """The one that a source's lines belong to, the newest if none is given."""
        own = self._experiments[source] if source is not None else self._latest
        own = own if own.told else self._latest
        player = self._by_label.get(own.label)
        if player is None:
            player = self._by_label[own.label] = Replay(self._judge, experiment_name(self._name, own.label))
            player.run.state.experiment = Experiment(self._name, own.label)
            player.dated = self.all[0].dated
            self.all.append(player)
        return player

    def finish(self, after: float) -> Iterator[tuple[Replay, Transition]]:
        """The log has ended; `after` seconds more are watched."""
        for source, experiments in self._experiments.items():
            player = self.current(source)
            held = [item for _, item in experiments.release()]
            yield from ((player, transition) for transition in player.play(held))
        player = self.current()
        yield from ((player, transition) for transition in player.finish(after))


def replay(
    judge: Judge, name: str, sources: Mapping[str, Iterable[LogEvent]], after: float = 10.0,
    written: Mapping[str, float] | None = None,
) -> Iterator[tuple[Replay, Transition | None]]:  # fmt: skip
    """Every transition of one log with the replay that gave it; last, once for each of its experiments, with None.

    `written`: when each source was last written, Unix seconds, for stamps without a year.
    """
    clocks, streams = {}, []
    opened = {source: _opened(entries) for source, entries in sources.items()}
    near = min((moment for moment, _ in opened.values() if moment is not None), default=None)
    for source, (_, entries) in opened.items():
        last = (written or {}).get(source)
        clocks[source] = SourceClock(written=last, latest=math.inf if last is None else last + _DAY)
        if near is not None:
            clocks[source] = SourceClock(written=near)
        streams.append(clocked(entries, source, clocks[source]))
    players = Players(judge, name, clocks)
    yield from players.play(heapq.merge(*streams, key=itemgetter(0)))
    yield from players.finish(after)
    for player in players.all:
        yield player, None


def _opened(entries: Iterable[LogEvent]) -> tuple[float | None, Iterator[LogEvent]]:
    """(the first full stamp near the beginning of a source, its entries)."""
    rest = iter(entries)
    read = list(islice(rest, _OPENING))
    moments = (log_clock(entry.event.logged_at) for entry in read)
    return next((moment for moment in moments if moment is not None), None), chain(read, rest)
