"""Decides whether the level has shifted: up, down, back, or slowly, and which shifts a run has by itself."""

import math

from megatron_monitor.detectors.slowdown.memory import SUM_LIMIT, Shift, SlowdownMemory, SlowdownSettings
from megatron_monitor.run.steps.step import Step
from megatron_monitor.statistics import levels
from megatron_monitor.statistics.levels import Level, level_of
from megatron_monitor.statistics.median import median_high

_DRIFT = 0.04  # drift: the median of 50 iterations over the best one; less is lost in the noise of long runs
# Smaller shifts and drifts are not reported if the arguments let the sequence grow and no line reports by how much
# (random-LTD): all of that growth cost 25 % in a real run.
_GROWING = 0.25
# Seconds of an attempt's iterations in which GPUs reach their lasting clocks: on one cluster of MLPerf v5.1 each of 20
# runs became 2 to 7 % slower within its first two minutes, for good. A smaller shift than _SETTLED in this time is the
# level.
_SETTLING = 120.0
_SETTLED = 0.1  # a shift that neither warm GPUs nor a preceding evaluation explain: none of those runs slowed by 10 %
_SIMILAR_THREE = 5.0  # spread of three residuals, in scales: steps are within it, hiccups of 10 and 20 % are not
_SIMILAR = 0.15  # the same for four and more without the farthest
_LAST_SLOW = 3  # last iterations that must be slow for that; any of them may begin the return
_ITERATIONS_TO_RESOLVE = 6  # iterations near the old level that resolve an incident
_RETURNED = 4  # of them with which the old level continues
_LASTING = 12  # iterations, all but two of them slow, that are reported however uneven they are
_SAME_SHIFT = 100  # steps after a shift in which a further one is the same problem: clocks fall step by step
_LARGE_SHIFT = 3.0  # scales; a larger shift is also compared with the slow stretches of the level
_STRETCH = 2  # a stretch of so many slow steps is a hiccup, which the conditions of a shift cover
_CHANCE = 1e-4  # probability of a stretch that long if slow steps come independently
# Maximum lines per flap. A shift that ended soon is a flap. A further one must last as long, after two flaps four times
# and after three nine times as long.
_FLAP = 32
_FLAPS = 8  # remembered flaps
_SLOW_DIVISOR = 4  # of the lines that end the slowdown of a run with flaps, one in so many may still be slow
UNITS = 1.5  # printed units that a shift must exceed, or else it must last:
_UNIT_LASTING = 12  # so many lines at the next printed value, with none before
_NORMAL = 200  # lines: a slower level that lasted so long is not a flap, and the most that end a slowdown


def watch(memory: SlowdownMemory, track: Level, step: Step, grows: bool, settings: SlowdownSettings) -> bool:
    """Compare a step with the level: shifted up, down, back, or drifted. A faster level becomes the normal one when
    most of the last steps show it, so that a return from it before is not a slowdown.
    """
    shift, changed = memory.shift, False
    if shift is not None:
        changed = _follow(memory, track, shift, step, settings)
        if memory.shift is None:
            return True
    threshold = _GROWING if grows else settings.threshold
    size = shifted(track, needed(track.scale, threshold), threshold)
    if shift is None and (size is None or size < 0):
        return not grows and _watch_drift(memory, track, step)  # nearly all calls end here
    if not size or (size > 0 and _is_usual(memory, track, size)):
        return changed
    if shift is None and 0 < size < math.log1p(_SETTLED) and _settles(track, step):
        memory.tracks[memory.key] = level_of(track.values[-_since(track)[1] :], track.scale, track.unit)
        return changed
    _take_shift(memory, track, step, size, settings)
    return True


def _follow(memory: SlowdownMemory, track: Level, shift: Shift, step: Step, settings: SlowdownSettings) -> bool:
    """Add a step to the shift, and end the shift if the level has returned. Return True if it is notified from now."""
    stood, shift.lines = shift.stood, shift.lines + 1
    shift.stood = stood or _stands(memory, track, shift, step, settings)
    if not shift.lines % levels.DRIFT:
        level = median_high(track.values[-levels.DRIFT :])  # during the return it stays the same
        shift.level = level if level - shift.base > math.log1p(settings.threshold) else shift.level
    if shift.lines >= _ITERATIONS_TO_RESOLVE and _is_back(memory, track, shift, settings):
        _return(memory, track, shift)
    return shift.stood is not stood


def _stands(memory: SlowdownMemory, track: Level, shift: Shift, step: Step, settings: SlowdownSettings) -> bool:
    """Return True if iterations have been slow long enough to be notified, and still are."""
    seconds = shift.lines * memory.stretch * step.interval * math.exp(shift.level)
    if seconds < settings.stands_for(math.exp(shift.level - shift.base)):
        return False
    return min(track.values[-_LAST_SLOW:]) - shift.base > (shift.level - shift.base) / 2


def _watch_drift(memory: SlowdownMemory, track: Level, step: Step) -> bool:
    """Compare the median of the last steps with the best one of the run."""
    drift = track.drifted()
    if drift is None or track.best is None:
        return False
    limit = max(math.log1p(_DRIFT), 3 * track.scale, UNITS * (track.unit or 0.0))
    if drift <= limit:
        return False
    if memory.flaps:  # the level of a run with flaps has drifted when nearly all steps of a longer time are slow
        last = track.values[-min(_NORMAL, levels.DRIFT << len(memory.flaps)) :]
        if sum(x - track.best <= drift / 2 for x in last) > len(last) // _SLOW_DIVISOR:
            return False
    memory.shift = Shift(step.iteration, step.at, track.best, track.best + drift, "drift")
    return True


def _is_back(memory: SlowdownMemory, track: Level, shift: Shift, settings: SlowdownSettings) -> bool:
    """Return True if the last steps are at the old level: nearer to it than the threshold and than half the shift. A
    run with flaps must stay there longer each time.
    """
    scale = shift.before.scale if shift.before is not None else track.scale
    reach = max(0.8 * math.log1p(settings.threshold), scale, (track.unit or 0.0))
    half = (shift.level - shift.base) / 2
    if track.values[-1] - shift.base >= min(half, reach):
        return False  # as nearly all steps of a slowdown
    count = max(_ITERATIONS_TO_RESOLVE, needed(track.scale, settings.threshold))
    if shift.reason == "drift":
        count = levels.DRIFT
    count = min(_NORMAL, count << len(memory.flaps))
    if shift.lines < count or len(track.values) < count:
        return False
    last = track.values[-count:]
    if memory.flaps and sum(x - shift.base > half for x in last) > count // _SLOW_DIVISOR:
        return False
    return median_high(last) - shift.base < min(half, reach)


def needed(scale: float, threshold: float) -> int:
    """Return the number of residuals whose median separates `threshold` from noise: its error falls with the root of
    their number.
    """
    return min(levels.RECENT, max(5, math.ceil((2.5 * scale / threshold) ** 2)))


def shifted(track: Level, count: int, threshold: float) -> float | None:
    """Return the size of a certain shift in logarithms; 0: it may have shifted up. None: nothing shows a shift."""
    last, scale = sorted(track.recent(3)), track.scale
    up, far = track.up >= SUM_LIMIT, len(last) == 3 and last[0] > max(4 * threshold, 6 * scale)
    # a large step needs no sum: three similar ones far beyond noise are enough
    if far and last[2] - last[0] <= min(_SIMILAR_THREE * scale, last[1] / 4):
        return last[1]
    middle = track.confirmed(count) if up or track.down >= SUM_LIMIT else None
    if middle is not None and abs(middle) >= max(math.log1p(threshold), scale) and (middle > 0) == up:
        recent = track.recent()
        lasting = sum(residual / middle > 0.5 for residual in recent[-_LASTING:]) >= _LASTING - 2
        if lasting or _alike(recent[-count:], middle, scale):
            return middle
    return 0.0 if up or far else None


def _alike(residuals: list[float], middle: float, scale: float) -> bool:
    """Return True if the residuals are close together, as at a new level. Hiccups in a burst differ from each other."""
    near = sorted(residuals, key=lambda residual: abs(residual - middle))[:-1]
    return max(near) - min(near) <= max(4 * scale, _SIMILAR * abs(middle))


def _is_usual(memory: SlowdownMemory, track: Level, size: float) -> bool:
    """Return True if a stretch of steps slower by `size` is usual for this run: it has had such stretches, it left such
    a level soon, or it is one printed unit.
    """
    lasting, longest, share = track.slow_stretches(size / 2)
    if size < UNITS * (track.unit or 0.0) and size < UNITS * track.see_unit(levels.RECENT):
        return longest > 0 or lasting < _UNIT_LASTING
    if (
        size > _LARGE_SHIFT * track.scale and share
    ):  # the scale does not describe a tail: its own share and stretches do
        rare = lasting * math.log(share) <= math.log(_CHANCE)
        if not rare or (longest > _STRETCH and lasting <= longest):
            return True
    flaps = [lines for known, lines in memory.flaps if known > size / 2]
    return bool(flaps) and lasting < min(_FLAP * len(flaps), max(flaps) * len(flaps) ** 2)


def _settles(track: Level, step: Step) -> bool:
    """Return True if the attempt's iterations have taken less time than its GPUs may need to settle."""
    return track.value is not None and step.finished * math.exp(track.value) < _SETTLING


def _since(track: Level, up: bool = True) -> tuple[int | None, int]:
    """Return (iteration at which the shift began, number of values since then, as many as a level needs)."""
    onset, begun = (track.up_since, track.up_from) if up else (track.down_since, track.down_from)
    return onset, max(3, min(levels.RECENT, track.seen - begun + 1 if onset is not None else 0))


def _take_shift(memory: SlowdownMemory, track: Level, step: Step, size: float, settings: SlowdownSettings) -> None:
    """Begin or enlarge the incident of a new level, and learn the level from the values after the onset."""
    assert track.value is not None
    onset, since = _since(track, size > 0)
    onset = step.iteration if onset is None else onset
    level, shift = track.value + size, memory.shift
    new = Shift(onset, step.at, track.value, level, "shift", before=track.before(since))
    if size > 0:
        new.lines = since
        if shift is None:
            memory.shift, new.stood = new, _stands(memory, track, new, step, settings)
        elif track.seen <= _SAME_SHIFT or level - shift.base < 2 * (shift.level - shift.base):
            shift.level = level  # the same problem, still growing
        else:
            new.base, new.before, new.stood = shift.base, shift.before, shift.stood
            memory.shift = new
    elif shift is not None and level - shift.base > math.log1p(settings.threshold):
        # not yet back: it continues with a smaller figure
        shift.level = level
    memory.tracks[memory.key] = level_of(track.values[-since:], track.scale, track.unit)


def _return(memory: SlowdownMemory, track: Level, shift: Shift) -> None:
    """End the shift, because the times are back at the old level, which continues with the last values."""
    memory.shift = None
    if shift.lines < _NORMAL:
        memory.flaps.append((shift.level - shift.base, shift.lines))
        del memory.flaps[:-_FLAPS]
    if shift.reason != "drift":
        last, level = track.values[-_RETURNED:], shift.before
        if level is None:
            level = level_of(last, track.scale, track.unit)
            level.value = shift.base
        else:
            level.values += last
            level.seen += len(last)
        memory.tracks[memory.key] = level
