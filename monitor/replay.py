"""Replays finished logs on their own clock: what the daemon would have reported, and when, with the same core.

Each source has a clock (source_clock/): printed times, or else the sum of the iterations' durations with printed
evaluations and saves. The sources are merged by their clocks and passed to a core as live lines. Only a silence that
the lines prove counts. Memory does not grow with the log.
"""

import heapq
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from megatron_monitor.config import Config
from megatron_monitor.core import Core
from megatron_monitor.core.runs import Run
from megatron_monitor.detectors.base import stated
from megatron_monitor.detectors.slowdown.messages import level, standing
from megatron_monitor.evaluation import Evaluator
from megatron_monitor.follow.messages import CaughtUp, Lines, Opened, Scanned
from megatron_monitor.incidents import Transition
from megatron_monitor.parsers.events import LogEvent, TimeShown
from megatron_monitor.run import derived
from megatron_monitor.run.experiments import BOUNDS
from megatron_monitor.run.phases import ENDED
from megatron_monitor.scalars import LONGEST_SECONDS
from megatron_monitor.source_clock import SourceClock, TimedEvent, first_stamp_and_step, with_times

_DAY = 86400.0
_BATCH = 1024  # lines passed to the core at once
_FIRST_EVENTS = 1000  # events of a source in which its year is searched


class Replay:
    """A core with the time of the lines that it gets."""

    def __init__(self, config: Config, sources: Iterable[str], *, dated: bool = False) -> None:
        """`dated`: the log prints times."""
        self.now = 0.0
        self.first: float | None = None
        self.dated = dated
        self._judge = Evaluator(config, repeats=False)
        config = replace(config, max_runs=sys.maxsize, run_retention=LONGEST_SECONDS)
        self.core = Core(config, self._judge, charts=False)
        self.core.handle(Scanned("", self.now), self.now)
        for source in sources:
            self.core.handle(Opened(source, source, None, 0, self.now, False), self.now)
            self.core.handle(CaughtUp(source, self.now), self.now)

    def play(self, items: Iterable[TimedEvent]) -> Iterator[Transition]:
        """Pass lines to the core in the order of their times."""
        batch: list[TimedEvent] = []
        for placed in items:
            if batch and (len(batch) == _BATCH or placed.source != batch[0].source or self._needs_own_batch(placed)):
                yield from self._hand_over(batch)
                batch = []
            self.now = placed.at = self.now if placed.at == math.inf else max(placed.at, self.now)
            self.first = self.now if self.first is None else self.first
            if type(placed.event) is TimeShown and self._needs_own_batch(placed):
                yield from self._wait_for(placed)
                continue
            batch.append(placed)
            if self._needs_own_batch(placed):
                yield from self._hand_over(batch)
                batch = []
        if batch:
            yield from self._hand_over(batch)

    def _needs_own_batch(self, placed: TimedEvent) -> bool:
        """Return True if the line or its time may decide the run of later lines."""
        source = self.core.sources[placed.source]
        return not source.member.settled or placed.event.kind in BOUNDS or bool(source.experiments.held)

    def _hand_over(self, batch: list[TimedEvent]) -> Iterator[Transition]:
        self.core.handle(Lines(batch[0].source, batch), batch[-1].at)
        yield from self.core.pass_until(batch[-1].at)

    def _wait_for(self, placed: TimedEvent) -> Iterator[Transition]:
        """Apply a line that shows only the time."""
        yield from self.core.pass_until(self.now)
        run = self.core.sources[placed.source].run
        if (
            run is not None and not self.core.sources[placed.source].experiments.held
        ):  # otherwise held lines decide first
            self.core.of_run(run, partial(self._judge.wait_for, run, placed))
            yield from self.core.pass_until(self.now)

    def finish(self, after: float) -> Iterator[Transition]:
        """End the logs, `after` seconds after their last lines."""
        self.core.flush(self.now)
        for run in [run for run in self.core.runs.values() if not run.historical]:
            self.core.of_run(run, partial(self._judge.finish, run, max(self.now, run.clock) + after))
        yield from self.core.pass_until(self.now)

    def quarantined(self) -> dict[str, str]:
        """Return run or file -> why an error in the monitor's own code. Later lines were not evaluated."""
        sources = {name: source.failed for name, source in self.core.sources.items()}
        found = {**{run.state.name: run.failed for run in self.core.runs.values()}, **sources}
        return {name: why for name, why in found.items() if why}

    def time_of(self, at: float) -> str | float:
        """Return ISO 8601 if the log prints times, otherwise seconds since the first line."""
        if self.dated:
            return datetime.fromtimestamp(at, UTC).replace(tzinfo=None).isoformat(timespec="seconds")
        return round(at - (self.first or 0.0), 3)

    def summary(self, run: Run) -> dict[str, Any]:
        """Return the run's figures, without unknown ones."""
        state = run.state
        size, steady = state.steady.chosen(state.attempt.topology.global_batch_size) or (None, None)
        pace = steady.seconds.median if steady else None
        first = self.first if run is next(iter(self.core.runs.values())) else state.first_at
        ends = state.progress_at if run.historical else run.clock
        seconds = 0.0 if ends is None or first is None else ends - first
        return stated({
            "run": state.name,
            "state": derived.run_state(state, False) if state.attempt.phase in ENDED else "open",
            "iterations": state.iterations_total,
            "last_iteration": state.attempt.latest.iteration,
            "seconds": round(seconds, 3),
            "goodput": _rounded(derived.goodput(state)),
            "lost_iterations": state.lost_iterations_total,
            "lost_seconds": {cause: round(value, 1) for cause, value in sorted(state.lost_seconds_total.items())},
            "unsaved_progress_seconds": _rounded(derived.unsaved_progress_seconds(state)),
            "restarts": state.restarts,
            "failures": dict(sorted(state.failures_total.items())),
            "incidents": dict(sorted(run.book.counts.items())),
            "slowdown": None if (found := level(state)) is None else standing(found),
            "median_seconds_per_iteration": _rounded(pace),
            "median_samples_per_second": _rounded(size / pace if size and pace else derived.samples_per_second(state)),
            "median_tflops": _rounded(steady.tflops.median if steady else None),
            "unplanned_restarts": state.unplanned_ends,
            "mean_time_between_failures_seconds": _rounded(derived.mean_time_between_failures_seconds(state)),
            "advised_save_interval_seconds": _rounded(derived.advised_save_interval(state)),
        })  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def replay(
    config: Config, sources: Mapping[str, Iterable[LogEvent]], after: float = 10.0,
    written: Mapping[str, float] | None = None,
) -> Iterator[tuple[Replay, Transition | Run]]:  # fmt: skip
    """Yield every transition of the logs with its replay, then each run. `sources`: path -> events.

    `written`: Unix time of each source's last write, for stamps without a year.
    """
    items, dated = merged(sources, written or {})
    player = Replay(config, sources, dated=dated)
    for transition in chain(player.play(items), player.finish(after)):
        yield player, transition
    for run in player.core.runs.values():
        yield player, run


def merged(
    sources: Mapping[str, Iterable[LogEvent]], written: Mapping[str, float]
) -> tuple[Iterator[TimedEvent], bool]:
    """Return (the lines of all sources in the order of their times, whether any source prints times).

    A source without times begins at 0, or with the first one with times; of several, those with later first steps
    follow the others. A line without any time is at infinity. `written`: see `replay`.
    """
    opened = {source: _opened(entries) for source, entries in sources.items()}
    near = min((moment for moment, _, _ in opened.values() if moment is not None), default=None)
    start, dated, undated = 0.0, list[Iterator[TimedEvent]](), dict[int | None, list[Iterator[TimedEvent]]]()
    for source, (_, step, entries) in opened.items():
        last = near if near is not None else written.get(source)
        clock = SourceClock(source, last, math.inf if last is None or near is not None else last + _DAY)
        stream = with_times(entries, clock)
        if (first := next(stream, None)) is not None:
            stream = chain((first,), stream)
            if clock.scale.dated:
                dated.append(stream)
                start = min(first.at, start) if len(dated) > 1 else first.at
            else:
                undated.setdefault(step, []).append(stream)
    others = _one_after_another([undated.pop(None, [])], start)
    training = _one_after_another([streams for _, streams in sorted(undated.items())], start)
    return heapq.merge(*dated, others, training, key=attrgetter("at")), bool(dated)


def _one_after_another(groups: Sequence[Sequence[Iterator[TimedEvent]]], at: float) -> Iterator[TimedEvent]:
    """Yield groups of streams one after the other. Times of a group count from 0, and its streams are merged."""
    for streams in groups:
        begin = at
        for placed in heapq.merge(*streams, key=attrgetter("at")):
            if placed.at < math.inf:
                at = placed.at = placed.at + begin
            elif streams is not groups[-1]:
                placed.at = at
            yield placed


def _opened(entries: Iterable[LogEvent]) -> tuple[float | None, int | None, Iterator[LogEvent]]:
    """Return (first stamp, first step, entries) of a source."""
    rest = iter(entries)
    read = list(islice(rest, _FIRST_EVENTS))
    return *first_stamp_and_step(read), chain(read, rest)
