"""The optional part of a core that asks Slurm about its runs' jobs."""

from megatron_monitor.slurm.jobs import SlurmJobs

for_core = SlurmJobs
