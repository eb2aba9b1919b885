"""What is normal now: level, spread, and the bars above which a line is abnormal."""

import math
from operator import sub

from monitor.detectors.loss_spike.memory import LOSS_SPREAD, NORM_SPREAD, LossSpikeSettings, Memory
from monitor.statistics.median import median_high as median
from monitor.statistics.median import spread

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


def is_abnormal(memory: Memory, loss: float, norm: float, settings: LossSpikeSettings) -> bool:
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


def set_bars(memory: Memory, settings: LossSpikeSettings) -> None:
    """Level, spread and bars from the lines that are known now."""
    memory.loss.keep(_WINDOW)
    memory.norm.keep(_WINDOW)
    memory.loss_record *= _DECAY
    memory.norm_record *= _DECAY
    memory.loss_bar = memory.loss_look = memory.norm_bar = memory.norm_bar_twice = math.inf
    memory.loss_level, own = _level(memory.loss.values)
    if memory.loss_level is not None:
        memory.loss_spread = max(own, LOSS_SPREAD)
        learned = max(settings.spreads * memory.loss_spread, settings.record_factor * memory.loss_record)
        memory.loss_bar = max(math.log1p(settings.loss_floor), learned)
        memory.loss_look = settings.twice * memory.loss_bar
    memory.norm_level, own = _level(memory.norm.values)
    if own == 0.0:  # a constant is not computed: no evidence
        memory.norm_level = None
    if memory.norm_level is not None:
        memory.norm_spread = max(own, NORM_SPREAD)
        learned = max(settings.spreads * memory.norm_spread, settings.record_factor * memory.norm_record)
        memory.norm_bar = max(math.log(settings.norm_floor), learned)
        memory.norm_bar_twice = max(math.log(settings.norm_floor_twice), settings.twice * learned)


def _level(values: list[float]) -> tuple[float | None, float]:
    """(what the next value should be, how far values lie apart, in standard deviations: 0 where most of them are the
    same); None where too little is known.
    """
    if len(values) < MINIMUM:
        return None, 0.0
    half, apart = _STRETCH // 2, list(map(sub, values[_LAG:], values))
    before, level = median(values[-2 * _STRETCH : -_STRETCH]), median(values[-_STRETCH:])
    # Half a stretch lies between its median and now. A fall goes on only if both ways to see it agree (a single step
    # down does not), a rise is not expected to.
    if level < before:
        level += max((level - before) / 2, min(0.0, median(values[-half:]) - median(values[-_STRETCH:-half])))
    return level, spread(apart) / _ROOT_2
