"""The rule `loss_scale_collapse`: the scale halves again and again, sinks over thousands of iterations, or is at its
minimum.

A healthy scale is halved once and doubled after a window of clean steps (1000 by default). A fall is counted in
halvings, from overflow lines or from iteration lines, whichever shows more. A scale that never moves (bf16 prints none
or 1.0, a static scale is constant) is not evidence. -1 is not a scale.
"""

import math
from collections.abc import Sequence

from msgspec import field

from megatron_monitor.detectors.base import CLEAR, AttemptRule, Finding, RuleSettings, Severity, stated
from megatron_monitor.parsers.events import OverflowSkipped
from megatron_monitor.parsers.programs import program_of
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step
from megatron_monitor.statistics.median import median_high
from megatron_monitor.statistics.scale_search import ScaleSearch

_BLOCKS = 16  # remembered blocks of a slow decline
_DYNAMIC = 16.0  # an attempt that never had this scale did not fall to its minimum
_SHORT_SPAN, _LONG_SPAN = 10, 50  # iterations within which halvings are counted
_ORDER = ("", "declining", "falling", "minimum")
"""Reasons, the worst last."""


# Within 10 iterations: a healthy scale halves once, with hysteresis at the second overflow. GLM-130B's fell like this
# 30 iterations before its loss exploded.
_HALVINGS = 3
# Within 50 iterations: at one overflow per 1000 iterations four meet by chance once in millions.
_HALVINGS_SLOW = 4
_MINIMUM = 1.0  # Smallest scale of Megatron and DeepSpeed by default. At twice this value one step is left.
# Iterations without a further fall that end the incident. Doubling again takes thousands.
_ITERATIONS_TO_RESOLVE = 100
_BLOCK = 500  # Iterations whose median shows a slow decline: half the window after which a scale doubles.
_DECLINE = 3.0  # Halvings between such medians: a 104B run sank 8-fold over 2,300 iterations before it broke.
_SAME_NORM = 1.5  # Times a former grad norm up to which gradients have not grown.


def _floor(level: float, minimum: float) -> bool:
    return level <= math.log2(2 * minimum)


class LossScaleCollapse(AttemptRule):
    """Falls of the last iterations and medians of the past. Scales are logarithms to base 2."""

    name = "loss_scale_collapse"
    listens = (OverflowSkipped,)
    is_level = True

    search: ScaleSearch = field(default_factory=ScaleSearch)
    line_scale: float | None = None
    counted: float = 0.0
    """Halvings in overflow lines since the last iteration line."""
    pair: tuple[float, float] | None = None
    highest: float = 0.0
    """Largest scale of this attempt since its search ended."""
    falls: list[tuple[int, float]] = field(default_factory=list)
    """(iteration, halvings)."""
    block: list[tuple[float, float, float]] = field(default_factory=list)
    """(scale, loss, grad norm) of each step of the present block."""
    block_from: int = 0
    blocks: list[tuple[float, ...]] = field(default_factory=list)
    """Their medians in the past blocks."""
    healthy: bool = False
    """The loss fell while the scale declined, and the grad norm did not grow."""
    reason: str = ""
    onset: int = 0
    since: float = 0.0
    before: float = 0.0
    last_fall: int = 0
    handed_on = ("blocks",)
    """A new attempt starts a new scaler. Earlier scales are remembered."""

    def on_steps(self, state: RunState, steps: Sequence[Step], _settings: RuleSettings) -> bool:
        """Read the scale of each step."""
        attempt = state.attempt
        lines, first, changed = attempt.whole_lines, attempt.first_iteration, False
        minimum = program_of(attempt.format).minimum_loss_scale or _MINIMUM
        for step in steps:
            scale = step.loss_scale
            if scale is None or scale <= 0 or not step.counted or (scale == 1.0 and not self.line_scale):
                continue  # bf16 prints none or 1.0: there is no scale
            changed |= self._seen(step, math.log2(scale), lines, first == step.iteration, minimum)
        return changed

    def _seen(
        self, step: Step, level: float, lines: bool, first: bool, minimum: float,
    ) -> bool:  # fmt: skip
        """Process a step at which the scale may have moved. `lines`: lines of the loop, which show each level."""
        known, iteration, fall, changed = self.line_scale, step.iteration, 0.0, False
        if known is not None and lines:
            fall = max(0.0, known - level - self.counted)
            if level > known:
                self.pair = None
        self.line_scale, self.counted = level, 0.0
        searching = self.search.is_searching(step.finished, first, fall > 0)
        self.highest = level if searching else max(self.highest, level)
        # the minimum is reported once, and again after the scale has moved
        news = level != known or not self._worse("minimum")
        if news and _floor(level, minimum) and max(self.highest, level) >= math.log2(_DYNAMIC):
            changed = self._open(step.at, "minimum", iteration)
        if searching:
            self.block_from = iteration
            return changed
        changed |= self._slow(step, level)
        if fall > 0:
            changed |= self._fallen(step.at, iteration, step.interval, fall)
        if self.reason:
            changed |= self._calmed(iteration, level, minimum)
        return changed

    def on_event(self, state: RunState, event: OverflowSkipped, _settings: RuleSettings) -> bool:
        """Count each overflow when it is reported, before the step's own line."""
        attempt = state.attempt
        iteration = attempt.latest.iteration or 0
        at = attempt.step_timer.at if attempt.step_timer.at is not None else state.updated_at
        if not event.loss_scale or not event.new_loss_scale:
            return False
        pair = (event.loss_scale, event.new_loss_scale)
        if pair == self.pair or min(pair) <= 0:
            return False  # the same reduction again, or another engine's copy
        self.pair = pair
        fall = math.log2(event.loss_scale) - math.log2(event.new_loss_scale)
        self.counted += max(0.0, fall)
        first_line = attempt.first_iteration == attempt.last_iteration
        if self.search.is_searching(attempt.iterations, first_line, True) or fall <= 0:
            return False
        return self._fallen(at, iteration, attempt.log_interval or 1, fall)

    def _fallen(self, at: float, iteration: int, every: int, fall: float) -> bool:
        self.falls.append((iteration, fall))
        self.falls = [item for item in self.falls if item[0] > iteration - _LONG_SPAN]
        self.last_fall = iteration
        recent = sum(halvings for when, halvings in self.falls if when > iteration - max(_SHORT_SPAN, every))
        lately = sum(halvings for _, halvings in self.falls)
        # one line of many iterations shows their net fall
        needed = _HALVINGS + (every > _SHORT_SPAN) + (every > _LONG_SPAN)
        if recent >= needed or lately >= _HALVINGS_SLOW + (every > _LONG_SPAN):
            return self._open(at, "falling", self.falls[0][0])
        return bool(self.reason)

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
            self.healthy = present[1] < least and 0.0 < present[2] <= _SAME_NORM * highest[2]
            self.before = max(self.before, highest[0])
            return self._open(step.at, "declining", iteration)
        if self.reason == "declining":
            self.reason = ""
            return True
        return False

    def _worse(self, reason: str) -> bool:
        """Return True if this reason or a worse one is reported already."""
        return _ORDER.index(reason) <= _ORDER.index(self.reason)

    def _open(self, at: float, reason: str, onset: int) -> bool:
        if not self.reason:
            self.onset, self.since = onset, at
            self.before = max(self.before, self.highest)
        if not self._worse(reason):
            self.reason = reason
        return True

    def _calmed(self, iteration: int, level: float, minimum: float) -> bool:
        """Return True if this step ended the incident."""
        if self.reason == "declining" or iteration - self.last_fall < _ITERATIONS_TO_RESOLVE or _floor(level, minimum):
            return False
        self.reason, self.falls, self.before = "", [], 0.0
        self.highest = level
        self.block, self.block_from, self.blocks = [], iteration, []  # no decline is reported after the fall
        return True

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fire a warning while the scale falls, info while it declines in a healthy run, critical when it cannot fall
        further.
        """
        if not self.reason:
            return CLEAR
        scale = state.attempt.latest.loss_scale or 0.0
        before = 2.0**self.before if self.before else None
        was = f" from {before:.6g}" if before is not None and before > scale else ""
        severity: Severity = "critical" if self.reason == "minimum" else "warning"
        if self.reason == "declining" and self.healthy:
            severity = "info"
        texts = {
            "falling": f"falling since iteration {self.onset}: {scale:.6g} now{was}; a loss has exploded "
            "30 iterations after such a fall: keep an earlier checkpoint, watch grad norm and loss",
            "declining": f"sinking up to iteration {self.onset}: {scale:.6g} now{was}; if gradients "
            "grow, lower the learning rate or go back to an earlier checkpoint",
            "minimum": f"at its minimum since iteration {self.onset}: {scale:.6g} now{was}; the model does not "
            "learn: stop, go back to an earlier checkpoint and skip the data or lower the learning rate",
        }
        evidence = {
            "reason": self.reason,
            "loss_scale": scale,
            "halvings": round(sum(halvings for _, halvings in self.falls), 2),
            "last_fall_iteration": self.last_fall,
            "loss_scale_before": before,
            "last_checkpoint_iteration": state.learned.checkpoints.last_iteration,
        }
        summary = f"loss scale {texts[self.reason]}"
        return Finding("firing", severity, summary, stated(evidence), onset=self.onset, since=self.since)
