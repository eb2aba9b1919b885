"""The set-up of a launch: milestones, arguments, topology, software, environment.

Each function takes (state, event, source, at, live, entry) and returns whether the event was progress.
"""

from __future__ import annotations

import zlib
from typing import Any

from monitor.model import topology as topologies
from monitor.model.arguments import changes, kept
from monitor.run import saves
from monitor.run.attempts import LAUNCHER, boundary, set_phase
from monitor.run.experiments import plan_of
from monitor.run.log_clock import log_clock
from monitor.run.phases import PHASE_AFTER_MILESTONE
from monitor.run.state import RunState
from monitor.run.totals import summed
from parsers.engine.fields import whole
from parsers.events import (
    ArgumentsDumped,
    EnvironmentVariableSeen,
    Event,
    LogEvent,
    MilestoneReached,
    ModelSettingLogged,
    ParametersCounted,
    SoftwareSeen,
    TopologyLogged,
    TrainerSetting,
)


def on_milestone(
    state: RunState, event: MilestoneReached, source: str, at: float, _live: bool, _entry: LogEvent
) -> bool:
    """A set-up step was announced."""
    if event.milestone != "training_done":
        boundary(state, event.milestone, event.logged_at or source, source, at)
        if event.milestone == "launched" and state.attempt.launched_clock is None:
            state.attempt.launched_clock = log_clock(event.logged_at or "")
        elif event.milestone == "training_started":
            state.stopwatch.begin(log_clock(event.logged_at))
    if state.attempt.iterations == 0 or event.milestone == "training_done":
        set_phase(state, PHASE_AFTER_MILESTONE[event.milestone], at)
        if event.milestone == "training_done":
            state.attempt.done_at = at
            saves.on_loop_done(state, event, at)
        return True
    return False


def on_arguments(
    state: RunState, event: ArgumentsDumped, source: str, at: float, _live: bool, _entry: LogEvent
) -> bool:
    """The arguments dump: a boundary, and most of the topology."""
    stamp = str(zlib.crc32(repr(sorted(event.values.items())).encode()))
    boundary(state, "arguments", stamp, source, at)
    if state.attempt.boundaries["arguments"] == stamp:  # another dump of a launch is a critic's or a teacher's
        state.plan = plan_of(event)
        _keep_arguments(state, event)
    return on_topology(state, event, source, at, _live, _entry)


def _keep_arguments(state: RunState, event: ArgumentsDumped) -> None:
    """Remember them, and what the launch has changed since the last one that told its own."""
    now = kept(event.values)
    if state.arguments and state.arguments_of != state.attempt.number:
        state.arguments_changed = changes(state.arguments, now)
    state.arguments, state.arguments_of = now, state.attempt.number


def on_topology(state: RunState, event: Event, _source: str, _at: float, _live: bool, _entry: LogEvent) -> bool:
    """One more input of the topology."""
    changed = topologies.apply(state.topology, event)
    if changed is not None:
        state.topology = changed
        if state.train_iterations is None:
            state.train_iterations = changed.train_iterations
    return state.attempt.iterations == 0


def is_known(state: RunState, event: Event) -> bool:
    """Whether it is a setting that says nothing new: some programs print one again behind each iteration."""
    return type(event) is ModelSettingLogged and topologies.apply(state.topology, event) is None


def on_sizes(state: RunState, event: TopologyLogged, source: str, at: float, live: bool, entry: LogEvent) -> bool:
    """`using world size: ...` is the first line of Megatron, its processes the first of DeepSpeed's launcher on a node;
    other programs tell sizes at any time.
    """
    if event.nodes is not None and event.processes_per_node is not None and event.logged_at is not None:
        boundary(state, f"{LAUNCHER}{event.node or ''}", event.logged_at, source, at)
    if event.world_size is not None and event.data_parallel_size is not None:
        boundary(state, "world", f"{event.world_size}/{event.data_parallel_size}", source, at)
    return on_topology(state, event, source, at, live, entry)


def on_parameters(state: RunState, event: ParametersCounted, *_rest: Any) -> bool:
    """One rank counted its parameters: the sum over ranks is the model."""
    state.parameters_by_rank[f"{event.tensor_rank},{event.pipeline_rank}"] = event.parameters
    state.topology.parameters = summed(state.parameters_by_rank.values())
    return state.attempt.iterations == 0


def on_trainer_setting(
    state: RunState, event: TrainerSetting, source: str, at: float, live: bool, entry: LogEvent
) -> bool:
    """HF Trainer's heading and the figures under it."""
    if event.name == "running_training":
        if state.driver in (None, "trainer"):
            boundary(state, "running_training", event.logged_at or source, source, at)
        state.trainer_declared = True
    elif event.name == "total optimization steps" and isinstance(event.value, int | float):
        state.trainer_total = whole(event.value)
        if state.driver in (None, "trainer"):
            state.train_iterations = state.trainer_total
    return on_topology(state, event, source, at, live, entry)


def on_environment(state: RunState, event: EnvironmentVariableSeen, *_rest: Any) -> bool:
    """A variable of the allow-list."""
    state.environment[event.name] = event.value
    if event.name in topologies.NOMINAL_SIZES:
        changed = topologies.apply(state.topology, event)
        if changed is not None:
            state.topology = changed
    state.environment_seen[event.name] = state.iterations_total
    return False


def on_software(state: RunState, event: SoftwareSeen, *_rest: Any) -> bool:
    """A version."""
    state.software[event.name] = event.version
    return False
