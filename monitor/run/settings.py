"""What a launch says of itself: its layout, arguments, environment, versions. Pure."""

import zlib
from typing import Any, TypeAlias

import msgspec

from monitor.model import topology as topologies
from monitor.model.arguments import kept
from monitor.run.state import Launch
from monitor.run.totals import summed
from parsers.events import (
    ArgumentsDumped,
    BatchSizeRampupPlanned,
    EnvironmentVariableSeen,
    Event,
    ModelSettingLogged,
    ParametersCounted,
    SizesTold,
    SoftwareSeen,
    TopologyLogged,
    TrainerSetting,
)


def stamp_of(event: ArgumentsDumped) -> str:
    """What tells one arguments dump from another: they carry no time."""
    return str(zlib.crc32(repr(sorted(event.values.items())).encode()))


_KINDS = {kind.kind: kind for kind in (
    ArgumentsDumped, BatchSizeRampupPlanned, EnvironmentVariableSeen, ModelSettingLogged, ParametersCounted, SizesTold,
    SoftwareSeen, TopologyLogged, TrainerSetting,
)}  # fmt: skip
Setting: TypeAlias = tuple[str, dict[str, Any]]
"""A fact of the set-up as plain values: the event's kind and fields."""


def plain(event: Event) -> Setting:
    """The event as it is kept until it is known whose it is."""
    return event.kind, msgspec.to_builtins(event)


def event_of(setting: Setting) -> Event:
    """The event that was kept."""
    kind, fields = setting
    return msgspec.convert(fields, _KINDS[kind])


def take_setting(launch: Launch, event: Event) -> None:
    """One more fact of the set-up."""
    match event:
        case EnvironmentVariableSeen():
            launch.environment[event.name] = event.value
            if event.name not in topologies.NOMINAL_SIZES:
                return
        case SoftwareSeen():
            launch.software[event.name] = event.version
            return
        case ParametersCounted():  # one rank counted its own: the sum over ranks is the model
            launch.parameters_by_rank[f"{event.tensor_rank},{event.pipeline_rank}"] = event.parameters
            launch.topology.parameters = summed(launch.parameters_by_rank.values())
            return
        case ArgumentsDumped():
            if launch.boundaries.setdefault("arguments", stamp_of(event)) == stamp_of(event):
                launch.arguments = kept(event.values)  # another dump is a critic's
    changed = topologies.apply(launch.topology, event)
    if changed is not None:
        launch.topology = changed
        if launch.train_iterations is None:
            launch.train_iterations = changed.train_iterations


def is_known(launch: Launch, event: Event) -> bool:
    """Whether it is a setting that says nothing new: some programs print one again behind each iteration."""
    return type(event) is ModelSettingLogged and topologies.apply(launch.topology, event) is None
