"""The keys of `slurm:`: whether and how Slurm is asked about jobs."""

from msgspec import Struct

from megatron_monitor import scalars
from megatron_monitor.scalars import FilePath
from megatron_monitor.units import PositiveSeconds


class SlurmSettings(Struct, frozen=True, kw_only=True):
    """Whether and how Slurm is asked."""

    enabled: bool = True
    """Runs that are Slurm jobs are asked about; on a host without `scontrol` nothing happens."""
    interval: PositiveSeconds = 60.0
    """Between two questions about a job: slurmctld serves the whole cluster, and a minute is soon enough to act."""
    timeout: PositiveSeconds = 20.0
    """For one call: a controller that is being restarted answers within its own 10 s, or not at all."""
    directory: FilePath | None = None
    """Where scontrol, sacct, scancel, srun and sbatch are. None: in PATH."""
    job_from: scalars.Regex | None = None
    """A regular expression searched in the path; its group `job` is the id. None: the usual names."""

    def problems(self) -> scalars.Problems:
        """What the values together have wrong."""
        if self.job_from is not None and "job" not in scalars.compiled(self.job_from).groupindex:
            yield "job_from", "has no named group job, as in /(?P<job>[0-9]+)[.]out"
