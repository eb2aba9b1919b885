"""Launchers: deepspeed, torchrun, torch.distributed.launch, mpirun, bash. They see processes begin and end.

What they kill because something else failed is a consequence: 256 lines of `Killing subprocess` follow one scancel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from parsers.engine.prefixes import iso_time
from parsers.engine.scan import Gatherer, Line, Rule
from parsers.events import (
    Event,
    Failure,
    FailureSeen,
    MilestoneReached,
    ProcessExited,
    ProcessTerminated,
    TopologyLogged,
)

_BLOCK_LINES = 120  # of a torchrun report that other ranks' lines may stand between

# `nnodes=2, num_local_procs=8, node_rank=1`
_NODES = re.compile(r"nnodes=(\d{1,6}), num_local_procs=(\d{1,6}), node_rank=\d{1,6}")
# `dist_world_size=16`
_WORLD = re.compile(r"dist_world_size=(\d{1,7})")
# `Killing subprocess 35155`; `Main process received SIGTERM, exiting`
_KILLING = re.compile(r"Killing subprocess (\d{1,10})")
# `['/opt/python', '-u', 'x.py'] exits with return code = -9`
_RETURNED = re.compile(r"exits with return code = (-?\d{1,5})")
# `Process 115977 exits successfully.`
_SUCCESS = re.compile(r"Process (\d{1,10}) exits successfully")
# `Sending process 291888 closing signal SIGTERM`
_CLOSING = re.compile(r"Sending process (\d{1,10}) closing signal SIG\w{2,8}")
# `failed (exitcode: 1) local_rank: 1 (pid: 3677234) of binary: /usr/bin/python3`
_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,6}) \(pid: (\d{1,10})\)")
_ROOT_CAUSE = "Root Cause (first observed failure):"
# `  host      : nid006913`, `  exitcode  : 1 (pid: 194956)`
_BLOCK_FIELD = re.compile(r"^[ ]{1,8}(time|host|rank|exitcode|traceback)[ ]{1,8}:[ ](.{0,300})$")
# `mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).`
_MPI = re.compile(r"process rank (\d{1,7}) with PID \d{1,10} on node (\S{1,80}) exited on signal (\d{1,3})")
# `MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD`
_MPI_ABORT = re.compile(r"MPI_ABORT was invoked on rank (\d{1,7})")
# `/var/spool/slurmd/job1/slurm_script: line 28:  8156 Killed                  python3 pretrain_gpt.py`
_SHELL = re.compile(r"line \d{1,6}:[ ]{1,4}(\d{1,10}) (Killed|Segmentation fault|Bus error|Aborted)\b")
_SHELL_FAILURES: dict[str, Failure] = {
    "Killed": "killed",
    "Segmentation fault": "segfault",
    "Bus error": "bus_error",
    "Aborted": "unknown",
}

_BY_SIGNAL: dict[int, Failure] = {9: "killed", 11: "segfault", 7: "bus_error", 10: "bus_error"}


def failure_of(exit_code: int) -> Failure:
    """The failure that an exit status tells: negative or above 128 is a signal."""
    signal = -exit_code if exit_code < 0 else exit_code - 128 if exit_code > 128 else 0
    if signal:
        return _BY_SIGNAL.get(signal, "unknown")
    return "python_exception" if exit_code == 1 else "unknown"


def _is_victim(exit_code: int) -> bool:
    """SIGTERM is what launchers send to the others."""
    return exit_code in (-15, 143)


def read_deepspeed(line: Line) -> Iterator[Event]:
    """DeepSpeed's runner and launch, and torch.distributed.launch, from which they came."""
    text, origin = line.text, line.origin
    if match := _NODES.search(text):
        yield TopologyLogged(nodes=int(match[1]), processes_per_node=int(match[2]), **origin)
    elif match := _WORLD.search(text):
        yield TopologyLogged(world_size=int(match[1]), **origin)
    elif text.startswith("cmd = ") and "runner.py" in (line.prefix.location or ""):
        yield MilestoneReached(milestone="launched", **origin)
    elif "Main process received SIGTERM, exiting" in text:
        yield ProcessTerminated(**origin)
    elif match := _SUCCESS.search(text):
        yield ProcessExited(exit_code=0, pid=int(match[1]), **origin)
    elif match := _RETURNED.search(text):
        code = int(match[1])
        if code:
            message = f"a process exited with return code {code}"
            yield FailureSeen(
                failure=failure_of(code), message=message, exit_code=code, consequence=_is_victim(code), **origin
            )
        yield ProcessExited(exit_code=code, **origin)


def read_killing(line: Line) -> Iterator[Event]:
    """launch.py ends the other processes of its node; torchrun's agent those of its worker group."""
    if match := _KILLING.search(line.text) or _CLOSING.search(line.text):
        yield ProcessTerminated(pid=int(match[1]), **line.origin)


def read_torchrun(line: Line) -> Iterator[Event | Gatherer]:
    """Torchrun's agent: who failed, who was ended for it."""
    text, origin = line.text, line.origin
    if _ROOT_CAUSE in text:
        yield RootCauseGatherer()
    elif match := _FAILED.search(text):
        code = int(match[1])
        yield FailureSeen(
            failure=failure_of(code),
            message=f"local rank {match[2]} failed with exit code {code}",
            exit_code=code,
            consequence=_is_victim(code),
            **origin,
        )
        yield ProcessExited(exit_code=code, local_rank=int(match[2]), pid=int(match[3]), **origin)
    elif "worker group" in text and "will restart" in text:
        yield ProcessTerminated(**origin)


@dataclass(slots=True)
class RootCauseGatherer:
    """torchrun's block: `[0]:` and named lines under `Root Cause (first observed failure):`."""

    fields: dict[str, str] = field(default_factory=dict)
    lines: int = 0

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """Take the named lines; the traceback's is the last."""
        self.lines += 1
        match = _BLOCK_FIELD.match(line.text)
        if match:
            self.fields.setdefault(match[1], match[2].strip())
            if match[1] == "traceback":
                return self.close(), True, True
            return [], True, False
        return (self.close(), False, True) if self.lines > _BLOCK_LINES else ([], False, False)

    def close(self) -> list[Event]:
        """The failure that the block names."""
        code_text = self.fields.get("exitcode", "").split(" ", 1)[0]
        if not code_text.lstrip("-").isdigit():
            return []
        code = int(code_text)
        rank = self.fields.get("rank", "").split(" ", 1)[0]
        victim = _is_victim(code) or "Signal 15" in self.fields.get("traceback", "")
        when = self.fields.get("time")
        event = FailureSeen(
            failure=failure_of(code),
            message=f"torchrun: first failure on rank {rank or '?'}, exit code {code}",
            consequence=victim,
            exit_code=code,
            rank=int(rank) if rank.isdigit() else None,
            node=self.fields.get("host"),
            logged_at=iso_time(when.replace("_", " ")) if when else None,
        )
        return [event]


def read_other(line: Line) -> Iterator[Event]:
    """Mpirun and the shell."""
    text = line.text
    if match := _MPI.search(text):
        code = -int(match[3])
        origin = {**line.origin, "rank": int(match[1]), "node": match[2]}
        yield FailureSeen(
            failure=failure_of(code),
            message=f"mpirun: rank {match[1]} exited on signal {match[3]}",
            exit_code=code,
            consequence=_is_victim(code),
            **origin,
        )
    elif match := _MPI_ABORT.search(text):
        yield FailureSeen(
            failure="unknown", message=f"MPI_ABORT on rank {match[1]}", **{**line.origin, "rank": int(match[1])}
        )
    elif match := _SHELL.search(text):
        failure = _SHELL_FAILURES[match[2]]
        yield FailureSeen(failure=failure, message=f"process {match[1]}: {match[2]}", **line.origin)


RULES: tuple[Rule, ...] = (
    Rule("launcher.killing", (b"Killing subprocess", b"closing signal SIG"), read_killing, templated=True),
    Rule(
        "launcher.deepspeed",
        (b"num_local_procs=", b"dist_world_size=", b"runner.py", b"received SIGTERM, exiting",
         b"exits successfully", b"exits with return code"),
        read_deepspeed,
    ),
    Rule(
        "launcher.torchrun",
        (b"Root Cause (first", b"failed (exitcode:", b"will restart"),
        read_torchrun,
    ),
    Rule("launcher.other", (b"with PID ", b"MPI_ABORT was invoked", b": line "), read_other),
)  # fmt: skip
GATHERERS = {"launcher.torchrun": RootCauseGatherer}
