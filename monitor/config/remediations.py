"""The keys of `remediations:`: when what is done. Each default errs towards doing nothing."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from megatron_monitor import scalars
from megatron_monitor.detectors import IncidentKind
from megatron_monitor.detectors.base import Severity
from megatron_monitor.parsers.events import Failure
from megatron_monitor.run.phases import Phase
from megatron_monitor.scalars import CommandLine, FilePath, Name
from megatron_monitor.units import PositiveSeconds, Seconds

_Count = Annotated[int, Meta(ge=1)]


class DumpStacks(Struct, frozen=True, kw_only=True, tag_field="type", tag="dump_stacks"):
    """A program that srun starts once on each node of the job, beside it: py-spy, or what asks a flight recorder."""

    command: CommandLine
    """Program and arguments, such as deploy/slurm/dump-stacks.sh on a file system that the nodes see."""
    directory: FilePath | None = None
    """Where what it prints is kept, a file a dump. None: `stacks` below the state directory."""
    timeout: PositiveSeconds = 120.0
    """For all nodes: py-spy takes a second a process, srun some on a thousand nodes."""


class Signal(Struct, frozen=True, kw_only=True, tag_field="type", tag="signal"):
    """A signal to every process of the job's steps, which must handle it: Python ends on one that it does not."""

    signal: Literal["USR1", "USR2", "HUP", "QUIT"] = "USR1"
    """USR1: what `faulthandler.register` is usually given."""


class Notify(Struct, frozen=True, kw_only=True, tag_field="type", tag="notify"):
    """A message by these notifiers, whatever they want otherwise: to call somebody when trouble lasts."""

    to: Annotated[tuple[Name, ...], Meta(min_length=1)]


class Cancel(Struct, frozen=True, kw_only=True, tag_field="type", tag="cancel"):
    """The job is cancelled."""


class Requeue(Struct, frozen=True, kw_only=True, tag_field="type", tag="requeue"):
    """The job goes back into the queue, under its id and with its script."""

    exclude: bool = True
    """Without the nodes that the evidence names."""


class Resubmit(Struct, frozen=True, kw_only=True, tag_field="type", tag="resubmit"):
    """A new job, which begins when the old one has ended."""

    command: CommandLine
    """The batch script and its arguments, as they stand behind `sbatch`."""
    exclude: bool = True
    """Without the nodes that the evidence names."""


class Drain(Struct, frozen=True, kw_only=True, tag_field="type", tag="drain"):
    """Nodes of the job that the evidence names get no more jobs until somebody resumes them; what runs there goes on.
    It needs an operator's right in Slurm.
    """


Action = DumpStacks | Signal | Notify | Cancel | Requeue | Resubmit | Drain
RESTARTS = (Requeue, Resubmit)
ENDS = (Cancel, Requeue)


def restarts(actions: Sequence[Action]) -> list[Requeue | Resubmit]:
    """Those that start the job anew."""
    return [action for action in actions if isinstance(action, RESTARTS)]


class Remediation(Struct, frozen=True, kw_only=True):
    """On an incident: these actions, in this order."""

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
    phases: tuple[Phase, ...] = ()
    """In which the trouble began; none: in any. `training` is all parts of a step of reinforcement learning, too."""
    failures: tuple[Failure, ...] = ()
    """Of a crash; none: any."""
    minimum_severity: Severity = "critical"
    """An end that somebody planned is `info`: it is left alone."""
    after: Seconds = msgspec.field(default=300.0, name="for")
    """How long the incident must have stood, and been watched: what recovers by itself does so within minutes."""
    per_day: _Count = 2
    """Times in 24 hours that the remediation acts on one run: what two restarts did not mend, a third will not."""
    attempts: _Count = 3
    """Restarts without a new checkpoint; after that many the job is ended, and stays so."""
    most_excluded: Annotated[int, Meta(ge=0)] = 2
    """Nodes that are left out at most: where the evidence names more, none of them is the cause."""

    RENAMED: ClassVar[Mapping[str, str]] = {"lasting": "for"}

    @property
    def acts(self) -> bool:
        """Does it end the job, or start it anew?"""
        return any(isinstance(action, (*RESTARTS, *ENDS)) for action in self.actions)

    def problems(self) -> scalars.Problems:
        """What the values together have wrong."""
        kinds = [type(action) for action in self.actions]
        for kind in get_args(Action):
            if kinds.count(kind) > 1 and kind is not Notify:
                yield "actions", f"{kind.__struct_config__.tag} stands there twice"
        if Requeue in kinds and not {Cancel, Resubmit}.isdisjoint(kinds):
            yield "actions", "requeue ends and restarts the job by itself: leave out cancel and resubmit"
        if Cancel in kinds and Resubmit in kinds and kinds.index(Cancel) > kinds.index(Resubmit):
            yield "actions", "cancel stands behind resubmit, which waits for the end of the job"
        last = [place for place, kind in enumerate(kinds) if kind in ENDS]
        if last and not {DumpStacks, Signal}.isdisjoint(kinds[last[0] :]):
            yield "actions", "dump_stacks and signal need the job running: they stand before what ends it"
