"""The shape of every rule: what it finds, what it remembers of a run, how it is asked; and words for its summaries.

A rule judges one kind of incident. Its name is the incident's kind and its key in the configuration.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import msgspec
from msgspec import Struct, field

from megatron_monitor.nodes.collectives import operation_name
from megatron_monitor.parsers.events import Event
from megatron_monitor.run.nodes import blamed, missing_ranks, nodes_of_ranks
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.state import Attempt, RunState
from megatron_monitor.run.steps.step import Step

Severity = Literal["info", "warning", "critical"]
RANK: dict[str, int] = {"info": 0, "warning": 1, "critical": 2}


class Finding(Struct, frozen=True):
    """What a rule finds at an instant. clear: nothing is wrong; firing: something is; unknown: nobody can see now, and
    what is open stays open.
    """

    state: Literal["clear", "firing", "unknown"]
    severity: Severity = "warning"
    summary: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    onset: int | None = None
    """The iteration with which it began,"""
    since: float | None = None
    """and the instant, where one is known."""
    display_only: bool = False
    """Shown on the page and in the metrics, never notified."""
    next_check: float | None = None
    """The next instant at which time alone changes the finding; None where only an event or a step does."""


CLEAR, UNKNOWN = Finding("clear"), Finding("unknown")


class RuleSettings(Struct, frozen=True, kw_only=True):
    """What can be set of every rule. Its thresholds are constants of its file, each with its reason."""

    enabled: bool = True
    """False: it finds nothing."""
    severity: Severity = "critical"
    """The worst severity that its incidents have."""


class Rule(Struct):
    """One kind of incident. An instance is what the rule remembers of one run: plain values, saved with the run's
    state. It changes nothing else. `on_event` and `on_steps` return whether `evaluate` may now answer differently.
    """

    name: ClassVar[str]
    settings: ClassVar[type[RuleSettings]] = RuleSettings
    listens: ClassVar[tuple[type[Event], ...]] = ()
    """The events that `on_event` is given."""
    inhibited_by: ClassVar[tuple[str, ...]] = ()
    """Rules that explain this one: while one of them is firing or open, this one does not fire."""
    is_level: ClassVar[bool] = False
    """It is a level that comes and goes: one that returns within minutes is the same incident (incidents.py)."""
    is_timed: ClassVar[bool] = False
    """Time alone may change its finding: `next_check` says when."""

    @classmethod
    def of(cls, state: RunState) -> Self:
        """What the rule remembers of the run. Nothing, where an older version saved what does not fit: then it is
        learned from the log again.
        """
        known = state.memory_of.get(cls.name)
        if type(known) is cls:
            return known
        try:
            own = cls() if known is None else msgspec.convert(known, cls)
        except msgspec.ValidationError:
            own = cls()
        state.memory_of[cls.name] = own
        return own

    @classmethod
    def ready(cls, state: RunState) -> Self:
        """The same, before it is given more of the run."""
        return cls.of(state)

    def on_event(self, state: RunState, event: Any, settings: Any) -> bool:
        """An event of a type in `listens`, which has been folded."""
        raise NotImplementedError

    def on_steps(self, state: RunState, steps: Sequence[Step], settings: Any) -> bool:
        """Reports of steps in their order, one or thousands, which have been folded. Within one call the attempt, the
        step source, topology, checkpoints, environment and nodes do not change; all else that differs from step to
        step is read from the Step.
        """
        raise NotImplementedError

    def evaluate(self, state: RunState, now: float, settings: Any) -> Finding:
        """The finding at the instant `now`. Pure: asked twice, it answers the same."""
        raise NotImplementedError


class AttemptRule(Rule):
    """A rule whose memory lives as long as an attempt: it is new before it is given anything of the next one."""

    attempt: int = 0
    """The number of the attempt."""
    handed_on: ClassVar[tuple[str, ...]] = ()
    """The fields with whose values the next attempt's memory begins."""

    @classmethod
    def ready(cls, state: RunState) -> Self:
        """The memory of the present attempt."""
        own, number = cls.of(state), state.attempt.number
        if own.attempt != number:
            handed_on = {each: getattr(own, each) for each in cls.handed_on}
            own = state.memory_of[cls.name] = cls(attempt=number, **handed_on)
        return own


def unless_standing(state: RunState, number: int, *, found: bool, outlives: bool = False) -> Finding | None:
    """The finding on what was found in the lines of attempt `number`, where it is over or nobody can see it now; None
    where it stands. `outlives`: it stands although the attempt has ended; else what stood then stays as it is.
    """
    attempt = state.attempt
    if state.lost:
        return UNKNOWN
    if not found or number != attempt.number:
        return CLEAR
    return UNKNOWN if attempt.phase in ENDED and not outlives else None


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


def rollback(attempt: Attempt, onset: int, samples_before: int | None, checkpoint: int | None) -> dict[str, Any]:
    """What a person who goes back needs: the last checkpoint before the onset, the samples to skip."""
    facts: dict[str, Any] = {}
    if checkpoint is not None and checkpoint <= onset:
        facts["rollback_iteration"] = checkpoint
    if samples_before is not None:
        facts["samples_from"] = samples_before
        if attempt.latest.consumed_samples is not None:
            facts["samples_to"] = attempt.latest.consumed_samples
    return facts


def advice(facts: dict[str, Any]) -> str:
    """The facts of `rollback` as a sentence."""
    checkpoint, first, last = (facts.get(key) for key in ("rollback_iteration", "samples_from", "samples_to"))
    where = "a checkpoint from before" if checkpoint is None else f"the checkpoint of iteration {checkpoint}"
    text = f"go back to {where}"
    if first is not None and last is not None:
        text += f" and skip samples {first} to {last}"
    return text


# --- nodes ----------------------------------------------------------------------------------------------------------


def missing_evidence(state: RunState) -> dict[str, Any]:
    """Of the ranks that the others wait for: their numbers and nodes, and in which collective; empty if unknown."""
    found = missing_ranks(state.attempt)
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
        "missing_stacks": {str(rank): stack for rank, stack in state.attempt.dumped_stacks.items()},
    }
    return {name: value for name, value in facts.items() if value}
