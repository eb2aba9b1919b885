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
"""How a run can end before it is done; the closed set of the label `failure`. `stopped`: by a person (Ctrl-C, scancel,
SIGTERM). `requeued`: put back into the queue by a person or a policy of the site, or nobody knows by what.
"""

Teller = Literal["slurm", "pbs", "lsf", "kernel", "driver", "launcher", "shell"]
"""Who tells of a failure, where it is not the program itself. `launcher`: torchrun, deepspeed, mpirun, a script."""

Notice = Literal["job_cancelled", "step_cancelled", "xid"]
"""A sentence of a fixed form that says more than its failure: Slurm cancelled the whole job or one step of it; the
NVIDIA driver numbered an error of a GPU.
"""

Role = Literal["trainer", "helper", "bystander", "launcher"]
"""Whose traceback it is. `trainer`: a program that trains; `helper`: another one of the job (data, copies);
`bystander`: one beside it (wandb, tensorboard); `launcher`: who started the processes, and says that one has ended.
"""

ExitReason = Literal["finished", "iterations", "duration", "signal", "kill_switch", "unknown"]


class ProgramExited(Event, frozen=True, kw_only=True, gc=False, tag="exit"):
    """The training loop ended by itself: a clean end."""

    reason: ExitReason
    iteration: int | None = None


class ProcessExited(Remark, frozen=True, kw_only=True, gc=False, tag="process_exit"):
    """A launcher saw one process end. A negative code is the signal."""

    exit_code: int | None = None
    pid: int | None = None
    local_rank: int | None = None
    tasks: str | None = None
    """Slurm's task list as printed, e.g. `0-1,3`."""
    ends_attempt: bool = False
    """True if the whole attempt has ended, according to the script or program that started it."""
    output_follows: bool = False
    """Output of the program follows that was held back until it had ended."""


class ProcessTerminated(Remark, frozen=True, kw_only=True, gc=False, tag="process_terminated"):
    """Processes were ended because something else had failed, or take their leave: a consequence, never the cause."""

    pid: int | None = None
    by_itself: bool = False
    """It takes its leave, well or not; nobody had to end it."""


class FailureSeen(Remark, frozen=True, kw_only=True, gc=False, tag="failure"):
    """A line that names a failure. `consequence` marks a victim (SIGTERM by torchrun): not the cause."""

    failure: Failure
    message: str
    fatal: bool = True
    """False where the text alone does not prove that the run ends."""
    consequence: bool = False
    exit_code: int | None = None
    requested_bytes: int | None = None
    device_bytes: int | None = None
    pattern: str | None = None
    """The configured pattern's name, for a site's own failures."""
    by: Teller | None = None
    notice: Notice | None = None
    raised: bool = False
    """It holds an exception's own words, where its teller mostly has an exit code alone."""


class WatchdogTimedOut(Event, frozen=True, kw_only=True, gc=False, tag="nccl_watchdog"):
    """PyTorch's NCCL watchdog gave up on a collective. `group_rank` counts within the process group."""

    group_rank: int | None = None
    group: str | None = None
    sequence: int | None = None
    operation: str | None = None
    timeout_seconds: float | None = None
    waited_seconds: float | None = None


class CollectiveStatus(Remark, frozen=True, kw_only=True, gc=False, tag="nccl_status"):
    """How far a rank had come in a process group as a collective timed out, there or on another rank. `work` is the one
    that it gave up waiting for; all are counted within the group, `group` is the name that its ranks share.
    """

    group: str | None = None
    group_name: str | None = None
    group_rank: int | None = None
    work: int | None = None
    enqueued: int
    completed: int


class TracebackSeen(Remark, frozen=True, kw_only=True, gc=False, tag="traceback"):
    """The last line of a Python traceback. One of a chain is told each; the one that came out is the last."""

    exception: str
    message: str
    script: str | None = None
    """The file of the outermost frame, where it was seen; that of `python -m` is the module's."""
    top_level: bool | None = None
    """True if it begins at a program's own module: nobody has caught it."""
    root: str | None = None
    """The last line of the exception that the chain began with; None where it is no chain, or its first."""
    role: Role | None = None
    """Whose program it is of; None where no frame was seen."""
    failure: Failure | None = None
    """The cause that its class or text names: memory, a GPU, a disk, NCCL, a signal. None: an exception like others."""
    signal: int | None = None
    """The signal that ended torchrun's agent, as its SignalException says."""
    optional: bool = False
    """It is of an import, which a program may do without."""
    lost_peer: bool = False
    """Its rank lost another one: a consequence."""
