"""The rule `checkpoint_overdue`: the run continues much longer without a save than before, or than its arguments state.

A run that saves by the clock has no interval in iterations and is not judged. A run that never saved may not intend to
save, so that the finding is only shown.
"""

from collections.abc import Sequence

from msgspec import Struct, field

from megatron_monitor.detectors.base import CLEAR, UNKNOWN, Finding, Rule, RuleSettings, Severity
from megatron_monitor.parsers.events import CheckpointSaved
from megatron_monitor.parsers.programs import program_of
from megatron_monitor.run.derived import unsaved_progress_seconds
from megatron_monitor.run.state import Attempt, RunState
from megatron_monitor.run.steps.step import Step
from megatron_monitor.statistics.median import median_high

_MAX_SPANS = 8  # remembered spans between saves
_REGULAR = 1.1  # maximum ratio of the longest to the shortest span of a run that saves every N iterations


_FACTOR = 2.0  # Times the interval: one omitted save is notified when the next one is due as well.
_NEVER_FACTOR = 3.0  # Times the interval of the arguments, for a run that has not saved yet: shown, not notified.


class Limit(Struct):
    """The maximum distance since the last save."""

    notified: bool
    """False: only shown."""
    basis: str
    iterations: float


class CheckpointOverdue(Rule):
    """Complete saves."""

    name = "checkpoint_overdue"
    listens = (CheckpointSaved,)
    inhibited_by = ("checkpoint_failed",)  # no save completes because saves fail
    is_level = True

    last: int | None = None
    """Iteration of the last save, or of the beginning of this attempt if that is later."""
    spans: list[int] = field(default_factory=list)
    attempt: int = 0
    saves: int = 0
    over: bool = False
    silent_until: int = 0
    """Iteration before which no save is overdue."""

    def on_event(self, state: RunState, event: CheckpointSaved, _settings: RuleSettings) -> bool:
        """A save is complete."""
        attempt = state.attempt
        iteration = event.iteration if event.iteration is not None else state.learned.checkpoints.last_iteration
        if iteration is None or iteration == self.last:
            return False
        if self.saves and self.last is not None and self.attempt == attempt.number and iteration > self.last:
            self.spans.append(iteration - self.last)
            del self.spans[:-_MAX_SPANS]
        self.last, self.attempt = iteration, attempt.number
        self.saves += 1
        self.silent_until = iteration + (attempt.topology.save_interval or self._usual() or 0)
        was, self.over = self.over, False
        return was

    def on_steps(self, state: RunState, steps: Sequence[Step], _settings: RuleSettings) -> bool:
        """Count iterations. Return True if the limit is crossed."""
        attempt, changed, reported = state.attempt, False, 0
        limit: Limit | None = None
        for step in steps:
            if not step.counted:
                continue
            iteration, interval = step.iteration, step.interval
            if self.last is None or self.attempt != attempt.number:
                # an attempt begins at a checkpoint: the count restarts, and its first span is not representative
                if self.last is None or not 0 <= iteration - self.last <= interval:
                    self.last = iteration
                self.attempt = attempt.number
                self.silent_until = self.last + (attempt.topology.save_interval or 0)
            if iteration < self.silent_until:
                continue
            if interval != reported:  # only this source of the limit can change within a batch
                reported, limit = interval, self._limit(attempt, interval)
            over = limit is not None and iteration - self.last > limit.iterations
            if over != self.over:
                self.over, changed = over, True
        return changed

    def _limit(self, attempt: Attempt, line: int) -> Limit | None:
        """Return the limit of this run, or None if no save can be expected. `line`: iterations per line."""
        planned = attempt.topology.save_interval
        if not self.saves:
            if not planned or not attempt.topology.saves or not program_of(attempt.format).reports_saves:
                return None
            return Limit(False, f"the arguments request one every {planned} iterations", _NEVER_FACTOR * planned + line)
        usual = self._usual()
        every = max(planned, usual or 0) if planned else usual
        return None if every is None else Limit(True, f"usually every {every} iterations", _FACTOR * every + line)

    def _usual(self) -> int | None:
        """Return the interval of a run that saves every N iterations. A save on a signal makes a short span."""
        if len(self.spans) < 2:
            return None
        middle = median_high(self.spans)
        regular = [span for span in self.spans if span > middle / 2]
        return max(regular) if len(regular) >= 2 and max(regular) <= _REGULAR * min(regular) else None

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fire until the next complete save."""
        attempt = state.attempt
        if attempt.phase == "saving":
            return UNKNOWN  # the run may be about to end
        limit, iteration = self._limit(attempt, attempt.log_interval or 1), attempt.latest.iteration
        if limit is None or self.last is None or iteration is None:
            return CLEAR
        since, risk = iteration - self.last, unsaved_progress_seconds(state) or 0.0
        if since <= limit.iterations:
            return CLEAR
        saved = f"since iteration {self.last}" if self.saves else "at all"
        summary = f"no checkpoint {saved}: {since} iterations, {risk:.0f} s of training; {limit.basis}"
        evidence = {
            "iterations": since,
            "unsaved_progress_seconds": round(risk, 1),
            "last_complete_iteration": self.last if self.saves else None,
            "limit": limit.basis,
        }
        severity: Severity = "warning" if limit.notified else "info"
        return Finding("firing", severity, summary, evidence, onset=self.last, display_only=not limit.notified)
