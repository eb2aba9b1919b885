"""Launchers: deepspeed, torch.distributed.launch, pdsh, mpirun, Primus, bash (torchrun.py: torchrun). They see
processes end.

What they kill because something else failed is a consequence: 256 lines of `Killing subprocess` follow one scancel.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from parsers.engine.scan import Gatherer, Line, Rule
from parsers.events import (
    Event,
    FailureSeen,
    MilestoneReached,
    ProcessExited,
)
from parsers.formats.exits import SIGNALS, ended_by, failed, signal_in
from parsers.patterns import lazy
from parsers.wrappers import MONTHS

_FRAME_LINES = 8  # of MPICH's report
_SENTENCE = 300  # characters of a script's own line at most

# `['/opt/python', '-u', 'x.py'] exits with return code = -9`
_RETURNED = lazy(r"exits with return code = (-?\d{1,5})")
# `pdsh@head: node02: ssh exited with exit code 1`
_PDSH = lazy(r"pdsh@\S{1,80}: (\S{1,80}): ssh exited with exit code (\d{1,3})")
# `[NODE-0(host)] [ERROR] primus launcher exited with code 1`
_LAUNCHER = lazy(r"^(?:\[[^\]]{1,80}\] ?){0,4}\w{1,40} launcher exited with code (-?\d{1,3})\.?$")
# `mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).`
_MPI = lazy(r"process rank (\d{1,7}) with PID \d{1,10} on node (\S{1,80}) exited on signal (\d{1,3})")
# `  Exit code:    1` under it
_MPI_CODE = lazy(r"^[ ]{2,4}Exit code:[ ]{1,8}(\d{1,3})$")
# MPICH and Intel: `=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES`, and in the lines under it
# `=   RANK 3 PID 4242 RUNNING AT n1`, `=   EXIT CODE: 9`, `=   KILLED BY SIGNAL: 9 (Killed)`
_HYDRA = "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"
_HYDRA_WHERE = lazy(r"^=[ ]{1,6}(?:RANK (\d{1,7}) )?PID \d{1,10} RUNNING AT (\S{1,80})")
_HYDRA_HOW = lazy(r"^=[ ]{1,6}(EXIT CODE|EXIT STATUS|KILLED BY SIGNAL): (\d{1,3})")
# Cray PALS: `x3006c0s13b0n0.hsn.cm: rank 3 exited with code 1`, `rank 0 died from signal 9`, `shepherd died from ...`
_PALS = lazy(
    r"^(?:(\S{1,100}): )?(?:rank (\d{1,7})|shepherd) (?:exited with code (\d{1,3})|died from signal (\d{1,2}))\b"
)
# `/var/spool/slurmd/job1/slurm_script: line 28:  8156 Killed                  python3 pretrain_gpt.py`; a shell that
# runs no script writes the word alone
_SHELL = lazy(
    r"(?:line \d{1,6}:[ ]{1,4}(\d{1,10}) |^)(Killed|Terminated|Segmentation fault|Bus error|Aborted|Hangup|Interrupt"
    r"|Quit|Illegal instruction|Floating point exception|Trace/breakpoint trap|User defined signal [12]|Broken pipe"
    r"|Alarm clock|CPU time limit exceeded|File size limit exceeded)\b"
    r"(?:[ ]{0,20}\(core dumped\))?(.*)$"  # behind it the whole command, with all its arguments
)
# A script's words for a launch: `[Sun May 10 01:54:52 UTC 2026] SFT attempt #1 rc=1 last_step=40`, `training exited
# with code 1`, `run_1: exit code = 137`, `pretrain failed with exit status 1`
_SCRIPT = lazy(
    r"\b(?:rc|RC|exit[ _-]?code|EXIT[ _]?CODE|exit[ _-]?status|exited with|(?:exited|failed|finished|ended) with code)"
    r"(?:[ ]?[:=][ ]?|[ ])(-?\d{1,3})\b"
)
# `[Sat May  9 08:24:18 PM UTC 2026] SFT attempt #2 (disk free: 61GB)`: `date` in a script's own line, and a new try
_DATE = lazy(
    r"^[ ]{0,4}\[?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(\d{1,2}) "
    r"(\d\d):(\d\d:\d\d)(?: ([AP])M)?(?: [A-Z]{1,5})? (\d{4})\]?:? "
)
_ATTEMPT = lazy(r"\battempt #?(\d{1,4})\b(?!.{0,200}\b(?:rc=|exit|fail|done|succe))", re.IGNORECASE)
_LAUNCHES = lazy(
    r"\b(?:attempt|run|job|launch|launcher|train|training|pretrain|pretraining|finetune|torchrun|srun|deepspeed|mpirun)"
    r"(?:_\w{1,20})?\b"
    r"|\b(?:pre|fine)?train\w{0,20}\.(?:py|sh)\b|\blast_step=",
    re.IGNORECASE,
)


def read_deepspeed(line: Line) -> Iterator[Event]:
    """DeepSpeed's runner and launch, and torch.distributed.launch, from which they came."""
    text, origin = line.text, line.origin
    if text.startswith("cmd = ") and "runner.py" in (line.prefix.location or ""):
        yield MilestoneReached(milestone="launched", **origin)
    elif match := _RETURNED.search(text):
        code = int(match[1])
        if code:
            yield failed(code, f"a process exited with return code {code}", origin)
        yield ProcessExited(exit_code=code, **origin)


class HydraGatherer(Gatherer):
    """MPICH's and Intel's frame of `=`: who ended, where, and how."""

    rank: int | None = None
    node: str | None = None
    lines: int = 0

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """The line that says how ends it."""
        self.lines += 1
        if match := _HYDRA_WHERE.match(line.text):
            self.rank, self.node = int(match[1]) if match[1] else None, match[2]
            return [], True, False
        if match := _HYDRA_HOW.match(line.text):
            number = int(match[2])
            code = -number if match[1] == "KILLED BY SIGNAL" or number in SIGNALS else number
            return _ended("mpiexec", code, {**line.origin, "rank": self.rank, "node": self.node}), True, True
        return [], False, self.lines > _FRAME_LINES

    def close(self) -> list[Event]:
        """It says that a process ended, however little of it was written."""
        return [ProcessExited(rank=self.rank, node=self.node)]


def _ended(who: str, code: int, origin: dict[str, Any], *, launch: bool = False) -> list[Event]:
    """A process, or the launch, ended with this code."""
    exited = ProcessExited(exit_code=code, launch=launch, **origin)
    if not (signal := signal_in(code)):
        return [exited]
    return [failed(code, f"{who}: a process ended by signal {signal}", origin), exited]


def read_mpi(line: Line) -> Iterator[Event | Gatherer]:
    """Open MPI's, MPICH's, Intel's and Cray's mpirun."""
    text = line.text
    if _HYDRA in text:
        yield HydraGatherer()
    elif match := _MPI_CODE.match(text):
        yield from _ended("mpirun", int(match[1]), line.origin)
    elif match := _PALS.match(text):
        code = int(match[3]) if match[3] else -int(match[4])
        origin = {**line.origin, "rank": int(match[2]) if match[2] else None, "node": match[1] or line.prefix.node}
        yield from _ended(f"mpiexec: rank {match[2]}" if match[2] else "mpiexec's shepherd", code, origin)


def read_launch(line: Line) -> Iterator[Event]:
    """What the program or the script that started the launch says of its end."""
    text = line.text
    stamped = _DATE.match(text)
    if stamped:
        origin = {**line.origin, "logged_at": _date(stamped)}
        if _ATTEMPT.search(text[:400]):
            yield MilestoneReached(milestone="launched", **origin)
            return
        line = Line(text[stamped.end() :], replace(line.prefix, logged_at=origin["logged_at"]))
    if match := _PDSH.search(text):
        yield from _ended("pdsh", int(match[2]), {**line.origin, "node": match[1]})
    elif match := _LAUNCHER.match(text.strip()):
        yield from _ended("the launcher", int(match[1]), line.origin, launch=True)
    elif len(text) <= _SENTENCE and (match := _SCRIPT.search(text)) and _LAUNCHES.search(text):
        code = int(match[1])
        if code or "last_step=" in text or "attempt" in text.lower():  # a helper's success is no end
            yield from _ended("the script", code, line.origin, launch=True)


def _date(match: re.Match[str]) -> str:
    month, day, hour, rest, half, year = match.groups()
    hours = int(hour) % 12 + 12 * (half == "P") if half else int(hour)
    return f"{year}-{MONTHS.index(month) + 1:02}-{int(day):02}T{hours:02}:{rest}"


def read_other(line: Line) -> Iterator[Event]:
    """Mpirun and the shell."""
    text = line.text
    if match := _MPI.search(text):
        code = -int(match[3])
        origin = {**line.origin, "rank": int(match[1]), "node": match[2]}
        yield failed(code, f"mpirun: rank {match[1]} exited on signal {match[3]}", origin)
        yield ProcessExited(exit_code=code, **origin)
    elif (match := _SHELL.search(text)) and (match[1] or not match[3].strip()):
        failure, consequence = ended_by(match[2]) or ("unknown", False)
        who = f"process {match[1]}" if match[1] else "the shell"
        yield FailureSeen(
            failure=failure, message=f"{who}: {match[2]}", consequence=consequence, by="shell", **line.origin
        )
        yield ProcessExited(pid=int(match[1]) if match[1] else None, **line.origin)


RULES: tuple[Rule, ...] = (
    Rule("launcher.deepspeed", (b"runner.py", b"exits with return code"), read_deepspeed),
    Rule(
        "launcher.mpi",
        (b"BAD TERMINATION OF", b" Exit code: ", b": rank ", b"exited with code ", b"died from signal "),
        read_mpi, opens=HydraGatherer,
    ),
    Rule(
        "launcher.other",
        (b"with PID ", b": line ", b"Killed", b"Terminated", b"Segmentation fault",
         b"Bus error", b"Aborted", b"Hangup"),
        read_other,
    ),
    Rule(
        "launcher.launch",
        (b"ssh exited with exit code", b"launcher exited with code", b"rc=", b"RC=", b"exit code", b"exit_code",
         b" attempt ", b"exit status", b"EXIT CODE", b"EXIT_CODE", b"Exit code", b" with code ", b"exited with "),
        read_launch,
    ),
)  # fmt: skip
