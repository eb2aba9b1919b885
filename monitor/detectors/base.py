"""What every detector is made of: its verdict, its row in the registry, its memory, and words for its summaries.

A detector is called by its module's name, which is its incident's kind and its key in the configuration.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Struct, field

from megatron_monitor.audit import RANK as RANK
from megatron_monitor.audit import Severity as Severity
from megatron_monitor.nodes.collectives import operation_name
from megatron_monitor.parsers.events import Event
from megatron_monitor.run.nodes import blamed, missing_ranks, nodes_of_ranks
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.state import Launch, RunState
from megatron_monitor.run.steps.step import Step

T = TypeVar("T")


class Verdict(Struct, frozen=True):
    """`status` clear: nothing is wrong; firing: something is; unknown: nobody can see now, what is open stays open."""

    status: Literal["clear", "firing", "unknown"]
    severity: Severity = "warning"
    summary: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    onset: int | None = None
    """The iteration with which it began,"""
    since: float | None = None
    """and the instant, where one is known."""
    quiet: bool = False
    """Shown on the page and in the metrics, never notified."""


CLEAR, UNKNOWN = Verdict("clear"), Verdict("unknown")


class OfLaunch(Struct):
    """A memory that lives as long as a launch: the judge makes it anew before it is given anything of the next one."""

    attempt: int = 0
    """The number of the launch."""
    HANDED_ON: ClassVar[tuple[str, ...]] = ()
    """The fields with whose values the next launch's memory begins."""


class NoSettings(Struct, frozen=True):
    """Of a detector of which there is nothing to set."""


class Detector(Struct, frozen=True):
    """One kind of incident. A detector changes nothing but its own memory, which is None where it needs none."""

    settings: type
    check: Callable[[RunState, Any, float, Any], Verdict]
    """check(state, memory, now, settings): the verdict at this instant."""
    memory: type | None = None
    update: Callable[[RunState, Any, Sequence[Step], Any], bool] | None = None
    """update(state, memory, steps, settings): reports of steps in their order, one or thousands. Within one call the
    launch, the step source, topology, checkpoints, environment and nodes do not change; all else that differs from step
    to step is read from the Step. Returns whether `check` may now answer differently.
    """
    on_event: Callable[[RunState, Any, Any, Any], bool] | None = None
    """on_event(state, memory, event, settings), for events of the types in `listens`; returns as `update` does."""
    listens: tuple[type[Event], ...] = ()
    deadlines: Callable[[RunState, Any], tuple[float | None, ...]] | None = None
    """deadlines(state, settings): the instants, past or to come, at which time alone may change the verdict."""
    inhibited_by: tuple[str, ...] = ()
    """Kinds that explain this one: while one of them is firing or open, this one does not fire."""
    level: bool = False
    """It is a level that comes and goes: one that returns within minutes is the same incident (incidents.py)."""


def recall(state: RunState, name: str, kind: type[T]) -> T:
    """The memory of the detector `name`. Empty where there is none, or where an older version saved what does not
    fit: then it is learned from the log again.
    """
    known = state.memory_of.get(name)
    if type(known) is kind:
        return known
    fresh: T
    try:
        fresh = kind() if known is None else msgspec.convert(known, kind)
    except msgspec.ValidationError:
        fresh = kind()
    state.memory_of[name] = fresh
    return fresh


def prepare(state: RunState, name: str, kind: type[T]) -> T:
    """The memory as it is before it is given more: one that lives as long as a launch is new in a new launch."""
    memory, number = recall(state, name, kind), state.launch.number
    if isinstance(memory, OfLaunch) and memory.attempt != number:
        handed_on = {each: getattr(memory, each) for each in memory.HANDED_ON}
        memory = state.memory_of[name] = type(memory)(attempt=number, **handed_on)
    return memory


def unless_standing(state: RunState, attempt: int, *, found: bool, outlives: bool = False) -> Verdict | None:
    """The verdict on what was found in the lines of launch `attempt`, where it is over or nobody can see it now; None
    where it stands. `outlives`: it stands although the launch has ended; else what stood then stays as it is.
    """
    launch = state.launch
    if state.lost:
        return UNKNOWN
    if not found or attempt != launch.number:
        return CLEAR
    return UNKNOWN if launch.phase in ENDED and not outlives else None


def stated(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts without those of which nothing is known."""
    return {name: value for name, value in facts.items() if value is not None}


# --- words ----------------------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """A duration in one unit: `38 s`, `12 min`, `2.9 h`, `3.4 days`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86400:.1f} days"


def percent(log_ratio: float) -> str:
    """A difference of logarithms as `+4.2 %`, from three times on as `3.5 x`."""
    ratio = 2.718281828459045**log_ratio
    return f"{ratio:.1f} x" if ratio >= 3 else f"{100 * (ratio - 1):+.1f} %"


def rollback(launch: Launch, onset: int, samples_before: int | None, checkpoint: int | None) -> dict[str, Any]:
    """What a person who goes back needs: the last checkpoint before the onset, the samples to skip."""
    facts: dict[str, Any] = {}
    if checkpoint is not None and checkpoint <= onset:
        facts["rollback_iteration"] = checkpoint
    if samples_before is not None:
        facts["samples_from"] = samples_before
        if launch.latest.consumed_samples is not None:
            facts["samples_to"] = launch.latest.consumed_samples
    return facts


def advice(facts: dict[str, Any]) -> str:
    """The facts of `rollback` as a sentence."""
    checkpoint, first, last = (facts.get(key) for key in ("rollback_iteration", "samples_from", "samples_to"))
    where = "a checkpoint from before" if checkpoint is None else f"the checkpoint of iteration {checkpoint}"
    words = f"go back to {where}"
    if first is not None and last is not None:
        words += f" and skip samples {first} to {last}"
    return words


# --- nodes ----------------------------------------------------------------------------------------------------------


def missing_evidence(state: RunState) -> dict[str, Any]:
    """Of the ranks that the others wait for: their numbers and nodes, and in which collective; empty if unknown."""
    found = missing_ranks(state.launch)
    if found is None:
        return {}
    nodes = nodes_of_ranks(state, found.ranks)
    facts: dict[str, Any] = {
        "ranks": list(found.ranks),
        "nodes": blamed(state),
        "collective": f"{operation_name(found.operation)} {found.work}",
        "collective_group": found.group,
        "ranks_waiting": found.waiting,
        "missing": found.sentence(nodes),
        "missing_proof": found.proof,
        "missing_stacks": {str(rank): stack for rank, stack in state.launch.dumped_stacks.items()},
    }
    return {name: value for name, value in facts.items() if value}
