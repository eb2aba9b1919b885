"""The rule `checkpoint_overdue`: the run continues much longer without a save than before, or than its arguments state.

A run that saves by the clock has no interval in iterations and is not judged, and neither is a run that never saved.
"""

import math
from collections.abc import Sequence

from msgspec import field

from megatron_monitor.detectors.base import CLEAR, UNKNOWN, AttemptRule, Finding, RuleSettings
from megatron_monitor.parsers.events import CheckpointSaved
from megatron_monitor.run.derived import unsaved_progress_seconds
from megatron_monitor.run.state import Attempt, RunState
from megatron_monitor.run.steps.step import Step
from megatron_monitor.statistics.median import median_high

_MAX_SPANS = 8  # remembered spans between saves
_REGULAR = 1.1  # maximum ratio of the longest to the shortest span of a run that saves every N iterations
_FACTOR = 2.0  # Times the interval: one omitted save is notified when the next one is due as well.


class CheckpointOverdue(AttemptRule):
    """Complete saves."""

    name = "checkpoint_overdue"
    listens = (CheckpointSaved,)
    inhibited_by = ("checkpoint_failed",)  # no save completes because saves fail
    is_level = True

    last: int | None = None
    """Iteration of the last save, or of the beginning of this attempt if that is later."""
    spans: list[int] = field(default_factory=list)
    saved: bool = False
    every: int | None = None
    """Usual iterations between two saves. None: unknown."""
    over: bool = False
    handed_on = ("last", "spans", "saved")

    def on_event(self, state: RunState, event: CheckpointSaved, _settings: RuleSettings) -> bool:
        """A save is complete."""
        attempt = state.attempt
        iteration = event.iteration if event.iteration is not None else state.learned.checkpoints.last_iteration
        if iteration is None or iteration == self.last:
            return False
        if self.saved and self.last is not None and self.idle_until > -math.inf and iteration > self.last:
            self.spans.append(iteration - self.last)
            del self.spans[:-_MAX_SPANS]
        self.saved = True
        self._expect(attempt, iteration)
        was, self.over = self.over, False
        return was

    def on_steps(self, state: RunState, steps: Sequence[Step], _settings: RuleSettings) -> bool:
        """Count iterations. Return True if the limit is crossed."""
        was = self.over
        for step in steps:
            if not step.counted:
                continue
            if self.idle_until == -math.inf:
                # an attempt begins at a checkpoint: the count restarts, and its first span is not representative
                continues = self.last is not None and 0 <= step.iteration - self.last <= step.interval
                self._expect(state.attempt, self.last if continues and self.last is not None else step.iteration)
            self.over = step.iteration - step.interval > self.idle_until
        return self.over != was

    def _expect(self, attempt: Attempt, last: int) -> None:
        """Expect the next save after this iteration: it is not overdue until `idle_until`."""
        planned, usual = attempt.topology.save_interval, self._usual()
        self.last = last
        self.every = max(planned or 0, usual or 0) or None
        self.idle_until = last + _FACTOR * self.every if self.every and self.saved else math.inf

    def _usual(self) -> int | None:
        """Return the interval of a run that saves every N iterations. A save on a signal makes a short span."""
        if len(self.spans) < 2:
            return None
        middle = median_high(self.spans)
        regular = [span for span in self.spans if span > middle / 2]
        return max(regular) if len(regular) >= 2 and max(regular) <= _REGULAR * min(regular) else None

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fire until the next complete save."""
        iteration, risk = state.attempt.latest.iteration, unsaved_progress_seconds(state) or 0.0
        if state.attempt.phase == "saving":
            return UNKNOWN  # the run may be about to end
        if not self.over or self.last is None or iteration is None:
            return CLEAR
        since, usual = iteration - self.last, f"usually every {self.every} iterations"
        summary = f"no checkpoint since iteration {self.last}: {since} iterations, {risk:.0f} s of training; {usual}"
        evidence = {
            "iterations": since,
            "unsaved_progress_seconds": round(risk, 1),
            "last_complete_iteration": self.last,
            "limit": usual,
        }
        return Finding("firing", "warning", summary, evidence, onset=self.last)
