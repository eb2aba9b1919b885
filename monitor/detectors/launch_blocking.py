"""CUDA_LAUNCH_BLOCKING: what it costs here, where the log shows that it is set.

BLOOM trained with =1, because without it runs of 160 GPUs and more hung; it cost 6.3 % on 80 GPUs and nothing on 160
(docs/incident-record.md, "CUDA_LAUNCH_BLOCKING"). So =1 is no mistake in itself, and "not seen" is unknown, not 0.
The variable leaves no trace within a launch: it is slower as a whole than the run's launches of the other setting.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from megatron_monitor.breakdown import words
from megatron_monitor.breakdown.attribution import Attribution, attribute
from megatron_monitor.detectors import slowdown
from megatron_monitor.detectors.base import CLEAR, UNKNOWN, Detector, OfLaunch, Severity, Verdict, recall
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step
from megatron_monitor.units import Ratio

VARIABLE = "CUDA_LAUNCH_BLOCKING"
_RISK = 160  # GPUs from which asynchronous launches were seen to hang


class LaunchBlockingSettings(Struct, frozen=True):
    """Thresholds, each with its reason."""

    cost: Ratio = 0.03
    """A measured cost from here on is notified; less lies between two launches of the same setting."""


class Memory(OfLaunch):
    """The comparison, made when the launch has shown its level."""

    at: float | None = None
    """When it was made."""


def update(state: RunState, memory: Memory, steps: Sequence[Step], _settings: LaunchBlockingSettings) -> bool:
    """True when the launch has just shown its level: then there is something to compare."""
    if memory.at is not None or not steps[-1].counted:
        return False  # this launch has been compared
    segments = recall(state, slowdown.NAME, slowdown.Memory).segments
    if not segments or segments[-1].attempt != state.launch.number:
        return False
    memory.at = steps[-1].at
    return True


def check(state: RunState, memory: Memory, _now: float, settings: LaunchBlockingSettings) -> Verdict:
    """Compare the present launch with the last one of the other setting."""
    launch = state.launch
    if memory.attempt != launch.number or memory.at is None:
        return UNKNOWN
    segments = recall(state, slowdown.NAME, slowdown.Memory).segments
    here = next((segment for segment in reversed(segments) if segment.attempt == launch.number), None)
    if here is None:
        return UNKNOWN
    setting = here.is_blocking
    if setting is None:
        return CLEAR
    others = [segment for segment in segments if segment.key == here.key and segment.attempt != here.attempt]
    opposite = [segment for segment in others if segment.differs_by_setting(here)]
    return _compared(state, memory, here, opposite[-1], setting, settings) if opposite else CLEAR


def _compared(
    state: RunState, memory: Memory, here: slowdown.Segment, other: slowdown.Segment, on: bool,
    settings: LaunchBlockingSettings,
) -> Verdict:  # fmt: skip
    blocking, free = (here, other) if on else (other, here)
    cost = math.expm1(blocking.level - free.level)
    world, found = state.launch.topology.world_size, None
    if blocking.profile is not None and free.profile is not None:
        found = attribute(free.profile, blocking.profile, state.launch.topology.pipeline_parallel_size)
    risky = world is None or world >= _RISK
    if cost < settings.cost if on else not risky:
        return CLEAR
    against = "unset it, unless it was set against a hang"
    if risky:
        against = "runs of this size have hung without it, weigh the one against the other"
    summary = (
        f"{VARIABLE}=1 costs {100 * cost:.1f} % here: {math.exp(here.level):.4g} s per iteration since iteration "
        f"{here.first_iteration}, {math.exp(other.level):.4g} s without it; {against}{_where(found)}"
        if on
        else f"{VARIABLE} is no longer set (it was 1 in an earlier launch): runs of {_RISK} GPUs and more have hung "
        f"without it; it cost {100 * cost:.1f} % here"
    )
    evidence = {
        "seconds_per_iteration": round(math.exp(here.level), 4),
        "cost_ratio": round(cost, 4),
        "cuda_launch_blocking": "1" if on else "0",
        **(words.evidence(found, None) if found is not None else {}),
    }
    severity: Severity = "warning" if on else "info"
    return Verdict("firing", severity, summary, evidence, onset=here.first_iteration, since=memory.at)


def _where(found: Attribution | None) -> str:
    """Which part of the iteration took what it cost, by the log's timers. The variable lengthens compute on all ranks:
    another part says that something else has changed, too.
    """
    if found is None or not found.part:
        return ""
    other = "" if found.cause == "compute" else ", which the variable does not lengthen: look for another cause, too"
    return f"; {words.sentence(found)}{other}"


DETECTOR = Detector(LaunchBlockingSettings, check, Memory, update, level=True)
