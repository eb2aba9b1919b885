"""Where one launch of a run ends and the next begins, and what the end of the last one cost.

A second set-up in a source that had already counted iterations is a restart; so is an iteration number that goes back.
A set-up seen in another file of the same launch (per-rank logs) is a copy of the first.
"""

from __future__ import annotations

from monitor.run.between import Between
from monitor.run.copies import SourceCursor
from monitor.run.launches import launch_of
from monitor.run.nodes import NODE_LIST, freeze_node_list, nodes_of, suspects
from monitor.run.overflows import Overflows
from monitor.run.phases import ENDED, Phase, drawn_as
from monitor.run.records import Attempt, AttemptEnd, Memory
from monitor.run.state import RunState
from monitor.run.totals import plus

PLANNED = frozenset({"time_limit", "preempted", "stopped"})
"""Ends that are no failures: the scheduler's ordinary business, and what a person ended."""
_TIMELESS = frozenset({"arguments", "world"})
_PHASES_KEPT = 64  # phase changes kept for the page
_ENDS_KEPT = 50
_NODES_KEPT = 512
_LAUNCHES_KEPT = 1000  # until the record of the nodes takes them: a log that is read from its beginning may hold many


LAUNCHER = "launcher "
"""Before the node's name: the set-up mark of a launcher that starts the processes of a node."""


def set_phase(state: RunState, phase: Phase, at: float) -> None:
    """Enter a phase; staying in it changes nothing. The history keeps no parts of a step: all of them are training."""
    before = state.phase
    if phase != before:
        state.phase, state.phase_since = phase, at
        drawn = drawn_as(phase)
        if drawn != drawn_as(before):
            state.phase_history.append((at, drawn))
            del state.phase_history[:-_PHASES_KEPT]


def count_failure(state: RunState) -> None:
    """Called when an attempt is known to have crashed: one failure an attempt."""
    if (
        state.failure is not None
        and state.failure.failure != "stopped"
        and state.counted_attempt != state.attempt.number
    ):
        state.counted_attempt = state.attempt.number
        kind = state.failure.failure
        state.failures_total[kind] = state.failures_total.get(kind, 0) + 1


def boundary(state: RunState, kind: str, stamp: str, source: str, at: float) -> None:
    """A set-up mark of `kind`: a second one begins a new attempt. `stamp` is the mark's own time or contents."""
    attempt = state.attempt
    if state.phase == "crashed" and attempt.doubtful and not attempt.iterations and kind not in attempt.boundaries:
        _forgive(state, at)
        attempt = state.attempt
    mark = f"{kind} {source}"
    # these carry no time: the same again in the same file, after an end, is of another launch
    again = kind in _TIMELESS and state.phase == "crashed" and not attempt.doubtful and mark in attempt.boundaries
    begun = attempt.iterations > 0 or attempt.failures > 0 or state.phase in ENDED
    if begun:
        cursor = state.copies.cursors.get(source)
        delivered = cursor is not None and cursor.attempt == attempt.number
        known = attempt.boundaries.get(kind)
        ended_here = state.phase in ENDED and known != stamp
        if again or delivered or ended_here or (known is not None and known != stamp):
            begin_attempt(state, at)
    state.attempt.boundaries.setdefault(kind, stamp)
    if kind in _TIMELESS:
        state.attempt.boundaries.setdefault(mark, stamp)


def _forgive(state: RunState, at: float) -> None:
    """A set-up goes on after what failed before its first line: that was another program's."""
    attempt = state.attempt
    attempt.doubtful, attempt.first_failure_at, attempt.failures, attempt.alone = False, None, 0, False
    attempt.uncaught_after = None
    state.failure = None
    set_phase(state, "starting", at)


def begin_attempt(state: RunState, at: float) -> None:
    """A new launch of the same run. Totals go on; what belongs to one launch starts anew."""
    died = state.phase == "crashed" or _left_behind(state)
    if died:
        count_failure(state)  # one that was doubted until now: it did end the launch
    _note_end(state, at, died=died)
    state.environment = {
        name: value
        for name, value in state.environment.items()
        if state.environment_seen.get(name) == state.iterations_total
    }
    state.copies.replaced(state.attempt.last_iteration)
    state.attempt = Attempt(number=state.attempt.number + 1, started_at=at, highest_before=state.highest_iteration)
    state.restarts += 1
    state.failure = None
    state.watchdog_ranks, state.watchdog_nodes = [], []
    state.memory = Memory()
    state.baseline_before = state.last_baseline
    state.pace.reset_windows()
    state.gap_ratios.values.clear()
    if state.log_interval is not None:
        state.log_interval_before = state.log_interval
    state.log_interval = None
    state.validations_since = 0  # an evaluation that the end cut off says nothing of how many sets there are
    state.engine_seconds = 0.0
    state.parts.told, state.parts.silence = [], 0.0
    state.overhead_until, state.overhead_iteration, state.timed_overhead, state.impure = None, None, 0.0, False
    state.last_iteration_at = None
    state.stopwatch.stop()
    state.arrivals.stop()
    state.between = Between()
    state.pure_seconds = None
    state.hung = False
    state.overflows = Overflows()
    state.evaluation_due = state.evaluation_silent = False
    state.silent_work = state.evaluated_at = None
    state.checkpoints.started_iteration = state.checkpoints.started_at = None
    for cursor in state.copies.cursors.values():
        cursor.last_iteration = None
    set_phase(state, "starting", at)


def _left_behind(state: RunState) -> bool:
    """The last that the launch told was an exception: the next launch proves that nobody caught it."""
    failure, attempt = state.failure, state.attempt
    if failure is None or state.phase in ("finished", "exiting"):
        return False
    return failure.failure in ("python_exception", "stopped") and failure.after == attempt.iterations


def _note_end(state: RunState, at: float, *, died: bool) -> None:
    """How the launch ended that the next one replaces: what it lost work to, and whether anybody had planned it."""
    failure, attempt = state.failure, state.attempt
    finished = state.phase in ("finished", "exiting")
    state.after_finish = finished or state.training_done or (state.after_finish and not attempt.iterations)
    if finished:
        failure = None  # a warning of a process on its way out
    cause = "hang" if state.hung else failure.failure if failure else "unknown"
    planned = finished or cause in PLANNED
    state.lost_to = cause
    state.unplanned_ends += not planned
    moved = attempt.node_list is not None or NODE_LIST not in state.environment  # else the list is the next launch's
    launch = launch_of(state) if moved else None
    if launch is not None:
        launch.outcome, launch.planned = "finished" if finished else cause, planned
        state.launches.append(launch)
        del state.launches[:-_LAUNCHES_KEPT]
    named = suspects(state) if failure is not None else []
    state.ends.append(
        AttemptEnd(
            number=attempt.number,
            failure=cause,
            message=failure.message[:300] if failure else "",
            at=failure.at if failure else state.progress_at or at,
            started_at=attempt.started_at if attempt.started_at is not None else state.first_at,
            iterations=attempt.iterations,
            last_iteration=attempt.last_iteration,
            checkpoint=state.checkpoints.last_iteration,
            planned=planned,
            nodes=(named or nodes_of(state))[:_NODES_KEPT],
            culprit=bool(named),
            crashed=died,
            watched=state.live,
            line=failure.line if failure else "",
        )
    )
    del state.ends[:-_ENDS_KEPT]


def retire(state: RunState, at: float) -> None:
    """Another experiment has begun in its log: nothing more comes of this one."""
    attempt = state.attempt
    if state.ends and not (attempt.iterations or attempt.failures or "arguments" in attempt.boundaries):
        end = state.ends.pop()  # the set-up lines before the arguments were the other's
        state.restarts -= 1
        state.unplanned_ends -= not end.planned
        state.attempt = Attempt(attempt.number - 1, end.started_at, None, end.last_iteration, end.iterations)
        died: Phase = "training" if end.failure == "unknown" else "crashed"
        set_phase(state, "finished" if _finished(end) else died, at)
    if state.phase == "exiting":
        set_phase(state, "finished", at)


def first_of_attempt(state: RunState, iteration: int) -> None:
    """The first iteration of an attempt tells how much work the end of the last one cost."""
    freeze_node_list(state)
    before = next((end for end in reversed(state.ends) if end.last_iteration is not None), None)
    if state.attempt.number == 0 or before is None or before.last_iteration is None or _finished(before):
        return
    lost = before.last_iteration + 1 - iteration  # what lies above was lost by an earlier restart already
    if lost > 0:
        seconds = lost * (state.last_baseline or state.latest.seconds_per_iteration or 0.0)
        cause = state.lost_to
        state.lost_iterations_total = plus(state.lost_iterations_total, lost)
        state.lost_seconds_total[cause] = state.lost_seconds_total.get(cause, 0.0) + seconds
        state.productive_seconds = max(0.0, state.productive_seconds - seconds)


def _finished(end: AttemptEnd) -> bool:
    """Nothing of a launch that came to its end is lost."""
    return end.planned and end.failure not in PLANNED


def cursor_of(state: RunState, source: str) -> SourceCursor:
    """Where this source of the run stands."""
    return state.copies.cursors.setdefault(source, SourceCursor())
