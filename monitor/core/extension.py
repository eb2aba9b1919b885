"""What an optional part adds to a core: Slurm, remediation. The core imports none of them.

A part defines a subclass in its own package; monitor/extensions.py finds those that are installed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from megatron_monitor.config import Config
from megatron_monitor.core.runs import Run
from megatron_monitor.incidents import Transition
from megatron_monitor.system.clock import Clock


class Runtime(NamedTuple):
    """What the loop around a core offers to its parts."""

    clock: Clock
    wake: Callable[[], None]
    """Makes the loop turn, from any thread."""
    save: Callable[[], None]
    """What has changed is saved at the next turn."""


class Extension:
    """One part at one core, for the loop's thread. A hook that a part does not override does nothing.

    Instants are those of the core. Within a turn of the loop the order is: look, before_judgement and judged for each
    run that is due, announce for each transition, act.
    """

    name = ""
    """Names its part of the state file. Empty: it keeps nothing over a restart."""
    changed = False
    """What it keeps is newer than what was saved."""
    stamp = 0
    """The number of its last change that must be on the disk before it takes effect."""
    saved = 0
    """Changes up to this number are on the disk."""
    kept = True
    """Is there a state directory?"""

    def configure(self, config: Config) -> None:
        """Go on by another configuration."""

    def look(self, now: float) -> None:
        """Take answers and ask questions, before the runs are judged."""

    def before_judgement(self, run: Run, now: float) -> None:
        """The run is about to be judged."""

    def evaluated(self, run: Run) -> None:
        """The run was judged."""

    def announce(self, run: Run, transition: Transition, now: float) -> Transition:  # noqa: ARG002
        """What people are told when an incident begins firing; may add to its evidence."""
        return transition

    def act(self, now: float) -> Sequence[Transition]:  # noqa: ARG002
        """Work on what was judged; what people are told of it."""
        return ()

    def shown_run(self, run: Run, now: float) -> Mapping[str, Any]:  # noqa: ARG002
        """Fields of the run's RunSnapshot."""
        return {}

    def save(self) -> bytes:
        """What a restart needs."""
        return b""

    def restore(self, data: bytes) -> None:
        """Take what an earlier daemon saved. Raises msgspec.MsgspecError if it does not fit."""

    def stop(self) -> None:
        """End its threads."""
