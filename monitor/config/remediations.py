"""The keys of `remediations:`: when what is done. Each default errs towards doing nothing."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta, Struct

from megatron_monitor import scalars
from megatron_monitor.detectors import IncidentKind
from megatron_monitor.parsers.events import Failure
from megatron_monitor.scalars import CommandLine, Name
from megatron_monitor.units import Seconds

ActionType = Literal["dump_stacks", "cancel", "requeue", "resubmit", "drain"]
RESTARTS: Final = frozenset({"requeue", "resubmit"})
"""Actions that start the job anew."""
ENDS: Final = frozenset({"cancel", "requeue"})
"""Actions that end the job."""
_WITH_COMMAND: Final = frozenset({"dump_stacks", "resubmit"})


class Action(Struct, frozen=True, kw_only=True):
    """What is done to the job. `requeue` and `resubmit` leave out the nodes that the evidence names. `drain` keeps new
    jobs off these nodes until somebody resumes them: it needs an operator's right in Slurm.
    """

    type: ActionType
    command: CommandLine = ()
    """Of `dump_stacks`: the program that srun starts once on each node, such as deploy/slurm/dump-stacks.sh. Of
    `resubmit`: the batch script and its arguments, as they stand behind `sbatch`.
    """

    def problems(self) -> scalars.Problems:
        """What the values together have wrong."""
        if self.type in _WITH_COMMAND and not self.command:
            yield "", "the key command is missing"
        if self.command and self.type not in _WITH_COMMAND:
            yield "command", f"is for {' and '.join(sorted(_WITH_COMMAND))}"


class Remediation(Struct, frozen=True, kw_only=True):
    """On an incident that is critical: these actions, in this order."""

    name: Name
    incidents: Annotated[tuple[IncidentKind, ...], Meta(min_length=1)]
    """Incident kinds."""
    actions: Annotated[tuple[Action, ...], Meta(min_length=1)]
    dry_run: bool = True
    """What would be done is shown with the exact commands, and not done."""
    runs: tuple[str, ...] = ()
    """Globs over run names; none: every run."""
    opt_in: bool = False
    """Only jobs whose owner asks for it: `#SBATCH --comment=megatron-monitor`, a word of several."""
    failures: tuple[Failure, ...] = ()
    """Of a crash; none: any."""
    after: Seconds = msgspec.field(default=300.0, name="for")
    """How long the incident must have stood, and been watched: what recovers by itself does so within minutes."""
    per_day: Annotated[int, Meta(ge=1)] = 2
    """Times in 24 hours that it acts on one run: what two restarts did not mend, a third will not."""
    attempts: Annotated[int, Meta(ge=1)] = 3
    """Restarts without a new checkpoint; after that many the job is ended, and stays so."""

    RENAMED: ClassVar[Mapping[str, str]] = {"lasting": "for"}

    @property
    def acts(self) -> bool:
        """Does it end the job, or start it anew?"""
        return not (RESTARTS | ENDS).isdisjoint(kinds(self.actions))

    def problems(self) -> scalars.Problems:
        """What the values together have wrong."""
        found = kinds(self.actions)
        for kind in sorted({kind for kind in found if found.count(kind) > 1}):
            yield "actions", f"{kind} stands there twice"
        if "requeue" in found and not {"cancel", "resubmit"}.isdisjoint(found):
            yield "actions", "requeue ends and restarts the job by itself: leave out cancel and resubmit"
        if {"cancel", "resubmit"} <= set(found) and found.index("cancel") > found.index("resubmit"):
            yield "actions", "cancel stands behind resubmit, which waits for the end of the job"
        ends = [place for place, kind in enumerate(found) if kind in ENDS]
        if ends and "dump_stacks" in found[ends[0] :]:
            yield "actions", "dump_stacks needs the job running: it stands before what ends it"


def kinds(actions: Sequence[Action]) -> list[ActionType]:
    """The type of each."""
    return [action.type for action in actions]
