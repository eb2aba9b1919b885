"""Checkpoint overdue: the run goes on much longer without saving than it ever did, or than its arguments say.

A run that saves every so many iterations is measured in iterations; one that saves by the clock, in training time. A
run that never saved is not known to want to: that is shown at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from monitor.detectors.checkpoint_failed import TELLS_SUCCESS
from monitor.detectors.memory import recall
from monitor.detectors.verdict import Verdict
from monitor.run.median import median_high
from monitor.run.phases import ENDED
from monitor.run.state import RunState
from monitor.run.units import Factor
from parsers.events import CheckpointSaved, Event

LISTENS = (CheckpointSaved,)
_KEPT = 8  # spans between saves
_REGULAR = 1.1  # the longest span over the shortest of a run that saves every so many iterations


class CheckpointOverdueSettings(Struct, frozen=True):
    """Thresholds, each with its reason."""

    factor: Factor = 2.0
    """Over the interval: one save that was left out is told when the next one is due as well."""
    never_factor: Factor = 3.0
    """Over the arguments' interval, for a run that has not saved yet: shown, not told."""
    irregular_factor: Factor = 3.0
    """Over the longest span of training time, for a run without a fixed interval."""


@dataclass(slots=True)
class Memory:
    """When saves became whole, in iterations and in training time."""

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


def on_event(state: RunState, event: Event, settings: CheckpointOverdueSettings) -> bool:  # noqa: ARG001
    """A save is whole."""
    memory = recall(state, "checkpoint_overdue", Memory)
    iteration = event.iteration if isinstance(event, CheckpointSaved) else None
    if iteration is None:
        iteration = state.checkpoints.last_iteration
    if iteration is None or iteration == memory.last:
        return False
    if memory.saves and memory.last is not None and memory.attempt == state.attempt.number and iteration > memory.last:
        memory.spans.append(iteration - memory.last)
        memory.span_seconds.append(memory.seconds)
        del memory.spans[:-_KEPT], memory.span_seconds[:-_KEPT]
    memory.last, memory.seconds, memory.attempt = iteration, 0.0, state.attempt.number
    memory.saves += 1
    memory.quiet_until = iteration + (state.topology.save_interval or _usual(memory) or 0)
    was, memory.over = memory.over, False
    return was


def on_step(state: RunState, settings: CheckpointOverdueSettings) -> bool:
    """Count; say when the line is crossed."""
    memory = recall(state, "checkpoint_overdue", Memory)
    iteration = state.latest.iteration
    if iteration is None:
        return False
    if memory.last is None or memory.attempt != state.attempt.number:
        # a launch begins at a checkpoint: its clock begins anew, its first span is no example
        if memory.last is None or not 0 <= iteration - memory.last <= (state.log_interval or 1):
            memory.last = iteration
        memory.attempt, memory.seconds = state.attempt.number, 0.0
        memory.quiet_until = memory.last + (state.topology.save_interval or 0)
    memory.seconds += (state.latest.seconds_per_iteration or 0.0) * (state.log_interval or 1)
    if iteration < memory.quiet_until:
        return False
    was = memory.over
    memory.over = _passed(state, memory, settings) is not None
    return was != memory.over


class _Limit(NamedTuple):
    """What must not be passed since the last save."""

    told: bool
    """It is told, not only shown."""
    words: str
    iterations: float = math.inf
    seconds: float = math.inf


def _limit(state: RunState, memory: Memory, settings: CheckpointOverdueSettings) -> _Limit | None:
    """The limit of this run, if anything lets one expect it to save."""
    told, line = state.topology.save_interval, state.log_interval or 1
    if not memory.saves:
        if not told or not state.topology.saves or state.dialect not in TELLS_SUCCESS:
            return None
        return _Limit(False, f"the arguments say every {told} iterations", settings.never_factor * told + line)
    usual = _usual(memory)
    every = max(told, usual or 0) if told else usual
    if every is not None:
        return _Limit(True, f"usually every {every} iterations", settings.factor * every + line)
    longest = max(memory.span_seconds) if len(memory.span_seconds) >= 2 else 0.0
    if longest <= 0:
        return None
    words = f"never more than {longest:.0f} s of training before"
    return _Limit(True, words, seconds=settings.irregular_factor * longest)


def _passed(state: RunState, memory: Memory, settings: CheckpointOverdueSettings) -> _Limit | None:
    """The limit if the run is beyond it."""
    if state.latest.iteration is None or memory.last is None:
        return None
    limit = _limit(state, memory, settings)
    if limit is None:
        return None
    return limit if state.latest.iteration - memory.last > limit.iterations or memory.seconds > limit.seconds else None


def _usual(memory: Memory) -> int | None:
    """The interval of a run that saves every so many iterations. A save on a signal makes a short span: left out."""
    if len(memory.spans) < 2:
        return None
    middle = median_high(memory.spans)
    whole = [span for span in memory.spans if span > middle / 2]
    return max(whole) if len(whole) >= 2 and max(whole) <= _REGULAR * min(whole) else None


def check(state: RunState, now: float, settings: CheckpointOverdueSettings) -> Verdict:  # noqa: ARG001
    """Fires until the next save is whole."""
    memory = recall(state, "checkpoint_overdue", Memory)
    if state.phase == "saving":
        return Verdict("checkpoint_overdue", "unknown")  # perhaps it ends now
    limit = _passed(state, memory, settings) if state.phase not in ENDED else None
    if limit is None or memory.last is None or state.latest.iteration is None:
        return Verdict("checkpoint_overdue")
    told, words = limit.told, limit.words
    since = state.latest.iteration - memory.last
    saved = f"since iteration {memory.last}" if memory.saves else "at all"
    return Verdict(
        "checkpoint_overdue",
        "firing",
        severity="warning" if told else "info",
        summary=f"no checkpoint {saved}: {since} iterations, {memory.seconds:.0f} s of training; {words}",
        onset_iteration=memory.last,
        evidence={
            "iterations": since,
            "at_risk_seconds": round(memory.seconds, 1),
            "last_whole_iteration": memory.last if memory.saves else None,
            "limit": words,
        },
        quiet=not told,
    )
