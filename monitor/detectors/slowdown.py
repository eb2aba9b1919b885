"""Slowdown: iterations take longer than they did, by a few percent, and go on doing so.

The one slow node on record cost 5.6 % (docs/incident-record.md, "Slowdowns", S1): rules of 10 % never see it. Time is
compared at the same batch size and sequence length only (a ramp-up is legal), evaluation and saving are taken out
before (step_seconds), the first iterations of a launch are left out. One incident a level shift: the new level is
learned, a further shift is a further incident, the way back resolves it. After a restart the new launch is compared
with those before.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from monitor.detectors.base import Detector, Verdict, duration, percent
from monitor.run.breakdown import saves, words
from monitor.run.breakdown.account import Timed
from monitor.run.breakdown.profile import Profile
from monitor.run.breakdown.saves import SlowSaves
from monitor.run.breakdown.window import Window
from monitor.run.derived import batch_size
from monitor.run.nodes import nodes_of
from monitor.run.state import RunState
from monitor.run.step import Step
from monitor.run.units import Ratio, Seconds
from monitor.statistics import levels
from monitor.statistics.levels import Level, level_of
from monitor.statistics.median import deviation, median_high
from parsers.formats.gpu import CLOCK

NAME = "slowdown"
_ALIKE_THREE = 5.0  # spread of three residuals, in scales: steps keep within it, hiccups of 10 and 20 % do not
_ALIKE = 0.15  # the same for four and more, the farthest left out
_BACK = 6  # iterations near the old level that resolve an incident
_LASTING = 12  # iterations, all but two of them slow, that are reported however uneven they are
_SAME_SHIFT = 100  # steps after a shift in which a further one is the same trouble: clocks fall step by step
_FULL = 1.5  # the sums stop at so many limits
_TRACKS = 6  # batch sizes remembered in a launch
_SEGMENTS = 40  # launches remembered
_NODESNAMED = 8
_EXPLAINED = 0.6  # of a difference: what the clocks make at least to be its cause; memory and network keep their pace
_HEAVY = 3.0  # scales: a larger shift is held against the slow stretches that the level has shown, not only its scale
_STRETCH = 2  # a stretch of so many slow steps is a hiccup, which the rules of a shift know already
_CHANCE = 1e-4  # of a stretch that long, if slow steps come one by one
_LONG = 96  # lines: a slow stretch of so many is told whatever was before
_FLAP = 32  # a shift that was left soon is a flap: a further one must last as long, after two of them four times as
# long, after three nine times, and never longer than so many lines a flap
_FLAPS = 8  # flaps remembered
_EVALUATED = 8  # lines behind an evaluation: a shift that begins in them
_RECOVERS = 48  # must last as long. In 20 runs the first 20 to 25 steps behind an evaluation took 2 to 10 % longer
_CALM = 4  # of the lines that end the slowdown of a run that has flapped, one in so many may still be slow
_UNITS = 1.5  # printed units that a shift must exceed, or else be beyond doubt:
OVER_NORMAL = (0.9, 0.95, 0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03, 1.05, 1.075, 1.1, 1.15, 1.25, 1.5, 2.0, 4.0)
"""Times over the normal one that the distribution parts: one slow node of many is in the third digit."""
_UNIT_LASTING = 12  # so many lines at the next printed value, where none had been before
_FASTER_SHOWN = 50  # iterations for which "faster" is shown
_NORMAL = 200  # lines after which a faster level is the normal one: before, the way back from it is no slowdown


class SlowdownSettings(Struct, frozen=True):
    """Thresholds, each with its reason."""

    threshold: Ratio = 0.02
    """Smaller shifts are not reported: runs of the same job differ by under 1 %, one slow GPU of 384 cost 5.6 %."""
    sum_limit: float = 11.0
    """h of the CUSUM, in scales: at 2 % noise under 1 false alarm in 10,000 iterations."""
    warm_up: int = 3
    """First iterations of a launch that say nothing: compilation, caches; up to 35 % slow in the record."""
    drift: Ratio = 0.04
    """Creeping: the median of 50 iterations over the best one. Less is lost in the noise of long runs."""
    growing: Ratio = 0.25
    """Smaller shifts are not reported, and no drift, where the arguments let the sequence grow and no line tells by how
    much (random-LTD): all of that growth cost 25 % in a real run.
    """
    between_launches: Ratio = 0.04
    """A launch against the launches before: another allocation of nodes differs by more than iterations do."""
    settling: Seconds = 120.0
    """Of a launch's iterations, in which GPUs reach their lasting clocks: on one cluster of MLPerf v5.1 each of 20 runs
    became 2 to 7 % slower within its first two minutes, for good. A smaller shift in them than `settled` is the level.
    """
    settled: Ratio = 0.1
    """What neither warm GPUs nor an evaluation just before explain: none of those runs became slower by 10 %."""
    critical: Ratio = 0.25
    """From here on a quarter of the machine is wasted: somebody should look now."""


class Shift(Struct):
    """A change of level that stands. `base` and `level` are logarithms of seconds per iteration."""

    onset: int
    at: float
    base: float
    level: float
    reason: str
    reported_at: int
    unsure: bool = False
    """A new launch has not shown its level yet."""
    before: Level | None = None
    """The level as it was before the shift, to go on with after it."""
    lines: int = 0
    """Lines since its onset, or since a drift was seen."""
    over: bool = False
    """Of a faster level: no longer shown."""


class Flap(Struct):
    """A slower level that was left again soon: what this run does by itself."""

    size: float
    lines: int


class Segment(Struct):
    """One launch at one batch size: what it took, on which nodes."""

    key: str
    attempt: int
    first_iteration: int
    level: float
    nodes: list[str] = field(default_factory=list)
    launch_blocking: str | None = None
    profile: Profile | None = None
    """Where its time went, by the log's timers."""
    gpu_clock: str | None = None
    """MHz that the job locked its GPUs to."""


class Memory(Struct):
    """What is remembered of a run."""

    attempt: int = 0
    steps: int = 0
    tracks: dict[str, Level] = field(default_factory=dict)
    key: str = ""
    sizes: tuple[int | None, int | None] | None = None
    """Batch size and sequence length of the last step; `key` is made of them."""
    shift: Shift | None = None
    faster: Shift | None = None
    segments: list[Segment] = field(default_factory=list)
    flaps: list[Flap] = field(default_factory=list)
    reference: float | None = None
    """Logarithm of the seconds per iteration of the present level; None while unknown."""
    over: list[int] = field(default_factory=lambda: [0] * (len(OVER_NORMAL) + 1))
    """Iterations by their time over the normal one, all launches; the last of those beyond all bounds."""
    over_sum: float = 0.0
    untimed: int | None = None
    """The iteration that came without a time; DeepSpeed's engine prints it on the step's next line."""
    window: Window = field(default_factory=Window)
    saves_seen: int = 0
    """Saves that were looked at,"""
    slow_saves: SlowSaves | None = None
    """... and whether they take longer than they did."""


def _layout_of(state: RunState, step: Step) -> str:
    """What must be equal for two launches to be compared: model, layout over the GPUs, batch size, sequence length."""
    top = state.topology
    sizes = (
        top.layers, top.hidden_size, top.world_size,
        top.tensor_parallel_size, top.pipeline_parallel_size, top.micro_batch_size,
        step.batch_size or top.global_batch_size, step.sequence_length or top.sequence_length,
    )  # fmt: skip
    return "/".join("?" if size is None else str(size) for size in sizes)


def update(state: RunState, memory: Memory, steps: Sequence[Step], settings: SlowdownSettings) -> bool:
    """Take the steps' pure times; True if the verdict may have changed."""
    if memory.attempt != state.attempt.number:
        if not any(step.counted for step in steps):
            return False
        memory.attempt, memory.steps, memory.tracks, memory.key = state.attempt.number, 0, {}, ""
        memory.sizes, memory.faster, memory.reference = None, None, None
        memory.window.restart()
        if memory.shift is not None:
            memory.shift.unsure = True
    changed, begin = False, 0
    if memory.saves_seen != state.checkpoints.saves:  # a save ends a batch: these are the steps after it
        memory.saves_seen, before = state.checkpoints.saves, memory.slow_saves
        seconds = None if memory.reference is None else math.exp(memory.reference)
        memory.slow_saves = saves.watch(before, state.checkpoints.took, seconds, steps[0].at, settings.threshold)
        changed = memory.slow_saves is not before
    for place, step in enumerate(steps):
        if step.timed is not None and place > begin:
            changed = _follow(state, memory, steps[begin:place], settings) or changed
            begin = place
    return _follow(state, memory, steps[begin:] if begin else steps, settings) or changed


def _follow(state: RunState, memory: Memory, steps: Sequence[Step], settings: SlowdownSettings) -> bool:
    """Take steps of which the first alone may bring timers: those of the line before it."""
    batch_usual, length_usual = state.topology.global_batch_size, state.topology.sequence_length
    sizes = memory.sizes
    changed, log = False, math.log
    timed = steps[0].timed
    if timed is not None:
        memory.window.add(timed)
    taken: list[Step] = []
    times: list[float] = []
    for step in steps:
        seconds = step.seconds
        if step.counted:
            memory.steps += 1
            if seconds is None:
                memory.untimed = step.iteration
                continue
        elif seconds is None or memory.untimed is None or memory.untimed != step.iteration:
            continue
        else:
            memory.untimed = None
        if seconds <= 0 or memory.steps <= settings.warm_up:
            continue
        size = step.batch_size or batch_usual, step.sequence_length or length_usual
        if size != sizes:
            changed = _take(state, memory, taken, times, settings) or changed
            taken, times = [], []
            memory.sizes = sizes = size
            changed = _change_key(memory, f"{size[0]}/{size[1]}") or changed
        taken.append(step)
        times.append(log(seconds))
    changed = _take(state, memory, taken, times, settings) or changed
    return _explain(state, memory, timed) or changed


def _explain(state: RunState, memory: Memory, timed: Timed | None) -> bool:
    """Name what took the added time, where the log's timers tell; True if something else is named than before."""
    window, shift = memory.window, memory.shift
    if shift is None:
        if window.onset is not None:
            window.ended()
    elif not shift.unsure:
        if window.onset != shift.onset:
            drifted = shift.reason == "drift"
            others = _other_launches(memory) if shift.reason == "launch" else None
            window.shifted(shift.onset, drifted=drifted, before=others)
        if timed is not None or window.found is None:
            changed = window.explain(timed, state.topology.pipeline_parallel_size)
            window.trim()
            return changed
    window.trim()
    return False


def _other_launches(memory: Memory) -> Profile | None:
    """The profile of the last launch before this one that is like it and printed timers."""
    here = memory.segments[-1] if memory.segments else None
    return next((segment.profile for segment in reversed(memory.segments[:-1])
                 if here is not None and segment.key == here.key and segment.attempt != here.attempt
                 and segment.profile is not None), None)  # fmt: skip


def _take(
    state: RunState, memory: Memory, steps: Sequence[Step], times: Sequence[float], settings: SlowdownSettings
) -> bool:
    """Compare steps of one batch size with their level; `times` are logarithms."""
    iterations = [step.iteration for step in steps]
    changed, at, limit, far = False, 0, _FULL * settings.sum_limit, 4 * settings.threshold
    grows = state.topology.sequence_grows
    while at < len(steps):
        track = memory.tracks.get(memory.key)
        if track is None:
            track = memory.tracks[memory.key] = Level()
            while len(memory.tracks) > _TRACKS:
                del memory.tracks[next(iter(memory.tracks))]
        known, begun = track.value is not None, at
        # while a shift stands, each step may end it
        suspect = settings.sum_limit if memory.shift is None and memory.faster is None else 0.0
        at, look = track.add(times, iterations, at, limit, suspect, far)
        _count_over(memory, steps[begun:at], times[begun:at])  # by what was normal before the last look
        if track.value is None or not look:
            continue  # nearly all steps of a healthy run end here
        step = steps[at - 1]
        if not known:
            changed = _begin_segment(state, memory, track, step, settings) or changed
        else:
            if track.seen % levels.MARK_EVERY == 0:
                _renew_segment(memory, track)
            changed = _watch(memory, track, step, at - begun, grows, settings) or changed
        memory.reference = track.value
    return changed


def _count_over(memory: Memory, steps: Sequence[Step], times: Sequence[float]) -> None:
    """Into the distribution: each time over what was normal before it, over that of before a slowdown that stands."""
    normal = memory.reference if memory.shift is None else memory.shift.base
    if normal is not None:
        for step, time in zip(steps, times, strict=True):
            over = math.exp(time - normal)
            memory.over[bisect_left(OVER_NORMAL, over)] += step.interval
            memory.over_sum += over * step.interval


def over_normal(state: RunState) -> tuple[list[int], float]:
    """Iterations by their time over the normal one, and the sum of these ratios."""
    memory = state.memory_of.get(NAME)
    return (memory.over, memory.over_sum) if isinstance(memory, Memory) else ([], 0.0)


def _change_key(memory: Memory, key: str) -> bool:
    """Another batch size: nothing said so far can be compared with what comes."""
    memory.key = key
    memory.reference = None
    memory.window.restart()
    ended = memory.shift is not None or memory.faster is not None
    if memory.shift is not None and not memory.shift.unsure:
        memory.shift = None
    memory.faster = None
    return ended


def _watch(memory: Memory, track: Level, step: Step, new: int, grows: bool, settings: SlowdownSettings) -> bool:
    """Compare the last step of `new` ones with the level: shifted up, down, back, or drifted."""
    shift, faster, iteration, at = memory.shift, memory.faster, step.iteration, step.at
    if shift is None and faster is None and not _suspect(track, settings):
        return False if grows else _watch_drift(memory, track, iteration, at, settings)  # nearly all looks end here
    if shift is not None and not shift.unsure:
        shift.lines += new
        if shift.lines // levels.DRIFT > (shift.lines - new) // levels.DRIFT:
            _renew_level(track, shift, settings)
        if shift.lines >= _BACK and _is_back(memory, track, shift, settings):
            _return(memory, track, shift)
            return True
    changed = False
    if faster is not None:
        faster.lines += new
        if faster.lines > _NORMAL:
            memory.faster = faster = None
            changed = True
        elif not faster.over and iteration - faster.onset > _FASTER_SHOWN:
            faster.over = changed = True
    threshold = settings.growing if grows else settings.threshold
    size = shifted(track, needed(track.scale, threshold), threshold, settings.sum_limit)
    if not size or (size > 0 and _is_usual(memory, track, size)):
        return changed
    if shift is None and faster is None and 0 < size < math.log1p(settings.settled) and _settles(track, step, settings):
        memory.tracks[memory.key] = level_of(track.values[-_since(track) :], track.scale, track.unit)
        return changed
    if shift is None and 0 < size < math.log1p(settings.settled) and _recovers(track, step, size):
        return changed
    _take_shift(memory, track, iteration, at, size, settings)
    return True


def _watch_drift(memory: Memory, track: Level, iteration: int, at: float, settings: SlowdownSettings) -> bool:
    """Compare the median of the last steps with the best one that the run has shown."""
    drift = track.drifted()
    if drift is None or track.best is None:
        return False
    limit = max(math.log1p(settings.drift), 3 * track.scale, _UNITS * (track.unit or 0.0))
    if drift <= limit:
        return False
    if memory.flaps:  # the level of a run that flaps has drifted when nearly all steps of a longer time are slow
        last = track.values[-min(_NORMAL, levels.DRIFT << len(memory.flaps)) :]
        if sum(x - track.best <= drift / 2 for x in last) > len(last) // _CALM:
            return False
    memory.shift = Shift(iteration, at, track.best, track.best + drift, "drift", iteration)
    return True


def _renew_level(track: Level, shift: Shift, settings: SlowdownSettings) -> None:
    """The slow level is what the last steps show; on the way back it stays what it was."""
    level = median_high(track.values[-levels.DRIFT :])
    if level - shift.base > math.log1p(settings.threshold):
        shift.level = level


def _is_back(memory: Memory, track: Level, shift: Shift, settings: SlowdownSettings) -> bool:
    """Whether the last steps lie at the level of before: nearer to it than what is reported, and than half the shift.
    A run whose level flaps must stay there longer each time.
    """
    scale = shift.before.scale if shift.before is not None else track.scale
    reach = max(0.8 * math.log1p(settings.threshold), scale, (track.unit or 0.0))
    count = max(_BACK, needed(track.scale, settings.threshold))
    if shift.reason == "drift":
        count = levels.DRIFT
    count = min(_NORMAL, count << len(memory.flaps))
    if shift.lines < count or len(track.values) < count:
        return False
    last, half = track.values[-count:], (shift.level - shift.base) / 2
    if memory.flaps and sum(x - shift.base > half for x in last) > count // _CALM:
        return False
    return median_high(last) - shift.base < min(half, reach)


def needed(scale: float, threshold: float) -> int:
    """Residuals whose median separates `threshold` from noise: its error falls with the root of their number."""
    return min(levels.RECENT, max(5, math.ceil((2.5 * scale / threshold) ** 2)))


def _suspect(track: Level, settings: SlowdownSettings) -> bool:
    """False where `shifted` has nothing to look at: neither sum is at its limit, nor are three steps far above."""
    if track.up >= settings.sum_limit or track.down >= settings.sum_limit:
        return True
    recent, far = track.recent(3), max(4 * settings.threshold, 6 * track.scale)
    return len(recent) == 3 and min(recent) > far


def shifted(track: Level, count: int, threshold: float, sum_limit: float) -> float | None:
    """The size of a shift that is sure, in logarithms; None if there is none."""
    recent, scale = track.recent(), track.scale
    if len(recent) >= 3:  # a large step needs no sum: three alike, far beyond anything that noise does
        last = sorted(recent[-3:])
        far = max(4 * threshold, 6 * scale)
        if last[0] > far and last[2] - last[0] <= min(_ALIKE_THREE * scale, last[1] / 4):
            return last[1]
    up = track.up >= sum_limit
    if not up and track.down < sum_limit:
        return None
    middle = track.confirmed(count)
    # A step of just the threshold shows a median on either side of it: four fifths of it are enough.
    least = max(0.8 * math.log1p(threshold), scale)
    if middle is None or abs(middle) < least or (middle > 0) != up:
        return None
    lasting = sum(residual / middle > 0.5 for residual in recent[-_LASTING:]) >= _LASTING - 2
    if not lasting and not _alike(recent[-count:], middle, scale):
        return None
    return middle


def _alike(residuals: list[float], middle: float, scale: float) -> bool:
    """Whether they lie together as at a new level. A burst of hiccups is slow too, but each by another amount."""
    near = sorted(residuals, key=lambda residual: abs(residual - middle))[:-1]
    return max(near) - min(near) <= max(4 * scale, _ALIKE * abs(middle))


def _is_usual(memory: Memory, track: Level, size: float) -> bool:
    """Whether a stretch of steps that are slower by `size` is nothing new for this run: it has had such stretches, or
    has left such a level again soon, or it is one printed unit.
    """
    lasting, longest, share = track.slow_stretches(size / 2)
    if size < _UNITS * (track.unit or 0.0) and size < _UNITS * track.see_unit(levels.RECENT):
        return longest > 0 or lasting < _UNIT_LASTING
    if lasting >= _LONG:
        return False
    if size > _HEAVY * track.scale and share:  # the scale says nothing of a tail: its own share and stretches do
        rare = lasting * math.log(share) <= math.log(_CHANCE)
        if not rare or (longest > _STRETCH and lasting <= longest):
            return True
    flaps = [flap.lines for flap in memory.flaps if flap.size > size / 2]
    return bool(flaps) and lasting < min(_FLAP * len(flaps), max(flaps) * len(flaps) ** 2)


def _settles(track: Level, step: Step, settings: SlowdownSettings) -> bool:
    """Whether the launch's iterations have not yet taken as long as its GPUs may need to settle."""
    return track.value is not None and step.finished * math.exp(track.value) < settings.settling


def _recovers(track: Level, step: Step, size: float) -> bool:
    """Whether the steps may only be getting back their pace after an evaluation."""
    if step.evaluated_at is None or track.up_since is None:
        return False
    if not 0 <= track.up_since - step.evaluated_at <= _EVALUATED * step.interval:
        return False
    return track.slow_stretches(size / 2)[0] < _RECOVERS


def _since(track: Level, up: bool = True) -> int:
    """Values since the shift began, as many as a level is learned from."""
    onset, begun = (track.up_since, track.up_from) if up else (track.down_since, track.down_from)
    return max(3, min(levels.RECENT, track.seen - begun + 1 if onset is not None else 0))


def _take_shift(
    memory: Memory, track: Level, iteration: int, at: float, size: float, settings: SlowdownSettings
) -> None:
    """A new level: open or enlarge the incident, and learn the level anew from what followed the onset."""
    assert track.value is not None
    since = _since(track, size > 0)
    onset = track.up_since if size > 0 else track.down_since
    onset = iteration if onset is None else onset
    level, shift, faster = track.value + size, memory.shift, memory.faster
    if size > 0 and faster is not None and level - faster.base < max(0.8 * math.log1p(settings.threshold), track.scale):
        memory.faster = None  # back from a faster level, which was none of its own
        memory.tracks[memory.key] = _resumed(track, faster, since)
        return
    if size > 0:
        memory.faster = None
        if shift is None or shift.unsure:
            memory.shift = Shift(
                onset, at, track.value, level, "shift", iteration, before=track.before(since), lines=since
            )
        elif track.seen <= _SAME_SHIFT or level - shift.base < 2 * (shift.level - shift.base):
            shift.level = level  # the same trouble, still growing
        else:
            memory.shift = Shift(onset, at, shift.base, level, "shift", iteration, before=shift.before, lines=since)
    elif shift is None:
        memory.faster = Shift(onset, at, track.value, level, "shift", iteration, before=track.before(since))
    elif level - shift.base > math.log1p(settings.threshold):  # not yet back: it goes on with a smaller figure
        shift.level = level
    memory.tracks[memory.key] = level_of(track.values[-since:], track.scale, track.unit)


def _resumed(track: Level, shift: Shift, count: int) -> Level:
    """The level of before the shift goes on with the last `count` values."""
    level = shift.before
    if level is None:
        level = level_of(track.values[-count:], track.scale, track.unit)
        level.value = shift.base
        return level
    level.values += track.values[-count:]
    level.seen += count
    return level


def _return(memory: Memory, track: Level, shift: Shift) -> None:
    """Back at the old level."""
    memory.shift = None
    if shift.lines < _NORMAL:
        memory.flaps.append(Flap(shift.level - shift.base, shift.lines))
        del memory.flaps[:-_FLAPS]
    if shift.reason != "drift":
        memory.tracks[memory.key] = _resumed(track, shift, 4)


# --- launches -------------------------------------------------------------------------------------------------------


def _begin_segment(state: RunState, memory: Memory, track: Level, step: Step, settings: SlowdownSettings) -> bool:
    """The launch's level is known: compare it with the launches before it."""
    assert track.value is not None
    key, at, iteration = _layout_of(state, step), step.at, step.iteration
    earlier = [segment for segment in memory.segments if segment.key == key and segment.attempt != memory.attempt]
    segment = Segment(
        key, memory.attempt, state.attempt.first_iteration or iteration, track.value,
        nodes_of(state)[:512], state.environment.get("CUDA_LAUNCH_BLOCKING"), memory.window.usual(),
        state.environment.get(CLOCK),
    )  # fmt: skip
    memory.segments.append(segment)
    del memory.segments[:-_SEGMENTS]
    shift = memory.shift
    if shift is not None and shift.unsure:
        shift.unsure = False
        if not earlier or track.value - shift.base < (shift.level - shift.base) / 2:
            memory.shift = None
        else:
            shift.level, shift.reported_at = track.value, iteration
        return True
    if not earlier:
        return False
    known = [segment.level for segment in earlier]
    usual = median_high(known)
    spread = deviation(known, usual) if len(known) >= 3 else 0.0
    limit = max(math.log1p(settings.between_launches), 3 * spread, 2 * track.scale, _UNITS * (track.unit or 0.0))
    if track.value - usual > limit:
        memory.shift = Shift(segment.first_iteration, at, usual, track.value, "launch", iteration)
        return True
    return False


def _renew_segment(memory: Memory, track: Level) -> None:
    """The launch's best level is what later launches are compared with: a slow node's level is no standard."""
    if memory.segments and memory.segments[-1].attempt == memory.attempt and track.value is not None:
        segment = memory.segments[-1]
        segment.level = min(segment.level, track.value)
        if segment.profile is None and memory.shift is None:
            segment.profile = memory.window.usual()  # timers are printed seldom


# --- the verdict ----------------------------------------------------------------------------------------------------


def check(state: RunState, memory: Memory, _now: float, settings: SlowdownSettings) -> Verdict:
    """Firing while a slower level stands; information when the run became faster."""
    if memory.shift is not None:
        if memory.shift.unsure:
            return Verdict(NAME, "unknown")
        return _slower(state, memory, memory.shift, settings)
    found = memory.slow_saves
    if found is not None:
        told = saves.sentence(found)
        facts = {**saves.evidence(found), "last_line": state.last_line}
        return Verdict(NAME, "firing", summary=told, onset_iteration=found.onset, since=found.at, evidence=facts)
    if memory.faster is not None and not memory.faster.over:
        return _faster(state, memory.faster)
    return Verdict(NAME)


def before_hang(state: RunState) -> str:
    """What the pace said before the run stood still: that iterations had become slower, and where; empty if not."""
    memory = state.memory_of.get(NAME)
    if state.phase == "saving":
        gaps = state.gaps.get("saving")
        return saves.creeping(gaps.values) if gaps is not None else ""
    if not isinstance(memory, Memory) or memory.shift is None:
        return ""
    shift, found = memory.shift, memory.window.found
    told = f"iterations had taken {percent(shift.level - shift.base)} since iteration {shift.onset}"
    return f"{told}, {words.sentence(found)}" if found is not None and found.part else told


def ratio(state: RunState) -> float | None:
    """The last iteration's pure time over the normal one; while a slowdown stands, over that of before it."""
    memory, seconds, normal = state.memory_of.get(NAME), state.pure_seconds, state.pace.baseline
    if isinstance(memory, Memory):
        known = memory.reference if memory.shift is None else memory.shift.base
        normal = normal if known is None else math.exp(known)
    return seconds / normal if seconds and normal else None


def _slower(state: RunState, memory: Memory, shift: Shift, settings: SlowdownSettings) -> Verdict:
    base, level = math.exp(shift.base), math.exp(shift.level)
    ratio = level / base
    parts = [f"iterations take {100 * (ratio - 1):.1f} % longer since iteration {shift.onset}: "
             f"{level:.4g} s instead of {base:.4g} s"]  # fmt: skip
    evidence: dict[str, Any] = {
        "seconds_per_iteration": round(level, 4),
        "normal_seconds_per_iteration": round(base, 4),
        "ratio": round(ratio, 4),
        "reason": {"shift": "a step between two iterations", "drift": "a slow drift",
                   "launch": "slower than the launches before"}[shift.reason],
        "last_line": state.last_line,
    }  # fmt: skip
    size, world = batch_size(state), state.topology.world_size
    if size:
        evidence["lost_samples_per_second"] = round(size / base - size / level, 4)
    if world:
        wasted = world * (1 - base / level)
        evidence["wasted_gpus"] = round(wasted, 1)
        parts.append(f"as much as {wasted:.1f} of {world} GPUs standing idle")
    last, total = state.latest.iteration, state.train_iterations
    if last is not None and total is not None and total > last:
        longer = (total - last) * (level - base)
        evidence["hours_added"] = round(longer / 3600, 2)
        parts.append(f"{duration(longer)} more until iteration {total}")
    if shift.reason == "launch":
        parts += [_nodes_of(memory), _clocks_of(memory, shift, evidence)]
    found = memory.window.found
    if found is not None or "cause" not in evidence:
        parts += [words.sentence(found), words.look(found)]
        evidence.update(words.evidence(found, memory.window.before))
    return Verdict(
        NAME,
        "firing",
        severity="critical" if ratio >= 1 + settings.critical else "warning",
        summary="; ".join(part for part in parts if part),
        onset_iteration=shift.onset,
        since=shift.at,
        evidence=evidence,
    )


def _clocks_of(memory: Memory, shift: Shift, evidence: dict[str, Any]) -> str:
    """What lower clocks than those of the launch before explain, where the log tells both."""
    clocks = [
        int(clock)
        for segment in memory.segments[-2:]
        if (clock := segment.gpu_clock) and clock.isdecimal() and len(clock) < 19
    ]
    if len(clocks) < 2 or clocks[1] >= clocks[0]:
        return ""
    explained = math.log(clocks[0] / clocks[1]) / (shift.level - shift.base)
    evidence["gpu_clock_mhz"] = clocks
    if not _EXPLAINED <= explained <= 1 / _EXPLAINED:
        return f"GPU clocks were locked to {clocks[1]} MHz, {clocks[0]} MHz before"
    evidence.update(cause="compute", cause_scope="all")
    return (
        f"its GPUs' clocks explain it: locked to {clocks[1]} MHz, {clocks[0]} MHz before, {clocks[0] / clocks[1]:.3f} x"
    )


def _nodes_of(memory: Memory) -> str:
    """How the node lists of the last two launches differ, where the log names nodes."""
    if len(memory.segments) < 2:
        return ""
    before, after = set(memory.segments[-2].nodes), set(memory.segments[-1].nodes)
    if not before or not after or before == after:
        return ""
    new, gone = sorted(after - before), sorted(before - after)
    words = []
    if new:
        words.append("new nodes: " + ", ".join(new[:_NODESNAMED]) + (" ..." if len(new) > _NODESNAMED else ""))
    if gone:
        words.append("gone: " + ", ".join(gone[:_NODESNAMED]) + (" ..." if len(gone) > _NODESNAMED else ""))
    return ", ".join(words)


def _faster(state: RunState, shift: Shift) -> Verdict:
    base, level = math.exp(shift.base), math.exp(shift.level)
    return Verdict(
        NAME,
        "firing",
        severity="info",
        summary=f"iterations take {100 * (1 - level / base):.1f} % less time since iteration {shift.onset}: "
        f"{level:.4g} s instead of {base:.4g} s; nothing to do, unless code or data were changed by mistake",
        onset_iteration=shift.onset,
        since=shift.at,
        evidence={
            "seconds_per_iteration": round(level, 4),
            "normal_seconds_per_iteration": round(base, 4),
            "ratio": round(level / base, 4),
            "last_line": state.last_line,
        },
        quiet=True,
    )


DETECTOR = Detector(
    NAME,
    SlowdownSettings,
    check,
    Memory,
    update,
    messages="level",
    advice="look for one slow GPU or node (clocks, ECC, network) and exclude it at the next restart",
)
