"""What crosses between the loop and the executor: plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Order:
    """One step to be done now. The job must still be in the launch that the course was planned for."""

    course: int
    step: int
    run: str
    action: str
    commands: tuple[tuple[str, ...], ...]
    timeout: float | None
    directory: str | None
    job: str
    job_started_at: float | None
    job_restarts: int
    over: bool
    """The job had ended when this was planned."""
    check: bool
    """Slurm is asked first; not after a step of the same course that has ended the job."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """What became of an order."""

    course: int
    step: int
    ok: bool
    outcome: str
