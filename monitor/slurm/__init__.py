"""What Slurm says of a job, asked on a thread of its own: never more than one call a job an interval, none that hangs.

Here stands what crosses between the loop and that thread. `jobs` says which runs are asked about, `client` asks,
`replies` reads what scontrol and sacct print.
"""

from msgspec import Struct

from megatron_monitor.run.records import SlurmJob


class JobQuestion(Struct, frozen=True):
    """What is a run's job doing? `account`: asked of the accounting, which knows more of those that are over."""

    run: str
    job: str
    account: bool = False
    second_job: bool = False
    """It may be another job that writes the same run."""
    attempt: int | None = None
    """The run's attempt when it was asked."""


class JobAnswered(Struct, frozen=True):
    """What Slurm said: `job`, or the `problem`; `gone`: Slurm answers and knows no such job."""

    question: JobQuestion
    job: SlurmJob | None = None
    problem: str = ""
    gone: bool = False
