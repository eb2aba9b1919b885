"""Asks Slurm about the jobs of runs, on a separate thread, at most once per job and interval.

`extension` decides which jobs are asked about, `client` runs scontrol and sacct, `replies` parses their output. This
module has the questions and answers that pass between the loop and the thread.
"""

from msgspec import Struct

from megatron_monitor.run.records import SlurmJob


class JobQuestion(Struct, frozen=True):
    """A question about a run's job. `account`: ask the accounting (sacct), which knows more about ended jobs."""

    run: str
    job: str
    account: bool = False
    second_job: bool = False
    """True: this may be another job that writes the same run."""
    attempt: int | None = None
    """Number of the run's attempt when the question was asked."""


class JobAnswered(Struct, frozen=True):
    """Slurm's answer: `job`, or the `problem`. `gone`: Slurm answers that it does not know the job."""

    question: JobQuestion
    job: SlurmJob | None = None
    problem: str = ""
    gone: bool = False
