"""The rule `divergence`: the loss rises and continues to rise without a spike.

Lines are grouped in blocks. The median of a block is not moved by a spike of a dozen lines. Three blocks in a row that
rise to a level well above the lowest of the last forty are a divergence. How far depends on how much the run's own
blocks differ, so that slow changes of the data are not reported.
"""

import math
from collections.abc import Sequence

from msgspec import Struct, field

from megatron_monitor.detectors.base import (
    CLEAR,
    Finding,
    Rule,
    RuleSettings,
    Severity,
    advice,
    percent,
    rollback,
)
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step
from megatron_monitor.statistics.median import median_high, spread

_RISES = 3  # blocks in a row: the losses of IDEFICS and the 104B runs rose for hours before a person noticed
_STEADY = 0.2  # ratio of the smallest to the largest rise: a change of the data is one step, a divergence continues
_STEP_NOISE = 4.0  # times the noise: a larger change between two blocks is a step
_MEDIAN_NOISE = 1.2533  # standard error of a median over that of a mean, for white noise
_MOST_ALIKE = 0.8  # maximum correlation of neighbours: more in 25 lines is the trend of the loss
_MIN_BLOCKS = 8  # blocks before the first evaluation


_RISE = 0.03  # Minimum rise over the lowest block: every long run has smaller changes of the data.
_SPREADS = 6.0  # Times the noise of the run's own blocks: with 2 % noise the median of 25 lines has an error of 1 %.
_BLOCK = 25  # Lines per block: three blocks are the time to detection, and fewer lines make the median too noisy.
_BLOCKS = 40  # Blocks among which the lowest is searched: a thousand lines, so that a slow rise adds up.
_CRITICAL = 0.1  # No run on record recovered from such a rise by itself.


Block = tuple[int, float, int | None, int | None]
"""Last iteration, median of the log loss, consumed samples, last checkpoint."""


class Rise(Struct):
    """An open divergence."""

    onset: int
    since: float
    base: float
    bar: float
    samples_before: int | None = None
    checkpoint: int | None = None


def _line_noise(losses: list[float]) -> float:
    """Return how far the noise between lines moves the median of these losses, as a ratio. Correlated neighbours
    increase it, which the differences between lines show. The trend within the lines is removed.
    """
    levels, half = [math.log(loss) for loss in losses], len(losses) // 2
    if half:
        slope = (median_high(levels[-half:]) - median_high(levels[:half])) / (len(levels) - half)
        levels = [level - slope * place for place, level in enumerate(levels)]
    noise, change = spread(levels), spread(_differences(levels))
    if noise <= 0:
        return 0.0
    alike = min(max(1 - change**2 / (2 * noise**2), 0.0), _MOST_ALIKE)
    return _MEDIAN_NOISE * noise * math.sqrt((1 + alike) / (1 - alike) / len(losses))


def _differences(values: list[float]) -> list[float]:
    return [second - first for second, first in zip(values[1:], values, strict=False)]


class Divergence(Rule):
    """The block that is being filled and the medians of the full ones."""

    name = "divergence"
    inhibited_by = ("nan_loss",)
    is_level = True

    attempt: int = 0
    current: list[float] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    """The oldest first."""
    noises: list[float] = field(default_factory=list)
    """For each of the last blocks, how far the noise between lines moves its median."""
    rise: Rise | None = None

    def on_steps(self, state: RunState, steps: Sequence[Step], _settings: RuleSettings) -> bool:
        """Collect the losses of the step source in blocks."""
        number, changed = state.attempt.number, False
        for step in steps:
            if not step.is_line:
                continue
            if self.attempt != number:
                # forget what the new attempt recomputes; the unfinished block belonged to the old attempt
                changed = changed or self.rise is not None
                self.attempt, self.current, self.rise = number, [], None
                self.blocks = [block for block in self.blocks if block[0] < step.iteration]
            loss, current = step.loss, self.current
            if loss is None or not 0 < loss < math.inf:
                continue
            current.append(loss)
            if len(current) >= _BLOCK:
                level = math.log(median_high(current))
                self.noises = [*self.noises[1 - _BLOCKS :], _line_noise(current)]
                current.clear()
                self.blocks.append((step.iteration, level, step.samples, state.learned.checkpoints.last_iteration))
                del self.blocks[:-_BLOCKS]
                changed |= self._judge(step.at)
        return changed

    def _judge(self, at: float) -> bool:
        """Evaluate a full block. Return True if the finding may have changed."""
        levels = [block[1] for block in self.blocks]
        if self.rise is not None:
            risen = levels[-1] - self.rise.base
            if risen <= self.rise.bar / 2:
                self.rise = None
            elif risen < math.log1p(_CRITICAL) and min(levels) > self.rise.base:
                self.rise.base = min(levels)  # a level that lasted for the whole memory is the new normal
            return True
        if len(levels) < _MIN_BLOCKS or levels[-1] <= levels[-2]:
            return False
        changes = _differences(levels)
        rises = changes[-_RISES:]
        if min(rises) <= _STEADY * max(rises):
            return False  # a fall among them, or a single step: other data has another level
        # Noise of a block's median: second differences ignore a smooth fall, whose slope changes all the time. A few
        # blocks may be close together by chance. The differences between their lines are a better estimate then.
        noise = max(spread(_differences(changes)) / math.sqrt(6), median_high(self.noises or [0.0]))
        bar = max(math.log1p(_RISE), _SPREADS * noise)
        lowest = min(range(len(levels)), key=levels.__getitem__)
        largest = max(changes[lowest:], default=0.0)
        step = largest if largest > _STEP_NOISE * noise else 0.0  # other data has another level
        if levels[-1] - levels[lowest] - step < bar:
            return False
        onset, base, samples, checkpoint = self.blocks[lowest]
        self.rise = Rise(onset, at, base, bar, samples, checkpoint)
        return True

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fire a warning while the loss is a little above its lowest level after three rises, critical if it is far
        above.
        """
        rise = self.rise
        if rise is None or self.attempt != state.attempt.number:
            return CLEAR
        level = self.blocks[-1][1]
        facts = rollback(state.attempt, rise.onset, rise.samples_before, rise.checkpoint)
        risen = level - rise.base
        severity: Severity = "critical" if risen > math.log1p(_CRITICAL) else "warning"
        summary = (
            f"loss rising since iteration {rise.onset}: median lm loss {math.exp(level):.4g}, lowest before "
            f"{math.exp(rise.base):.4g} ({percent(risen)}); {advice(facts)}"
        )
        evidence = {
            "median_lm_loss": float(f"{math.exp(level):.6g}"),
            "lowest_median_lm_loss": float(f"{math.exp(rise.base):.6g}"),
            "rise_ratio": round(math.expm1(risen), 4),
            "threshold_ratio": round(math.expm1(rise.bar), 4),
            **facts,
        }
        return Finding("firing", severity, summary, evidence, onset=rise.onset, since=rise.since)
