"""A core with its optional parts, as the daemon has it, and each of them."""

from megatron_monitor.advice.extension import Advisor
from megatron_monitor.core import Core
from megatron_monitor.extensions import extend
from megatron_monitor.slurm.extension import SlurmJobs
from megatron_monitor.system.clock import SystemClock


def extended(core: Core) -> Core:
    """The core, with all of them; what they ask in threads is never asked."""
    extend(core, SystemClock())
    return core


def slurm(core: Core) -> SlurmJobs:
    """What asks Slurm."""
    (found,) = (one for one in core.extensions if isinstance(one, SlurmJobs))
    return found


def advisor(core: Core) -> Advisor:
    """What advises, and shows what the remediator did."""
    (found,) = (one for one in core.extensions if isinstance(one, Advisor))
    return found
