"""Calm iterations at once: `calm` says how many rows of a stretch need no care, `fold_steps` folds them.

Law: what `fold` leaves after each of the lines in turn, this leaves bit for bit (tests/monitor/test_same_state.py).
What is rare is not repeated here: a row at which anything but training happens is folded by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import sub
from typing import Any, cast

from monitor.run import recording
from monitor.run.bursts import watch_many
from monitor.run.copies import row_prints
from monitor.run.iterations import EXPLANATIONS, evaluation_every, gap_of, take_values
from monitor.run.log_clock import clocks_of, log_clocks
from monitor.run.nodes import note_node
from monitor.run.observed import observe_many
from monitor.run.pace import GAPS_KEPT
from monitor.run.state import RunState
from monitor.run.steps import Steps
from parsers.stretch import Stretch

LEAST = 4
"""Rows below which one by one is as quick."""


@dataclass(frozen=True, slots=True)
class Calm:
    """Rows of a stretch, from `start` on, that are proved calm."""

    stretch: Stretch
    start: int
    steps: Steps
    clocks: list[float | None] | None
    """The log's own time of each row, where `live` needs all of them."""

    def first(self, rows: int) -> Calm:
        """The first rows alone."""
        return Calm(self.stretch, self.start, self.steps.first(rows), self.clocks and self.clocks[:rows])

    def column(self, name: str) -> Any:
        """A list with a value for each row, or the value that all rows share; None where it is not printed."""
        column = self.stretch.columns.get(name)
        return self.stretch.shared.get(name) if column is None else column[self.start : self.start + len(self.steps)]

    def values(self, name: str) -> list[Any] | None:
        """A value for each row; None where it is not printed."""
        return self.stretch.values(name, self.start, self.start + len(self.steps))


def calm(state: RunState, stretch: Stretch, start: int, source: str, at: Sequence[float], live: bool) -> Calm | None:
    """The most rows from row `start` on that `fold_steps` may take; None if there are too few of them.

    `at` is when each of these rows was written, never backwards: it may be shorter than the stretch.
    """
    stop = min(len(stretch), start + len(at))
    if not _steady(state, stretch, live) or source not in state.copies.cursors or at[0] < (state.progress_at or 0.0):
        return None
    interval, iterations = state.log_interval or 1, stretch.columns.get("iteration")
    if iterations is None:
        return None
    first = (state.attempt.last_iteration or 0) + interval
    stop = _in_order(iterations, start, stop, first, interval)
    stop = _unchanged(state, stretch, start, stop)
    if state.train_iterations is not None:
        stop = min(stop, start + max(0, -(-(state.train_iterations - first) // interval)))
    every = evaluation_every(state)
    if every:
        stop = next((row for row in range(start, stop) if iterations[row] % every == 0), stop)
    if stop - start < LEAST:
        return None
    seconds = stretch.values("seconds_per_iteration", start, stop)
    losses = stretch.values("lm_loss", start, stop)
    if seconds is None or losses is None or min(seconds) <= 0 or min(losses) <= 0:
        return None
    rows = stop - start
    steps = Steps(
        iterations[start:stop],
        list(at[:rows]),
        seconds,
        losses,
        stretch.values("grad_norm", start, stop),
        stretch.values("consumed_samples", start, stop),
        state.latest.loss_scale,
        interval,
        stretch.values("learning_rate", start, stop),
    )
    clocks = log_clocks(stretch)[start:stop] if live and stretch.timed else None
    return Calm(stretch, start, steps, clocks) if clocks is None or None not in clocks else None


def _steady(state: RunState, stretch: Stretch, live: bool) -> bool:
    """Whether the run is in the middle of training, with all that its first lines leave behind."""
    attempt = state.attempt
    if state.phase != "training" or state.driver != "iteration" or not state.proven:
        return False
    if (
        attempt.last_iteration is None
        or state.log_interval is None
        or state.highest_iteration != attempt.last_iteration
    ):
        return False  # a launch that computes again what another has computed is looked at line by line
    if state.failure is not None or state.hung or state.impure or state.timed_overhead:
        return False
    if state.overhead_until is not None or "validations_since" in state.memo:
        return False
    if state.history.kept and state.history.attempt != attempt.number:
        return False
    if None in (state.first_at, state.progress_at, state.last_iteration_at, state.pace.baseline):
        return False
    if live and not state.live:
        return False
    if stretch.shared["dialect"] != state.dialect or state.topology.dialect != state.dialect:
        return False
    printed = "tflops" in stretch.columns or "tflops" in stretch.shared
    if printed and state.tflops_formula is None and state.observed.unexplained < EXPLANATIONS:
        return False
    if not printed and state.history.kept and not recording.rate_is_known(state):
        return False
    return (state.log_clock_first is not None or not stretch.timed) and "node" not in stretch.columns


def _in_order(iterations: list[int], start: int, stop: int, first: int, interval: int) -> int:
    """The end of the rows that count on from `first` without a gap."""
    expected = range(first, first + interval * (stop - start), interval)
    if iterations[start:stop] == list(expected):
        return stop
    rows = zip(range(start, stop), expected, strict=True)
    return next(row for row, iteration in rows if iterations[row] != iteration)


def _unchanged(state: RunState, stretch: Stretch, start: int, stop: int) -> int:
    """The end of the rows that say nothing new of the run: its size, its plan, its loss scale, steps that failed."""
    latest, topology = state.latest, state.topology
    wanted: list[tuple[str, Any]] = [
        ("train_iterations", state.train_iterations),
        ("skipped_iterations", 0),
        ("nan_iterations", 0),
    ]
    for name, known in (
        ("global_batch_size", topology.global_batch_size),
        ("sequence_length", topology.sequence_length),
    ):
        now = getattr(latest, name)
        if name in stretch.columns or stretch.shared.get(name):
            wanted.append((name, now))
        elif now != known:
            return start
    if (latest.global_batch_size or 0) != state.pace.last_batch_size:
        return start
    scale = stretch.shared.get("loss_scale")
    if scale is None or scale > 0:  # DeepSpeed's pipeline prints -1.0: it owns the scale
        wanted.append(("loss_scale", latest.loss_scale))
    for name, value in wanted:
        column = stretch.columns.get(name)
        if column is None:
            if stretch.shared.get(name, value) != value:
                return start
        elif column[start:stop].count(value) != stop - start:
            stop = next(row for row in range(start, stop) if column[row] != value)
    return stop


def fold_steps(state: RunState, calm: Calm, source: str, live: bool) -> None:
    """Take calm steps in, as fold takes line after line."""
    steps, stretch, attempt = calm.steps, calm.stretch, state.attempt
    last = calm.start + len(steps) - 1
    state.updated_at = max(state.updated_at, steps.at[-1])
    node = stretch.shared.get("node")
    if node is not None:
        note_node(state, node, len(steps))
    prints = row_prints(steps.iterations, steps.losses, steps.grad_norms, steps.samples, steps.seconds)
    state.copies.remember_many(prints, len(steps), source, attempt.number)
    state.copies.moved(source, steps.iterations[-1], attempt.number)
    take_values(state, stretch.event(last))
    state.last_line = stretch.text(last)
    tflops = calm.values("tflops")
    gaps = list(map(sub, steps.at, [state.progress_at or 0.0, *steps.at])) if live else []
    moved = [row for row, gap in enumerate(gaps) if gap > 0][-GAPS_KEPT:]
    needed = None if state.history.kept else len(steps) - moved[0] if moved else 1
    baselines = _count(state, steps, tflops, needed)
    _observe(state, calm, tflops)
    if live:
        watch_many(state, [seconds * steps.interval for seconds in steps.seconds], steps.at)
    state.last_iteration_at = steps.at[-1]
    _record(state, calm, baselines, live)
    if moved:
        _learn_gaps(state, steps, gaps, moved, baselines)
    state.progress_at = steps.at[-1]
    state.live = state.live or live


def _count(state: RunState, steps: Steps, tflops: list[float] | None, needed: int | None) -> list[float]:
    """The iterations and what they took; gives the baseline after each of the last `needed` lines, or of all."""
    attempt, batch_size = state.attempt, state.latest.global_batch_size
    iterations, last = len(steps) * steps.interval, steps.iterations[-1]
    attempt.last_iteration = state.latest.iteration = state.highest_iteration = last
    attempt.iterations += iterations
    state.iterations_total += iterations
    attempt.first_failure_at = None
    state.productive_seconds = steps.seconds_since(state.productive_seconds)
    state.seconds_since_checkpoint = steps.seconds_since(state.seconds_since_checkpoint)
    state.pure_seconds = state.step_seconds = steps.seconds[-1]
    state.steady.add_many(batch_size, steps.seconds, tflops)
    baselines = state.pace.add_many(steps.seconds, batch_size, steps.interval, needed)
    state.memo["last_baseline"] = baselines[-1]
    return cast("list[float]", baselines)  # there was one before


def _observe(state: RunState, calm: Calm, tflops: list[float] | None) -> None:
    latest, steps, batch_size = state.latest, calm.steps, calm.column("global_batch_size")
    observe_many(
        state.observed,
        state.attempt.number,
        steps.iterations,
        steps.seconds,
        steps.samples,
        calm.values("samples_per_second"),
        tflops,
        batch_size[0] if isinstance(batch_size, list) else batch_size,
        latest.global_batch_size,
        latest.sequence_length,
    )


def _record(state: RunState, calm: Calm, baselines: list[float], live: bool) -> None:
    """The rows of the run's past; times as recording.record tells them."""
    steps, history, latest = calm.steps, state.history, state.latest
    times: Callable[[int], float | None] = _unknown
    clock: float | None = None
    if calm.clocks is not None:
        lag = min(map(sub, steps.at, cast("list[float]", calm.clocks)))
        history.clock_lag = lag if history.clock_lag is None else min(lag, history.clock_lag)
        times, clock = calm.clocks.__getitem__, max(cast("list[float]", calm.clocks))
    elif calm.stretch.timed:
        times, clock = clocks_of(calm.stretch, calm.start, calm.start + len(steps))
    elif live:
        zone = history.zone
        times = lambda row: steps.at[row] - zone  # noqa: E731
    if clock is not None:
        state.log_clock_last = max(clock, state.log_clock_last or clock)
    if not history.kept:
        return
    tflops, memory = calm.column("tflops"), state.memory
    columns = (
        steps.losses,
        calm.column("grad_norm"),
        latest.loss_scale,
        steps.seconds,
        baselines,
        recording.computed_rates(state, steps.seconds) if tflops is None else tflops,
        memory.max_reserved or memory.max_allocated,
        calm.column("learning_rate"),
        latest.global_batch_size,
    )
    history.add_steps(steps.iterations, times, state.attempt.number, columns)


def _unknown(_row: int) -> None:
    return None


def _learn_gaps(state: RunState, steps: Steps, gaps: list[float], moved: list[int], baselines: list[float]) -> None:
    """Live: the gaps before the rows in `moved` are examples of good ones."""
    gap_of(state, "training").add_many([gaps[row] for row in moved])
    predicted = [max(steps.seconds[row], baselines[row - len(steps)]) for row in moved]
    ratios = [gaps[row] / (value * steps.interval) for row, value in zip(moved, predicted, strict=True)]
    state.gap_ratios.add_many(ratios)
