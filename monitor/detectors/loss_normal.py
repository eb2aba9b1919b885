"""What is normal for a loss and a grad norm: level, spread, and the bars above which a line is abnormal.

Loss and grad norm are judged as logarithms against the level of the last lines of the same training, whose fall is
taken along (early in a training the loss falls by more in a hundred lines than a spike is high). A line is abnormal
that exceeds a floor, many spreads, and what the run has shown before by far: loss noise has heavy tails that no number
of standard deviations covers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import sub

from msgspec import Struct

from monitor.detectors.spike import Spike
from monitor.detectors.window import Trace, median, spread
from monitor.run.units import Factor, Ratio

_ROOT_2 = math.sqrt(2)
WINDOW = 128  # lines of the present normal: what OLMo-core takes; long enough for quartiles, short enough to follow
_STRETCH = 32  # lines whose median is the level; what it lost against the stretch before is the fall
_LAG = 8  # lines between the two values of a difference: far enough that noise has forgotten, no trend in between
MINIMUM = 64  # lines before anything is judged
DECAY = 0.992  # of the largest healthy excess, at each look: remembered for some 2,000 lines
BARS_EVERY = 16  # lines between two looks at level, spread and bars
LEVEL_EVERY, _LEVELS = 32, 256  # lines between two marks of the level, marks kept: what a resume is compared with
LOSS_SPREAD, NORM_SPREAD = 0.004, 0.05
"""Least spreads: bf16 losses take few distinct values (steps of 0.4 to 0.8 %), so a window's own may be 0."""
CLOSED_BY = 3  # normal lines in a row that end a spike
_RAISED, _RAISED_NORM = 2.5, math.log(2.0)  # spreads of the loss before, and grad norm beside it, that support a jump
_STAYS = 0.8  # share of the line before: noise falls back by half in a line, a spike does not


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
    """Robust standard deviations in a single line: OLMo-core's 6 assume a normal distribution, batches are
    heavier-tailed."""
    record_factor: Factor = 2.0
    """Times the largest excess that this run has shown in health: the tail is learned, not assumed."""
    twice: Ratio = 0.6
    """Of these bars for two lines in a row of which the second is hardly lower, or for three lines in a row."""
    recovered: Ratio = 0.02
    """Within this of the normal before (or three spreads) the loss has come back."""
    patience: int = 200
    """Iterations that a spike may take to come back before people are told: spikes on record took 30 to 500."""
    critical: Ratio = 0.5
    """Not recovered and this much above normal: everything computed since is lost work."""
    resume_lines: int = 10
    """Lines after a restart in which an excess is a bump of the resume, not a spike."""
    resume_bump: Ratio = 0.05
    """Median excess over the loss before the restart that makes a bump: optimizer state or data order was lost."""


@dataclass(slots=True)
class SpikeMemory:
    """What is normal now, and the spike that is open."""

    attempt: int = 0
    loss: Trace = field(default_factory=Trace)
    norm: Trace = field(default_factory=Trace)
    loss_level: float | None = None
    """What the next line should read; None until enough is known."""
    norm_level: float | None = None
    loss_spread: float = LOSS_SPREAD
    norm_spread: float = NORM_SPREAD
    loss_record: float = 0.0
    norm_record: float = 0.0
    loss_bar: float = math.inf
    norm_bar: float = math.inf
    norm_bar_twice: float = math.inf
    loss_look: float = math.inf
    """The lower bars, for two lines in a row."""
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


def learn(
    memory: SpikeMemory,
    iteration: int,
    samples: int | None,
    loss: float | None,
    norm: float | None,
    settings: LossSpikeSettings,
) -> bool:
    """Take in a line while no spike is open. True if it is abnormal: then nothing is learned from it."""
    loss_excess = loss - memory.loss_level if loss is not None and memory.loss_level is not None else 0.0
    norm_excess = norm - memory.norm_level if norm is not None and memory.norm_level is not None else 0.0
    high = loss_excess > memory.loss_look or norm_excess > memory.norm_bar_twice or memory.high is not None
    if high and _abnormal(memory, loss_excess, norm_excess, settings):
        return True
    memory.last_excess = loss_excess
    if loss is not None:
        memory.loss.values.append(loss)
        memory.loss.stamps.append(iteration)
        if loss_excess > memory.loss_record:
            memory.loss_record = loss_excess
    if norm is not None:
        memory.norm.values.append(norm)
        memory.norm.stamps.append(iteration)
        if norm_excess > memory.norm_record:
            memory.norm_record = norm_excess
    memory.samples = samples
    memory.lines += 1
    if memory.lines % BARS_EVERY == 0:
        set_bars(memory, settings)
        if memory.lines % LEVEL_EVERY == 0 and len(memory.loss.values) >= LEVEL_EVERY:
            mark(memory.levels, iteration, median(memory.loss.values[-LEVEL_EVERY:]))
    return False


def mark(levels: list[tuple[int, float]], iteration: int, level: float) -> None:
    """Write down the level at this iteration."""
    levels.append((iteration, level))
    if len(levels) > _LEVELS:
        del levels[::2]  # the past gets coarser, it is never forgotten


def _abnormal(memory: SpikeMemory, loss: float, norm: float, settings: LossSpikeSettings) -> bool:
    """Whether this line is part of a spike. Remembers it for the next one."""
    if norm > memory.norm_bar:
        return True
    high_loss = loss if loss > memory.loss_look else 0.0
    high_norm = norm if norm > memory.norm_bar_twice else 0.0
    loss_before, norm_before, lines = memory.high or (0.0, 0.0, 0)
    memory.high = (high_loss, high_norm, lines + 1) if high_loss or high_norm else None
    if memory.high is None:
        return False
    if (high_loss or loss_before) and (high_norm or norm_before):
        return True
    if loss > memory.loss_bar:
        raised = norm > max(_RAISED_NORM, 4 * memory.norm_spread) or memory.last_excess > _RAISED * memory.loss_spread
        if raised or loss > max(math.log1p(settings.loss_alone), 2 * memory.loss_bar):
            return True
    stays = (loss_before and high_loss >= _STAYS * loss_before) or (norm_before and high_norm >= norm_before)
    return bool(stays) or lines + 1 >= CLOSED_BY


def set_bars(memory: SpikeMemory, settings: LossSpikeSettings) -> None:
    """Level, spread and bars from the lines that are known now."""
    memory.loss.keep(WINDOW)
    memory.norm.keep(WINDOW)
    memory.loss_record *= DECAY
    memory.norm_record *= DECAY
    memory.loss_bar = memory.loss_look = memory.norm_bar = memory.norm_bar_twice = math.inf
    memory.loss_level, own = _level(memory.loss.values)
    if memory.loss_level is not None:
        memory.loss_spread = max(own, LOSS_SPREAD)
        memory.loss_bar, memory.loss_look = loss_bars(memory.loss_spread, memory.loss_record, settings)
    memory.norm_level, own = _level(memory.norm.values)
    if own == 0.0:  # a constant is not computed: no evidence
        memory.norm_level = None
    if memory.norm_level is not None:
        memory.norm_spread = max(own, NORM_SPREAD)
        memory.norm_bar, memory.norm_bar_twice = norm_bars(memory.norm_spread, memory.norm_record, settings)


def loss_bars(spread: float, record: float, settings: LossSpikeSettings) -> tuple[float, float]:
    """(excess of the loss above which a line is abnormal, above which two lines are)."""
    bar = max(math.log1p(settings.loss_floor), settings.spreads * spread, settings.record_factor * record)
    return bar, settings.twice * bar


def norm_bars(spread: float, record: float, settings: LossSpikeSettings) -> tuple[float, float]:
    """The same of the grad norm."""
    learned = max(settings.spreads * spread, settings.record_factor * record)
    return (
        max(math.log(settings.norm_floor), learned),
        max(math.log(settings.norm_floor_twice), settings.twice * learned),
    )


def _level(values: list[float]) -> tuple[float | None, float]:
    """(what the next value should be, spread around it); None where too little is known."""
    return (level_of(values), spread_of(values)) if len(values) >= MINIMUM else (None, 0.0)


def level_of(values: list[float]) -> float:
    """What the next value should be, from the last of them, `MINIMUM` at least."""
    half = _STRETCH // 2
    return level_after(
        median(values[-2 * _STRETCH : -_STRETCH]),
        median(values[-_STRETCH:]),
        median(values[-_STRETCH:-half]),
        median(values[-half:]),
    )


def level_after(before: float, level: float, earlier: float, later: float) -> float:
    """The same from the medians of two stretches, and of the halves of the second one."""
    # Half a stretch lies between its median and now. A fall goes on only if both ways to see it agree (a single step
    # down does not), a rise is not expected to.
    return level + max(min(0.0, (level - before) / 2), min(0.0, later - earlier))


def spread_of(values: list[float]) -> float:
    """How far the values of a window lie apart, in standard deviations: 0 where most of them are the same."""
    return spread(list(map(sub, values[_LAG:], values))) / _ROOT_2
