"""The rule `overflow_storm`: steps are skipped one after the other, or the loss scale falls and falls.

Overflowing gradients skip a step, and the scaler halves the loss scale. In normal operation one or two steps
(hysteresis) are skipped each time a larger scale is tried, about once in 1000 steps. The stronger of two signs counts:
DeepSpeed's OVERFLOW lines, and the loop's own lines with their count of skipped iterations. A scale that falls counts
as a skipped iteration, because BigScience's fork always prints 0. A scale that never moves (bf16 prints none or 1.0, a
static scale is constant) is not evidence, and -1 is not a scale.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import field

from megatron_monitor.detectors.base import CLEAR, AttemptRule, Finding, RuleSettings, Severity, stated
from megatron_monitor.parsers.events import OverflowSkipped
from megatron_monitor.parsers.programs import program_of
from megatron_monitor.run.records import plus
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step
from megatron_monitor.statistics.median import median_high

_LINES = -1  # the engine of signs in the loop's lines
_BLOCKS = 16  # remembered blocks of a slow decline
_DYNAMIC = 4.0  # an attempt whose scale was never 2^4 did not fall to its minimum

_SETTLED = 20  # iterations in a row without an overflow after which the search for the scale has ended
_MAX_SEARCH = 60  # iterations of an attempt in which it may last: from 2^32 to 1 with hysteresis it takes 33
_SPAN = 10  # iterations within which skipped steps are counted
_SKIPPED = 3  # within them: in normal operation hysteresis lets two meet, a third is a storm
# Share of the steps of a line for several: a scaler that halves twice after one bad batch skips three of ten, and no
# line reports whether one after the other.
_SHARE = 0.3
_CRITICAL = 0.8  # Share of skipped steps from which the run makes no progress.
# Iterations within which halvings are counted, and without a sign after which the incident ends.
_LONG_SPAN = 50
_HALVINGS_SLOW = 4  # at one overflow per 1000 iterations four meet by chance once in millions
# Halvings within the shorter span. GLM-130B's scale fell like this 30 iterations before its loss exploded.
_HALVINGS = 3
_MINIMUM = 1.0  # Smallest scale of Megatron and DeepSpeed by default. At twice this value one step is left.
_BLOCK = 500  # Iterations whose median shows a slow decline: half the window after which a scale doubles.
_DECLINE = 3.0  # Halvings between such medians: a 104B run sank 8-fold over 2,300 iterations before it broke.
_SAME_NORM = 1.5  # Times a former grad norm up to which gradients have not grown.

_REASONS = ("", "declining", "falling", "skipping", "minimum")
"""The worst last."""


class Sign(NamedTuple):
    """Skipped steps and halvings of the scale, by one engine's lines or by the loop's."""

    iteration: int
    engine: int
    skipped: int
    halvings: float


class OverflowStorm(AttemptRule):
    """Signs of the last iterations and medians of the past. Scales are logarithms to base 2."""

    name = "overflow_storm"
    listens = (OverflowSkipped,)
    is_level = True

    last_overflow: int = 0
    """Iterations that the attempt had finished at its last overflow while it searched for its scale."""
    searched: bool = False
    """True: the search is over."""
    skipped: int = 0
    """Skipped steps reported since the last counted step."""
    level: float | None = None
    highest: float = 0.0
    """Largest scale of this attempt since its search ended."""
    signs: list[Sign] = field(default_factory=list)
    most: float = 0
    """Skipped steps within the span, by the stronger sign."""
    halvings: float = 0.0
    block: list[tuple[float, float, float]] = field(default_factory=list)
    """(scale, loss, grad norm) of each step of the present block."""
    block_from: int = 0
    blocks: list[tuple[float, ...]] = field(default_factory=list)
    """Their medians in the past blocks."""
    healthy: bool = False
    """The loss fell while the scale declined, and the grad norm did not grow, or is back at its usual level."""
    reason: str = ""
    onset: int = 0
    since: float = 0.0
    before: float = 0.0
    worst: float = 0.0
    """Largest share of skipped steps."""
    handed_on = ("skipped", "blocks")
    """A step of the attempt before may have been reported as skipped. A new attempt starts a new scaler."""

    def on_steps(self, state: RunState, steps: Sequence[Step], _settings: RuleSettings) -> bool:
        """Process each step: its skipped steps and its scale."""
        attempt = state.attempt
        lines, first, changed = attempt.step_source == "iteration", attempt.first_iteration, False
        for step in steps:
            if step.new_skipped:
                self.skipped = plus(self.skipped, step.new_skipped)
            if not step.counted:
                continue
            scale, known = step.loss_scale or 0.0, self.level
            level = math.log2(scale) if scale > 0 and (scale != 1.0 or known) else None
            if level is None and not (self.skipped or self.reason):
                continue
            # the lines of an engine do not show each level
            fall = max(0.0, known - level) if lines and known is not None and level is not None else 0.0
            minimum = program_of(attempt.format).minimum_loss_scale or _MINIMUM
            changed |= self._seen(step, level, fall, first == step.iteration, minimum)
        return changed

    def _seen(self, step: Step, level: float | None, fall: float, first: bool, minimum: float) -> bool:
        """Process a step of a program with a loss scale. `first`: it is the attempt's first line."""
        iteration, skipped, changed = step.iteration, self.skipped or int(fall > 0), False
        moved, self.skipped = level != self.level, 0
        if skipped:
            self.signs.append(Sign(iteration, _LINES, skipped, fall))
        searching = self._is_searching(step.finished, first, skipped > 0)
        if level is not None:
            self.level = level
            self.highest = level if searching else max(self.highest, level)
            at_minimum = level <= math.log2(2 * minimum)
            # the minimum is reported once, and again after the scale has moved
            if at_minimum and max(self.highest, level) >= _DYNAMIC and (moved or self.reason != "minimum"):
                changed = self._open(step.at, "minimum", iteration)
            if not searching:
                changed |= self._slow(step, level)
        if searching:
            self.signs, self.block_from = [], iteration
        elif skipped or self.reason:
            changed |= self._weigh(step.at, iteration, step.interval)
            if self.reason not in ("", "declining") and not self.signs and not (level is not None and at_minimum):
                self._resolve(iteration)
                changed = True
        return changed

    def _is_searching(self, finished: int, first_line: bool, overflow: bool) -> bool:
        """Return True while the scaler searches: it starts far too high (2^16 to 2^32) and halves at each step until
        one succeeds. That is normal at the start of a run and after a restart without its state. `finished`: iterations
        of the attempt so far. `first_line`: it is the attempt's first report, which may cover a hundred steps.
        """
        if overflow and not self.searched:
            self.last_overflow = finished
        settled = finished - self.last_overflow >= _SETTLED or finished > _MAX_SEARCH
        self.searched = self.searched or (settled and not first_line)
        return not self.searched

    def on_event(self, state: RunState, event: OverflowSkipped, _settings: RuleSettings) -> bool:
        """Count each overflow when it is reported, before the step's own line."""
        attempt = state.attempt
        engine, iteration = attempt.overflows.last_engine, attempt.latest.iteration or 0
        if engine is None:
            return False  # another rank's copy
        if self._is_searching(attempt.iterations, attempt.first_iteration == attempt.last_iteration, True):
            return False
        old, new = event.loss_scale or 0.0, event.new_loss_scale or 0.0
        if new > 0:
            self.level = math.log2(new)  # the next step shows no fall besides: the last scale may be another engine's
        self.signs.append(Sign(iteration, engine, 1, math.log2(old / new) if old > new > 0 else 0.0))
        at = attempt.step_timer.at if attempt.step_timer.at is not None else state.updated_at
        return self._weigh(at, iteration, attempt.every)

    def _weigh(self, at: float, iteration: int, every: int) -> bool:
        """Count the signs of the last iterations. Return True if the finding may have changed."""
        span = max(_SPAN, every)
        self.signs = [sign for sign in self.signs if sign.iteration > iteration - max(_LONG_SPAN, every)]
        skips, recent, halvings = (defaultdict[int, float](float) for _ in range(3))
        for sign in self.signs:
            halvings[sign.engine] += sign.halvings
            if sign.iteration > iteration - span:
                skips[sign.engine] += sign.skipped
                recent[sign.engine] += sign.halvings
        self.most, self.halvings = max(skips.values(), default=0), max(halvings.values(), default=0.0)
        # one line of many iterations shows their net fall
        fast = max(recent.values(), default=0.0) >= _HALVINGS + (every > _SPAN) + (every > _LONG_SPAN)
        changed = False
        if fast or self.halvings >= _HALVINGS_SLOW + (every > _LONG_SPAN):
            changed = self._open(at, "falling", self.signs[0].iteration)
        if self.most >= (_SKIPPED if every == 1 else max(_SKIPPED, _SHARE * every + 1)):
            self.worst = max(self.worst, self.most / span)
            changed = self._open(at, "skipping", min(sign.iteration for sign in self.signs))
        return changed

    def _slow(self, step: Step, level: float) -> bool:
        """Update the medians of whole blocks."""
        iteration = step.iteration
        self.block.append((level, math.inf if step.loss is None else step.loss, step.grad_norm or 0.0))
        if iteration - self.block_from < _BLOCK:
            return False
        present = tuple(median_high(values) for values in zip(*self.block, strict=True))
        self.block, self.block_from = [], iteration
        past = self.blocks
        past.append(present)
        del past[:-_BLOCKS]
        highest = max(past)
        if highest[0] - present[0] >= _DECLINE:
            least = min(block[1] for block in past[:-1])
            usual = median_high(block[2] for block in past)
            self.healthy = present[1] < least and 0.0 < present[2] <= max(_SAME_NORM * highest[2], usual)
            self.before = max(self.before, highest[0])
            return self._open(step.at, "declining", iteration)
        if self.reason == "declining":
            self.reason = ""
            return True
        return False

    def _open(self, at: float, reason: str, onset: int) -> bool:
        if not self.reason:
            self.onset, self.since = onset, at
            self.before = max(self.before, self.highest)
        self.reason = max(self.reason, reason, key=_REASONS.index)
        return True

    def _resolve(self, iteration: int) -> None:
        """End the incident."""
        self.reason, self.before, self.worst = "", 0.0, 0.0
        self.highest = self.level or 0.0
        self.block, self.block_from, self.blocks = [], iteration, []  # no decline is reported after the fall

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fire a warning; info while the scale declines in a healthy run; critical if hardly any step succeeds or the
        scale cannot fall further.
        """
        if not self.reason:
            return CLEAR
        attempt, scale = state.attempt, state.attempt.latest.loss_scale
        span = max(_SPAN, attempt.every)
        before = 2.0**self.before if self.before else None
        severity: Severity = "critical" if self.reason == "minimum" or self.worst >= _CRITICAL else "warning"
        if self.reason == "declining" and self.healthy:
            severity = "info"
        shown = "" if scale is None else f", loss scale {scale:.6g}"
        if scale is not None and before is not None and before > scale:
            shown += f" from {before:.6g}"
        texts = {
            "skipping": f"overflow storm since iteration {self.onset}: {self.most:g} of the last {span} steps skipped, "
            f"at most 2 are normal{shown}; if it continues, go back to an earlier checkpoint and skip the data or "
            "lower the learning rate",
            "falling": f"loss scale falling since iteration {self.onset}{shown}; a loss has exploded 30 iterations "
            "after such a fall: keep an earlier checkpoint, watch grad norm and loss",
            "declining": f"loss scale sinking up to iteration {self.onset}{shown}; if gradients grow, lower the "
            "learning rate or go back to an earlier checkpoint",
            "minimum": f"loss scale at its minimum since iteration {self.onset}{shown}; the model does not learn: "
            "stop, go back to an earlier checkpoint and skip the data or lower the learning rate",
        }
        evidence = {
            "reason": self.reason,
            "skipped_iterations": self.most,
            "worst_share": round(min(1.0, self.worst), 3),
            "halvings": round(self.halvings, 2),
            "overflows_total": state.overflows_total,
            "loss_scale": scale,
            "loss_scale_before": before,
            "last_checkpoint_iteration": state.learned.checkpoints.last_iteration,
        }
        return Finding("firing", severity, texts[self.reason], stated(evidence), onset=self.onset, since=self.since)
