"""Checkpoint overdue: the run goes on much longer without saving than it ever did, or than its arguments say.

A run that saves every so many iterations is measured in iterations; one that saves by the clock, in training time. A
run that never saved is not known to want to: that is shown at most.
"""

import math
from collections.abc import Sequence

from msgspec import Struct, field

from megatron_monitor.detectors.base import CLEAR, UNKNOWN, Detector, Severity, Verdict
from megatron_monitor.parsers.dialects import dialect_of
from megatron_monitor.parsers.events import CheckpointSaved
from megatron_monitor.run.derived import at_risk_seconds
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.state import Launch, RunState
from megatron_monitor.run.steps.step import Step
from megatron_monitor.statistics.median import median_high
from megatron_monitor.units import Factor

_KEPT = 8  # spans between saves
_REGULAR = 1.1  # the longest span over the shortest of a run that saves every so many iterations


class CheckpointOverdueSettings(Struct, frozen=True):
    """Thresholds, each with its reason."""

    factor: Factor = 2.0
    """Over the interval: one save that was left out is notified when the next one is due as well."""
    never_factor: Factor = 3.0
    """Over the arguments' interval, for a run that has not saved yet: shown, not notified."""
    irregular_factor: Factor = 3.0
    """Over the longest span of training time, for a run without a fixed interval."""


class Limit(Struct):
    """What must not be passed since the last save."""

    notified: bool
    """False: shown only."""
    words: str
    iterations: float = math.inf
    seconds: float = math.inf

    def passed(self, memory: "Memory", iteration: int) -> bool:
        """Whether the run is beyond it."""
        return iteration - (memory.last or 0) > self.iterations or memory.seconds > self.seconds


class Memory(Struct):
    """When saves completed, in iterations and in training time."""

    last: int | None = None
    """Iteration of the last save, or where this launch began after it."""
    spans: list[int] = field(default_factory=list)
    span_seconds: list[float] = field(default_factory=list)
    seconds: float = 0.0
    """Training time since then."""
    attempt: int = 0
    saves: int = 0
    over: bool = False
    quiet_until: int = 0
    """Iteration before which nothing can be overdue."""


def on_event(state: RunState, memory: Memory, event: CheckpointSaved, _settings: CheckpointOverdueSettings) -> bool:
    """A save has completed."""
    launch = state.launch
    iteration = event.iteration if event.iteration is not None else state.past.checkpoints.last_iteration
    if iteration is None or iteration == memory.last:
        return False
    if memory.saves and memory.last is not None and memory.attempt == launch.number and iteration > memory.last:
        memory.spans.append(iteration - memory.last)
        memory.span_seconds.append(memory.seconds)
        del memory.spans[:-_KEPT], memory.span_seconds[:-_KEPT]
    memory.last, memory.seconds, memory.attempt = iteration, 0.0, launch.number
    memory.saves += 1
    memory.quiet_until = iteration + (launch.topology.save_interval or _usual(memory) or 0)
    was, memory.over = memory.over, False
    return was


def update(state: RunState, memory: Memory, steps: Sequence[Step], settings: CheckpointOverdueSettings) -> bool:
    """Count; True where the line is crossed."""
    launch, changed, told = state.launch, False, 0
    limit: Limit | None = None
    for step in steps:
        if not step.counted:
            continue
        iteration, interval = step.iteration, step.interval
        if memory.last is None or memory.attempt != launch.number:
            # a launch begins at a checkpoint: its clock begins anew, its first span is no example
            if memory.last is None or not 0 <= iteration - memory.last <= interval:
                memory.last = iteration
            memory.attempt, memory.seconds = launch.number, 0.0
            memory.quiet_until = memory.last + (launch.topology.save_interval or 0)
        memory.seconds += (step.printed_seconds or 0.0) * interval
        if iteration < memory.quiet_until:
            continue
        if interval != told:  # of what the limit comes from this alone may change within a batch
            told, limit = interval, _limit(launch, memory, interval, settings)
        over = limit is not None and limit.passed(memory, iteration)
        if over != memory.over:
            memory.over, changed = over, True
    return changed


def _limit(launch: Launch, memory: Memory, line: int, settings: CheckpointOverdueSettings) -> Limit | None:
    """The limit of this run, with `line` iterations a line, if anything lets one expect it to save."""
    planned = launch.topology.save_interval
    if not memory.saves:
        if not planned or not launch.topology.saves or not dialect_of(launch.dialect).reports_saves:
            return None
        return Limit(False, f"the arguments say every {planned} iterations", settings.never_factor * planned + line)
    usual = _usual(memory)
    every = max(planned, usual or 0) if planned else usual
    if every is not None:
        return Limit(True, f"usually every {every} iterations", settings.factor * every + line)
    longest = max(memory.span_seconds) if len(memory.span_seconds) >= 2 else 0.0
    if longest <= 0:
        return None
    words = f"never more than {longest:.0f} s of training before"
    return Limit(True, words, seconds=settings.irregular_factor * longest)


def _usual(memory: Memory) -> int | None:
    """The interval of a run that saves every so many iterations. A save on a signal makes a short span: left out."""
    if len(memory.spans) < 2:
        return None
    middle = median_high(memory.spans)
    regular = [span for span in memory.spans if span > middle / 2]
    return max(regular) if len(regular) >= 2 and max(regular) <= _REGULAR * min(regular) else None


def check(state: RunState, memory: Memory, _now: float, settings: CheckpointOverdueSettings) -> Verdict:
    """Fires until the next save completes."""
    launch = state.launch
    if launch.phase == "saving":
        return UNKNOWN  # perhaps it ends now
    limit, iteration = _limit(launch, memory, launch.log_interval or 1, settings), launch.latest.iteration
    if limit is None or memory.last is None or iteration is None or launch.phase in ENDED:
        return CLEAR
    if not limit.passed(memory, iteration):
        return CLEAR
    since, risk = iteration - memory.last, at_risk_seconds(state) or 0.0
    saved = f"since iteration {memory.last}" if memory.saves else "at all"
    summary = f"no checkpoint {saved}: {since} iterations, {risk:.0f} s of training; {limit.words}"
    evidence = {
        "iterations": since,
        "at_risk_seconds": round(risk, 1),
        "last_complete_iteration": memory.last if memory.saves else None,
        "limit": limit.words,
    }
    severity: Severity = "warning" if limit.notified else "info"
    return Verdict("firing", severity, summary, evidence, onset=memory.last, quiet=not limit.notified)


DETECTOR = Detector(
    CheckpointOverdueSettings, check, Memory, update, on_event, (CheckpointSaved,), level=True,
    inhibited_by=("checkpoint_failed",),  # none is complete because they fail
)  # fmt: skip
