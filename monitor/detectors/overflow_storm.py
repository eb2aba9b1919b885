"""The rule `overflow_storm`: one step after the other is skipped, so that the model does not learn although lines keep
coming.

The stronger of two signs counts: DeepSpeed's OVERFLOW lines, and the loop's own count of skipped iterations. A scale
that falls counts as a skipped iteration, because BigScience's fork always prints 0. In normal operation one or two
steps (hysteresis) are skipped each time a larger scale is tried.
"""

from collections import Counter
from collections.abc import Sequence

from msgspec import field

from megatron_monitor.detectors.base import CLEAR, AttemptRule, Finding, RuleSettings, Severity, stated
from megatron_monitor.parsers.events import OverflowSkipped
from megatron_monitor.run.records import plus
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step
from megatron_monitor.statistics.scale_search import ScaleSearch

_SPAN = 10  # iterations within which skipped steps are counted

_SKIPPED = 3  # Within 10 iterations: in normal operation hysteresis lets two meet, a third is a storm.
# Share of the steps of a line for several: a scaler that halves twice after one bad batch skips three of ten, and no
# line reports whether one after the other.
_SHARE = 0.3
_CRITICAL = 0.8  # Share of skipped steps from which the run makes no progress.
_ITERATIONS_TO_RESOLVE = 20  # Iterations without a skipped step that end the storm.


class OverflowStorm(AttemptRule):
    """Skipped steps of the last iterations."""

    name = "overflow_storm"
    listens = (OverflowSkipped,)
    is_level = True

    search: ScaleSearch = field(default_factory=ScaleSearch)
    overflows: list[tuple[int, int]] = field(default_factory=list)
    """(iteration before an overflow line, engine), one entry per step."""
    reported: int = 0
    """Number of these steps that count."""
    skips: list[tuple[int, int]] = field(default_factory=list)
    """(iteration, skipped steps reported by its line)."""
    skipped: int = 0
    """Skipped steps reported since the last counted step."""
    scale: float | None = None
    witness: str = ""
    firing: bool = False
    onset: int = 0
    since: float = 0.0
    worst: float = 0.0
    last_bad: int = 0
    handed_on = ("skipped",)
    """A step of the attempt before may have been reported as skipped."""

    def on_steps(self, state: RunState, steps: Sequence[Step], _settings: RuleSettings) -> bool:
        """Process each step: its skipped steps and its scale."""
        first, changed = state.attempt.first_iteration, False
        for step in steps:
            if step.new_skipped:
                self.skipped = plus(self.skipped, step.new_skipped)
            if not step.counted:
                continue
            scale, skipped = step.loss_scale, self.skipped
            if (scale is None or scale <= 1.0) and not (skipped or self.firing):
                continue  # without a loss scale no step is skipped
            if not skipped and self.scale is not None and scale is not None and scale < self.scale:
                skipped = 1
            self.skipped, self.scale = 0, scale
            searching = self.search.is_searching(step.finished, first == step.iteration, skipped > 0)
            if (skipped or self.firing) and self._seen(step.iteration, skipped, searching):
                changed |= self._weigh(step.at, step.iteration, step.interval)
        return changed

    def _seen(self, iteration: int, skipped: int, searching: bool) -> bool:
        """Process a step with a sign of trouble, or within a storm. Return True if it counts: the search for a scale
        skips steps.
        """
        if skipped > 0:
            self.skips.append((iteration, skipped))
            self.last_bad = iteration
        if searching:
            self.overflows, self.skips = [], []
        return not searching

    def on_event(self, state: RunState, _event: OverflowSkipped, _settings: RuleSettings) -> bool:
        """Count each overflow when it is reported."""
        attempt = state.attempt
        engine = attempt.overflows.last_engine
        if engine is None:
            return False  # another rank's copy
        iteration = attempt.latest.iteration or 0
        self.last_bad = iteration
        if self.search.is_searching(attempt.iterations, attempt.first_iteration == attempt.last_iteration, True):
            return False
        self.overflows.append((iteration, engine))
        at = attempt.step_timer.at if attempt.step_timer.at is not None else state.updated_at
        return self._weigh(at, iteration, attempt.log_interval or 1)

    def _weigh(self, at: float, iteration: int, every: int) -> bool:
        """Count the evidence of the last iterations. Return True if the finding may have changed."""
        span = max(_SPAN, every)
        self.overflows = [item for item in self.overflows if item[0] > iteration - span]
        self.skips = [item for item in self.skips if item[0] > iteration - span]
        engines = Counter(engine for _, engine in self.overflows)
        self.reported = reported = max(engines.values(), default=0)
        counted = sum(skipped for _, skipped in self.skips)
        needed = _SKIPPED if every == 1 else max(_SKIPPED, _SHARE * every + 1)
        most = max(reported, counted)
        if most >= needed:
            self.worst = max(self.worst, most / span)
            self.witness = "overflow lines" if reported >= counted else "skipped iterations"
            if not self.firing:
                self.firing, self.since = True, at
                self.onset = min(after for after, _ in (*self.overflows, *self.skips, (iteration, 0)))
            return True
        over = self.firing and iteration - self.last_bad >= _ITERATIONS_TO_RESOLVE
        if over:
            self.firing, self.worst = False, 0.0
        return over

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fire a warning from the third skipped step on, critical if hardly any step succeeds."""
        attempt = state.attempt
        if not self.firing:
            return CLEAR
        reported, counted = self.reported, sum(skipped for _, skipped in self.skips)
        span = max(_SPAN, attempt.log_interval or 1)
        scale = attempt.latest.loss_scale
        figure = f"{max(reported, counted)} of the last {span} steps skipped, at most 2 are normal"
        evidence = {
            "witness": self.witness,
            "overflow_lines": reported,
            "skipped_iterations": counted,
            "worst_share": round(min(1.0, self.worst), 3),
            "overflows_total": state.overflows_total,
            "loss_scale": scale,
            "last_checkpoint_iteration": state.learned.checkpoints.last_iteration,
        }
        if scale is not None:
            figure += f", loss scale {scale:.6g}"
        summary = (
            f"overflow storm since iteration {self.onset}: {figure}; if it continues, go back to an earlier "
            "checkpoint and skip the data or lower the learning rate"
        )
        severity: Severity = "critical" if self.worst >= _CRITICAL else "warning"
        return Finding("firing", severity, summary, stated(evidence), onset=self.onset, since=self.since)
