"""The optional part of a core that asks Slurm about its runs' jobs."""

from megatron_monitor.core import Core
from megatron_monitor.core.extension import Runtime
from megatron_monitor.slurm.jobs import SlurmJobs


def for_core(core: Core, runtime: Runtime) -> SlurmJobs:
    """Return the extension of a core. Its client's thread starts with the first question."""
    return SlurmJobs(core, runtime.clock)
