"""What is remembered of losses and grad norms, as logarithms, and the thresholds."""

import math
from operator import sub
from typing import Any

from msgspec import Struct, field

from megatron_monitor.run.steps.step import Step
from megatron_monitor.statistics.median import median_high as median
from megatron_monitor.statistics.median import spread
from megatron_monitor.units import Factor, Ratio

LOSS_SPREAD, NORM_SPREAD = 0.004, 0.05
"""Least spreads: bf16 losses take few distinct values (steps of 0.4 to 0.8 %), so a window's own may be 0."""


class LossSpikeSettings(Struct, frozen=True):
    """Thresholds, each with its reason."""

    loss_floor: Ratio = 0.08
    """A smaller jump of the loss is no spike, however quiet the run was: spikes on record begin at 10 to 18 %."""
    loss_alone: Ratio = 0.5
    """Least jump in one line without a sign in the grad norm or in the line before: a single odd batch reads 30 % high
    in runs of 2 % noise, and the next line is normal."""
    norm_floor: Factor = 12.0
    """Times the normal grad norm in a single line: a public run has one of 6.7 without any trace in the loss."""
    norm_floor_twice: Factor = 4.0
    """The same in two lines in a row, or beside a high loss: BLOOM's spike began with 3.9, 9.9, 66 times."""
    spreads: Factor = 10.0
    """Robust standard deviations in a single line: OLMo-core's 6 assume a normal distribution, tails are heavier."""
    record_factor: Factor = 2.0
    """Times the largest excess that this run has shown in health: the tail is learned, not assumed."""
    twice: Ratio = 0.6
    """Of these bars for two lines in a row of which the second is hardly lower, or for three lines in a row."""
    recovered: Ratio = 0.02
    """Within this of the normal before (or three spreads) the loss has come back."""
    patience: int = 200
    """Iterations that a spike may take to come back before people are notified: spikes on record took 30 to 500."""
    critical: Ratio = 0.5
    """Not recovered and this much above normal: everything computed since is lost work."""
    resume_lines: int = 10
    """Lines after a restart in which an excess is a bump of the resume, not a spike."""
    resume_bump: Ratio = 0.05
    """Median excess over the loss before the restart that makes a bump: optimizer state or data order was lost."""


class Trace(Struct):
    """Losses or grad norms, as logarithms in the order in which they came: at which iteration, and what is normal."""

    spread: float
    values: list[float] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    level: float | None = None
    """What the next line should read; None until enough is known."""
    record: float = 0.0
    """The largest excess in health."""
    bar: float = math.inf
    """An excess that is abnormal in a single line,"""
    lower: float = math.inf
    """and in two lines in a row."""

    def excess(self, value: float | None) -> float:
        """How far a line lies above what it should read; 0 where that is unknown."""
        return 0.0 if value is None or self.level is None else value - self.level

    def add(self, value: float, stamp: int) -> None:
        """A line in health."""
        self.record = max(self.record, self.excess(value))
        self.values.append(value)
        self.stamps.append(stamp)

    def before(self, stamp: int) -> None:
        """Forget what came at `stamp` or later: a restart went back behind it."""
        self.values = [value for value, at in zip(self.values, self.stamps, strict=True) if at < stamp]
        self.stamps = [at for at in self.stamps if at < stamp]

    def learn(self, floors: tuple[float, float], least: float, settings: LossSpikeSettings, constant: bool) -> None:
        """Level, spread and bars from the lines that are known now: no bar below its floor, no spread below `least`.
        `constant`: a figure that is always the same is not computed, and no evidence.
        """
        self.record *= _DECAY
        self.bar = self.lower = math.inf
        del self.values[:-_WINDOW], self.stamps[:-_WINDOW]
        own = spread(map(sub, self.values[_LAG:], self.values)) / _ROOT_2
        self.level = _level(self.values) if own or constant else None
        if self.level is not None:
            self.spread = max(own, least)
            learned = max(settings.spreads * self.spread, settings.record_factor * self.record)
            self.bar, self.lower = max(floors[0], learned), max(floors[1], settings.twice * learned)


class Spike(Struct):
    """An open spike; logarithms against the frozen normal."""

    onset: int
    since: float
    kind: str = "spike"
    stage: str = "spike"
    by: str = "loss"
    loss_base: float | None = None
    norm_base: float | None = None
    loss_band: float = 0.0
    norm_band: float = 0.0
    loss: float | None = None
    norm: float | None = None
    loss_peak: float = 0.0
    norm_peak: float = 0.0
    lines: int = 0
    normal_lines: int = 0
    recent: list[float] = field(default_factory=list)
    samples_before: int | None = None
    checkpoint: int | None = None


class Memory(Struct):
    """What is normal now, and the spike that is open. Logarithms."""

    attempt: int = 0
    loss: Trace = field(default_factory=lambda: Trace(LOSS_SPREAD))
    norm: Trace = field(default_factory=lambda: Trace(NORM_SPREAD))
    high: tuple[float, float, int] | None = None
    """Excesses of the line before (loss, grad norm) if one of them was above its lower bar, and so many such lines."""
    last_excess: float = 0.0
    lines: int = 0
    samples: int | None = None
    seen: tuple[int, float] | None = None
    levels: list[tuple[int, float]] = field(default_factory=list)
    resume_left: int = 0
    resume_level: float | None = None
    resume_excess: list[float] = field(default_factory=list)
    spike: Spike | None = None


# What is normal now: level, spread, and the bars above which a line is abnormal.

MINIMUM = 64  # lines before anything is judged
BARS_EVERY = 16  # lines between two looks at level, spread and bars
LEVEL_EVERY, _LEVELS = 32, 256  # lines between two marks of the level, marks kept: what a resume is compared with
CLOSED_BY = 3  # normal lines in a row that end a spike
_ROOT_2 = math.sqrt(2)
_WINDOW = 128  # lines of the present normal: what OLMo-core takes; long enough for quartiles, short enough to follow
_STRETCH = 32  # lines whose median is the level; what it lost against the stretch before is the fall
_LAG = 8  # lines between the two values of a difference: far enough that noise has forgotten, no trend in between
_DECAY = 0.992  # of the largest healthy excess, at each look: remembered for some 2,000 lines
_RAISED, _RAISED_NORM = 2.5, math.log(2.0)  # spreads of the loss before, and grad norm beside it, that support a jump
_STAYS = 0.8  # share of the line before: noise falls back by half in a line, a spike does not


def mark_level(levels: list[tuple[int, float]], iteration: int, level: float) -> None:
    """Write down the level at this iteration."""
    levels.append((iteration, level))
    if len(levels) > _LEVELS:
        del levels[::2]  # the past gets coarser, it is never forgotten


def is_news(memory: Any, step: Step) -> bool:
    """Whether the step has a loss that no other node has printed already: `memory.seen` holds the last one."""
    if not step.reported or step.loss is None or (step.iteration, step.loss) == memory.seen:
        return False
    memory.seen = (step.iteration, step.loss)
    return True


def is_abnormal(memory: Memory, loss: float, norm: float, settings: LossSpikeSettings) -> bool:
    """Whether this line is part of a spike. Remembers it for the next one."""
    if norm > memory.norm.bar:
        return True
    high_loss = loss if loss > memory.loss.lower else 0.0
    high_norm = norm if norm > memory.norm.lower else 0.0
    loss_before, norm_before, lines = memory.high or (0.0, 0.0, 0)
    memory.high = (high_loss, high_norm, lines + 1) if high_loss or high_norm else None
    if memory.high is None:
        return False
    if (high_loss or loss_before) and (high_norm or norm_before):
        return True
    if loss > memory.loss.bar:
        raised = norm > max(_RAISED_NORM, 4 * memory.norm.spread) or memory.last_excess > _RAISED * memory.loss.spread
        if raised or loss > max(math.log1p(settings.loss_alone), 2 * memory.loss.bar):
            return True
    stays = (loss_before and high_loss >= _STAYS * loss_before) or (norm_before and high_norm >= norm_before)
    return bool(stays) or lines + 1 >= CLOSED_BY


def set_bars(memory: Memory, settings: LossSpikeSettings) -> None:
    """What is normal, from the lines that are known now."""
    floor = math.log1p(settings.loss_floor)
    memory.loss.learn((floor, settings.twice * floor), LOSS_SPREAD, settings, constant=True)
    floors = math.log(settings.norm_floor), math.log(settings.norm_floor_twice)
    memory.norm.learn(floors, NORM_SPREAD, settings, constant=False)


def _level(values: list[float]) -> float | None:
    """What the next value should be; None where too little is known."""
    if len(values) < MINIMUM:
        return None
    half = _STRETCH // 2
    before, level = median(values[-2 * _STRETCH : -_STRETCH]), median(values[-_STRETCH:])
    # Half a stretch lies between its median and now. A fall goes on only if both ways to see it agree (a single step
    # down does not), a rise is not expected to.
    if level < before:
        level += max((level - before) / 2, min(0.0, median(values[-half:]) - median(values[-_STRETCH:-half])))
    return level
