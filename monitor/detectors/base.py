"""The base classes of rules and findings, and texts for summaries.

A rule detects one kind of incident. Its name is the incident's kind and its key in the configuration.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import msgspec
from msgspec import Struct, field

from megatron_monitor.parsers.events import Event
from megatron_monitor.run.nodes import blamed, missing_ranks, nodes_of_ranks
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.state import Attempt, RunState
from megatron_monitor.run.steps.step import Step

Severity = Literal["info", "warning", "critical"]
RANK: dict[str, int] = {"info": 0, "warning": 1, "critical": 2}


class Finding(Struct, frozen=True):
    """The result of a rule at an instant. clear: nothing is wrong; firing: something is wrong; unknown: the rule cannot
    decide now, and an open incident stays open.
    """

    state: Literal["clear", "firing", "unknown"]
    severity: Severity = "warning"
    summary: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    onset: int | None = None
    """Iteration at which the problem began."""
    since: float | None = None
    """Instant at which it began, if known."""
    display_only: bool = False
    """Shown on the page and in the metrics, never notified."""
    next_check: float | None = None
    """Next instant at which the finding changes without an event or a step; None: never."""


CLEAR, UNKNOWN = Finding("clear"), Finding("unknown")


def ahead(instant: float, now: float) -> float | None:
    """Return the instant if it is still to come."""
    return instant if instant > now else None


class RuleSettings(Struct, frozen=True, kw_only=True):
    """Settings of every rule. Thresholds are constants in the rule's file, each with its reason."""

    enabled: bool = True
    """False: the rule is off."""
    severity: Severity = "critical"
    """Maximum severity of its incidents."""


class Rule(Struct):
    """One kind of incident. An instance is the rule's memory of one run: plain values, saved with the run's state.

    A rule changes nothing else. `on_event` and `on_steps` return True if the result of `evaluate` may have changed.
    """

    name: ClassVar[str]
    settings: ClassVar[type[RuleSettings]] = RuleSettings
    listens: ClassVar[tuple[type[Event], ...]] = ()
    """Event types passed to `on_event`."""
    inhibited_by: ClassVar[tuple[str, ...]] = ()
    """Rules that explain this one: it does not fire while one of them fires or is open."""
    is_level: ClassVar[bool] = False
    """True: the problem may come and go, and a return within minutes is the same incident (incidents.py)."""
    outlives: ClassVar[bool] = False
    """True: the rule is evaluated after the end of the attempt, and while no line of the run can be read."""
    is_timed: ClassVar[bool] = False
    """True: time alone may change the finding, at `next_check`."""

    idle_until: float = -math.inf
    """Iteration up to which no step changes the memory or the finding: `on_steps` is not called."""

    @classmethod
    def of(cls, state: RunState) -> Self:
        """Return the rule's memory of the run; a new one if the saved one of an older version cannot be read."""
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
        """Return the memory before new events or steps are applied."""
        return cls.of(state)

    def on_event(self, state: RunState, event: Any, settings: Any) -> bool:
        """Apply a folded event of a type in `listens`."""
        raise NotImplementedError

    def on_steps(self, state: RunState, steps: Sequence[Step], settings: Any) -> bool:
        """Apply folded steps in order, one or thousands.

        Within one call the attempt, step source, topology, checkpoints, environment and nodes are constant; values that
        differ between steps come from the Step.
        """
        raise NotImplementedError

    def finding(self, state: RunState, now: float, settings: Any) -> Finding:
        """Return the finding at the instant `now`. An incident stays open when its attempt has ended, until the next
        attempt begins or the run is over (incidents.py), and no other one begins then.
        """
        if not self.outlives and (state.lost or state.attempt.phase in ENDED):
            return UNKNOWN
        return self.evaluate(state, now, settings)

    def evaluate(self, state: RunState, now: float, settings: Any) -> Finding:
        """Return the finding at the instant `now`, without side effects."""
        raise NotImplementedError


class AttemptRule(Rule):
    """A rule whose memory is reset at each attempt."""

    attempt: int = 0
    """Number of the attempt."""
    handed_on: ClassVar[tuple[str, ...]] = ()
    """Fields that the next attempt's memory inherits."""

    @classmethod
    def ready(cls, state: RunState) -> Self:
        """Return the memory of the present attempt."""
        own, number = cls.of(state), state.attempt.number
        if own.attempt != number:
            handed_on = {each: getattr(own, each) for each in cls.handed_on}
            own = state.memory_of[cls.name] = cls(attempt=number, **handed_on)
        return own

    def finding(self, state: RunState, now: float, settings: Any) -> Finding:
        """Return the finding of the present attempt. What was found in an earlier one is over."""
        if self.attempt != state.attempt.number and not state.lost:
            return CLEAR
        return super().finding(state, now, settings)


def stated(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts without None values."""
    return {name: value for name, value in facts.items() if value is not None}


# --- texts ----------------------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """Return a duration in one unit: `38 s`, `12 min`, `2.9 h`, `3.4 days`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86400:.1f} days"


def percent(log_ratio: float) -> str:
    """Return a difference of logarithms as `+4.2 %`, or from a factor of three as `3.5 x`."""
    ratio = 2.718281828459045**log_ratio
    return f"{ratio:.1f} x" if ratio >= 3 else f"{100 * (ratio - 1):+.1f} %"


def rollback(attempt: Attempt, onset: int, samples_before: int | None, checkpoint: int | None) -> dict[str, Any]:
    """Return the facts for a rollback: the last checkpoint before the onset, the samples to skip."""
    facts: dict[str, Any] = {}
    if checkpoint is not None and checkpoint <= onset:
        facts["rollback_iteration"] = checkpoint
    if samples_before is not None:
        facts["samples_from"] = samples_before
        if attempt.latest.consumed_samples is not None:
            facts["samples_to"] = attempt.latest.consumed_samples
    return facts


def advice(facts: dict[str, Any]) -> str:
    """Return the facts of `rollback` as a sentence."""
    checkpoint, first, last = (facts.get(key) for key in ("rollback_iteration", "samples_from", "samples_to"))
    where = "a checkpoint from before" if checkpoint is None else f"the checkpoint of iteration {checkpoint}"
    text = f"go back to {where}"
    if first is not None and last is not None:
        text += f" and skip samples {first} to {last}"
    return text


# --- nodes ----------------------------------------------------------------------------------------------------------


def missing_evidence(state: RunState) -> dict[str, Any]:
    """Return the facts about missing ranks: ranks, nodes, collective; empty if unknown."""
    found = missing_ranks(state.attempt)
    if found is None:
        return {}
    nodes = nodes_of_ranks(state, found.ranks)
    facts: dict[str, Any] = {
        "ranks": list(found.ranks),
        "nodes": blamed(state),
        "collective": found.collective,
        "collective_group": found.group,
        "ranks_waiting": found.waiting,
        "missing": found.sentence(nodes),
        "missing_proof": found.proof,
    }
    return {name: value for name, value in facts.items() if value}
