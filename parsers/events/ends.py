"""How processes, attempts and collectives end or fail."""

from typing import Literal

from megatron_monitor.parsers.events.base import Event, Remark

Failure = Literal[
    "cuda_oom",
    "host_oom",
    "nccl",
    "cuda_error",
    "ecc",
    "bus_error",
    "segfault",
    "python_exception",
    "node_failure",
    "time_limit",
    "preempted",
    "requeued",
    "disk_full",
    "nan_loss",
    "killed",
    "stopped",
    "unknown",
]
"""How a run can end before its training is complete: the values of the label `failure`. `stopped`: by a person (Ctrl-C,
scancel, SIGTERM). `requeued`: put back into the queue by a person, a policy of the site or an unknown cause.
"""

Teller = Literal["slurm", "pbs", "lsf", "kernel", "driver", "launcher", "shell"]
"""The source of a failure report, if it is not the program itself. `launcher`: torchrun, deepspeed, mpirun, a
script.
"""

Notice = Literal["job_cancelled", "step_cancelled", "xid"]
"""A sentence with a fixed form that adds to its failure: Slurm cancelled the whole job or one step, or the NVIDIA
driver reported a GPU error with a number.
"""

Role = Literal["trainer", "helper", "bystander", "launcher"]
"""The program of a traceback. `trainer`: it trains. `helper`: another program of the job (data, copies). `bystander`:
wandb, tensorboard. `launcher`: it started the processes and reports that one ended.
"""

ExitReason = Literal["finished", "iterations", "duration", "signal", "kill_switch", "unknown"]


class ProgramExited(Event, frozen=True, kw_only=True, gc=False, tag="exit"):
    """The training loop ended by itself: a clean end."""

    reason: ExitReason
    iteration: int | None = None


class ProcessExited(Remark, frozen=True, kw_only=True, gc=False, tag="process_exit"):
    """A launcher reported that one process ended. A negative code is the signal."""

    exit_code: int | None = None
    tasks: str | None = None
    """Slurm's task list as printed, such as `0-1,3`."""
    ends_attempt: bool = False
    """True if the whole attempt has ended, according to the script or program that started it."""
    output_follows: bool = False
    """True if output of the program follows that the launcher held back until the program ended."""


class ProcessTerminated(Remark, frozen=True, kw_only=True, gc=False, tag="process_terminated"):
    """Processes were ended because something else failed, or exit by themselves: a consequence, never the cause."""

    by_itself: bool = False
    """True if the process exits by itself, with or without an error."""


class FailureSeen(Remark, frozen=True, kw_only=True, gc=False, tag="failure"):
    """A line that names a failure. `consequence`: a victim, such as a process that torchrun ended with SIGTERM."""

    failure: Failure
    message: str
    fatal: bool = True
    """False if the text alone does not prove that the run ends."""
    optional: bool | None = None
    """True if it ends a training only before the first iteration, and if nothing follows."""
    consequence: bool = False
    exit_code: int | None = None
    device_bytes: int | None = None
    pattern: str | None = None
    """For failures of a user's format: the name of the pattern."""
    by: Teller | None = None
    notice: Notice | None = None
    raised: bool = False
    """True if it has an exception's own text, although its source usually has only an exit code."""


class WatchdogTimedOut(Event, frozen=True, kw_only=True, gc=False, tag="nccl_watchdog"):
    """PyTorch's NCCL watchdog gave up on a collective. `group_rank` counts within the process group."""

    group_rank: int | None = None
    group: str | None = None
    sequence: int | None = None
    operation: str | None = None
    waited_seconds: float | None = None


class CollectiveStatus(Remark, frozen=True, kw_only=True, gc=False, tag="nccl_status"):
    """The progress of a rank in a process group when a collective timed out there or on another rank. `work` is the
    collective that it gave up waiting for. All numbers count within the group. `group` is the name that its ranks
    share.
    """

    group: str | None = None
    group_name: str | None = None
    group_rank: int | None = None
    work: int | None = None
    enqueued: int


class TracebackSeen(Remark, frozen=True, kw_only=True, gc=False, tag="traceback"):
    """The last line of a Python traceback. Each exception of a chain gives one; the uncaught one is the last."""

    exception: str
    message: str
    top_level: bool | None = None
    """True if the traceback begins at a program's own module, so that nothing caught the exception."""
    role: Role | None = None
    """The program that it belongs to. None: no frame was seen."""
    failure: Failure | None = None
    """The cause that its class or text names: memory, a GPU, a disk, NCCL, a signal. None: another exception."""
    signal: int | None = None
    """The signal that ended torchrun's agent, according to its SignalException."""
    optional: bool = False
    """True for a failed import, which may be optional."""
    lost_peer: bool = False
    """True if its rank lost contact with another rank: a consequence."""
