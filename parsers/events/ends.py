"""How processes, launches and collectives end or fail."""

from __future__ import annotations

from typing import ClassVar, Literal

from parsers.events.base import Event

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
    "disk_full",
    "killed",
    "stopped",
    "unknown",
]
"""How a run can end before it is done; the closed set of the label `failure`. `stopped`: by a person (Ctrl-C, scancel,
SIGTERM).
"""

ExitReason = Literal["finished", "iterations", "duration", "signal", "kill_switch", "unknown"]


class ProgramExited(Event, frozen=True, kw_only=True, gc=False):
    """The training loop ended by itself: a clean end."""

    kind: ClassVar[str] = "exit"

    reason: ExitReason
    iteration: int | None = None


class ProcessExited(Event, frozen=True, kw_only=True, gc=False):
    """A launcher saw one process end. A negative code is the signal."""

    kind: ClassVar[str] = "process_exit"
    proves_training: ClassVar[bool] = False

    exit_code: int | None = None
    pid: int | None = None
    local_rank: int | None = None
    tasks: str | None = None
    """Slurm's task list as printed, e.g. `0-1,3`."""
    launch: bool = False
    """The whole launch has ended: the script or the program that started it says so."""


class ProcessTerminated(Event, frozen=True, kw_only=True, gc=False):
    """A launcher or scheduler ended processes because something else had failed: a consequence, never the cause."""

    kind: ClassVar[str] = "process_terminated"
    proves_training: ClassVar[bool] = False

    pid: int | None = None


class FailureSeen(Event, frozen=True, kw_only=True, gc=False):
    """A line that names a failure. `consequence` marks a victim (SIGTERM by torchrun): not the cause."""

    kind: ClassVar[str] = "failure"
    proves_training: ClassVar[bool] = False

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


class WatchdogTimedOut(Event, frozen=True, kw_only=True, gc=False):
    """PyTorch's NCCL watchdog gave up on a collective. `group_rank` counts within the process group."""

    kind: ClassVar[str] = "nccl_watchdog"

    group_rank: int | None = None
    group: str | None = None
    sequence: int | None = None
    operation: str | None = None
    timeout_seconds: float | None = None
    waited_seconds: float | None = None


class CollectiveStatus(Event, frozen=True, kw_only=True, gc=False):
    """How far a rank had come in a process group as a collective timed out, there or on another rank. `work` is the one
    that it gave up waiting for; all are counted within the group, `group` is the name that its ranks share.
    """

    kind: ClassVar[str] = "nccl_status"
    proves_training: ClassVar[bool] = False

    group: str | None = None
    group_name: str | None = None
    group_rank: int | None = None
    work: int | None = None
    enqueued: int
    completed: int


class TracebackSeen(Event, frozen=True, kw_only=True, gc=False):
    """The last line of a Python traceback. It may belong to a helper (wandb): the run decides."""

    kind: ClassVar[str] = "traceback"
    proves_training: ClassVar[bool] = False

    exception: str
    message: str
    script: str | None = None
    """The file of the outermost frame, where it was seen."""
    top_level: bool | None = None
    """True if it begins at a program's own module: nobody has caught it."""
