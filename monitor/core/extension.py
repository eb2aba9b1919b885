"""The interface of optional parts of a core, such as Slurm and remediation. The core imports none of them.

A part defines a subclass in its own package; monitor/extensions.py finds those that are installed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from megatron_monitor.config import Config
from megatron_monitor.core.runs import Run
from megatron_monitor.incidents import Transition


class Extension:
    """An optional part of one core, called by the loop's thread. A hook that is not overridden does nothing.

    Instants are those of the core. Within a turn of the loop the order is: look, before_judgement for each
    run that is due, announce for each transition, act.
    """

    def configure(self, config: Config) -> None:
        """Use another configuration."""

    def look(self, now: float) -> None:
        """Process answers and ask questions, before the runs are evaluated."""

    def before_judgement(self, run: Run, now: float) -> None:
        """Called before a run is evaluated."""

    def announce(self, run: Run, transition: Transition, now: float) -> Transition:  # noqa: ARG002
        """Return the message of an incident that begins firing, perhaps with more evidence."""
        return transition

    def act(self, now: float) -> Sequence[Transition]:  # noqa: ARG002
        """Act on the evaluation. Return further messages."""
        return ()

    def shown_run(self, run: Run, now: float) -> Mapping[str, Any]:  # noqa: ARG002
        """Return fields of the run's RunSnapshot."""
        return {}

    def offered(self) -> None:
        """Called when the present state of the core is given to be saved."""

    def saved(self) -> None:
        """Called once the state that was offered last is on disk, or if there is no state directory."""

    def stop(self) -> None:
        """End the threads of this part."""
