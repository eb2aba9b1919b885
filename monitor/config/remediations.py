"""The keys of `remediations:`: what is done about which incident. The defaults do nothing."""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from megatron_monitor import scalars
from megatron_monitor.detectors import IncidentKind
from megatron_monitor.parsers.events import Failure
from megatron_monitor.scalars import CommandLine, Name, Seconds

ActionType = Literal["dump_stacks", "cancel", "requeue", "resubmit", "drain"]
RESTARTS: Final = frozenset({"requeue", "resubmit"})
"""Actions that start the job again."""
ENDS: Final = frozenset({"cancel", "requeue"})
"""Actions that end the job."""
_WITH_COMMAND: Final = frozenset({"dump_stacks", "resubmit"})


class Action(Struct, frozen=True, kw_only=True):
    """One action on the job. `requeue` and `resubmit` exclude the nodes that the evidence names. `drain` keeps new jobs
    off these nodes until an operator resumes them, and needs the right of an operator in Slurm.
    """

    type: ActionType
    command: CommandLine = ()
    """For `dump_stacks`: the program that srun starts once on each node, such as deploy/slurm/dump-stacks.sh.
    For `resubmit`: the batch script and its arguments, as after `sbatch`.
    """

    def problems(self) -> scalars.Problems:
        """Yield what is wrong with the combination of values."""
        if self.type in _WITH_COMMAND and not self.command:
            yield "", "the key command is missing"
        if self.command and self.type not in _WITH_COMMAND:
            yield "command", f"is for {' and '.join(sorted(_WITH_COMMAND))}"


class Remediation(Struct, frozen=True, kw_only=True):
    """Actions for a critical incident, in this order."""

    name: Name
    incidents: Annotated[tuple[IncidentKind, ...], Meta(min_length=1)]
    """Incident kinds."""
    actions: Annotated[tuple[Action, ...], Meta(min_length=1)]
    dry_run: bool = True
    """True: the exact commands are shown and not executed."""
    runs: tuple[str, ...] = ()
    """Globs of run names. Empty: every run."""
    opt_in: bool = False
    """True: only jobs with the word `megatron-monitor` in `#SBATCH --comment`."""
    failures: tuple[Failure, ...] = ()
    """Causes of a crash. Empty: any cause."""
    after: Seconds = msgspec.field(default=300.0, name="for")
    """Seconds for which the incident must have been open and observed: some recover by themselves within minutes."""
    per_day: Annotated[int, Meta(ge=1)] = 2
    """Maximum executions per run in 24 hours: a third restart does not cure what two did not."""
    attempts: Annotated[int, Meta(ge=1)] = 3
    """Maximum restarts without a new checkpoint. Then the job is cancelled and not restarted."""

    @property
    def acts(self) -> bool:
        """True if an action ends or restarts the job."""
        return not (RESTARTS | ENDS).isdisjoint(kinds(self.actions))

    def problems(self) -> scalars.Problems:
        """Yield what is wrong with the combination of values."""
        found = kinds(self.actions)
        for kind in sorted({kind for kind in found if found.count(kind) > 1}):
            yield "actions", f"{kind} is given twice"
        if "requeue" in found and not {"cancel", "resubmit"}.isdisjoint(found):
            yield "actions", "requeue ends and restarts the job by itself: leave out cancel and resubmit"
        if {"cancel", "resubmit"} <= set(found) and found.index("cancel") > found.index("resubmit"):
            yield "actions", "cancel must come before resubmit, which waits for the end of the job"
        ends = [place for place, kind in enumerate(found) if kind in ENDS]
        if ends and "dump_stacks" in found[ends[0] :]:
            yield "actions", "dump_stacks needs a running job: it must come before the action that ends the job"


def kinds(actions: Sequence[Action]) -> list[ActionType]:
    """Return the type of each action."""
    return [action.type for action in actions]
