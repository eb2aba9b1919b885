"""A launch held against those before it that are like it."""

import math

from monitor.breakdown.profile import Profile
from monitor.detectors.slowdown.memory import Memory, Segment, Shift, SlowdownSettings
from monitor.detectors.slowdown.shifts import UNITS
from monitor.run.nodes import nodes_of
from monitor.run.state import RunState
from monitor.run.steps.step import Step
from monitor.statistics.levels import Level
from monitor.statistics.median import deviation, median_high
from parsers.formats.gpu import CLOCK

_SEGMENTS = 40  # launches remembered


def _layout_of(state: RunState, step: Step) -> str:
    """What must be equal for two launches to be compared: model, layout over the GPUs, batch size, sequence length."""
    top = state.launch.topology
    sizes = (
        top.layers, top.hidden_size, top.world_size,
        top.tensor_parallel_size, top.pipeline_parallel_size, top.micro_batch_size,
        step.batch_size or top.global_batch_size, step.sequence_length or top.sequence_length,
    )  # fmt: skip
    return "/".join("?" if size is None else str(size) for size in sizes)


def begin_segment(state: RunState, memory: Memory, track: Level, step: Step, settings: SlowdownSettings) -> bool:
    """The launch's level is known: compare it with the launches before it."""
    assert track.value is not None
    key, at, iteration = _layout_of(state, step), step.at, step.iteration
    earlier = [segment for segment in memory.segments if segment.key == key and segment.attempt != memory.attempt]
    segment = Segment(
        key, memory.attempt, state.launch.first_iteration or iteration, track.value,
        nodes_of(state)[:512], state.launch.environment.get("CUDA_LAUNCH_BLOCKING"), memory.window.usual(),
        state.launch.environment.get(CLOCK),
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
    if not earlier or (key.strip("?/") == "" and _begins_anew(state, step)):
        return False
    known = [segment.level for segment in earlier]
    usual = median_high(known)
    spread = deviation(known, usual) if len(known) >= 3 else 0.0
    limit = max(math.log1p(settings.between_launches), 3 * spread, 2 * track.scale, UNITS * (track.unit or 0.0))
    if track.value - usual > limit:
        memory.shift = Shift(segment.first_iteration, at, usual, track.value, "launch", iteration)
        return True
    return False


def _begins_anew(state: RunState, step: Step) -> bool:
    """Whether the launch resumes nothing: a chain of trainings in one log of which no line tells how they differ."""
    first = state.launch.first_iteration
    return state.after_finish or (first is not None and first <= step.interval)


def renew_segment(memory: Memory, track: Level) -> None:
    """The launch's best level is what later launches are compared with: a slow node's level is no standard."""
    if memory.segments and memory.segments[-1].attempt == memory.attempt and track.value is not None:
        segment = memory.segments[-1]
        segment.level = min(segment.level, track.value)
        if segment.profile is None and memory.shift is None:
            segment.profile = memory.window.usual()  # timers are printed seldom


def other_launches(memory: Memory) -> Profile | None:
    """The profile of the last launch before this one that is like it and printed timers."""
    here = memory.segments[-1] if memory.segments else None
    return next((segment.profile for segment in reversed(memory.segments[:-1])
                 if here is not None and segment.key == here.key and segment.attempt != here.attempt
                 and segment.profile is not None), None)  # fmt: skip
