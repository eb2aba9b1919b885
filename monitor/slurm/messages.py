"""What crosses between the loop and the thread that asks Slurm: plain frozen values."""

from dataclasses import dataclass

from monitor.run.records import Job


@dataclass(frozen=True, slots=True)
class JobQuestion:
    """What is a run's job doing? `account`: asked of the accounting, which knows more of those that are over."""

    run: str
    job: str
    account: bool = False
    beside: bool = False
    """It may be another job that writes the same run."""
    launch: int | None = None
    """The run's launch when it was asked."""


@dataclass(frozen=True, slots=True)
class JobAnswered:
    """What Slurm said: `job`, or the `problem`; `gone`: Slurm answers and knows no such job."""

    question: JobQuestion
    job: Job | None = None
    problem: str = ""
    gone: bool = False
