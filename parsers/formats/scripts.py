"""What a site's own script says of a launch, and the frame in which MPICH tells how a process ended.

What launchers say in lines of a fixed form is data (launchers.yaml).
"""

import re
from collections.abc import Iterator
from typing import Any

from megatron_monitor.parsers.engine.scan import Gatherer, Line, Rule
from megatron_monitor.parsers.events import Event, MilestoneReached, ProcessExited
from megatron_monitor.parsers.formats.exits import SIGNALS
from megatron_monitor.parsers.formats.forms import EndSpec
from megatron_monitor.parsers.patterns import lazy
from megatron_monitor.parsers.wrappers import MONTHS

_FRAME_LINES = 8  # of MPICH's report
_SENTENCE = 300  # characters of a script's own line at most

# MPICH and Intel: `=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES`, and in the lines under it
# `=   RANK 3 PID 4242 RUNNING AT n1`, `=   EXIT CODE: 9`, `=   KILLED BY SIGNAL: 9 (Killed)`
_HYDRA = "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"
_HYDRA_WHERE = lazy(r"^=[ ]{1,6}(?:RANK (\d{1,7}) )?PID \d{1,10} RUNNING AT (\S{1,80})")
_HYDRA_HOW = lazy(r"^=[ ]{1,6}(EXIT CODE|EXIT STATUS|KILLED BY SIGNAL): (\d{1,3})")
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
    end = EndSpec(message=f"{who}: a process ended by signal {{number}}")
    return [*end.event(code, {}, origin), ProcessExited(exit_code=code, launch=launch, **origin)]


def read_mpi(line: Line) -> Iterator[Event | Gatherer]:
    """MPICH's report begins."""
    if _HYDRA in line.text:
        yield HydraGatherer()


def read_script(line: Line) -> Iterator[Event]:
    """What a script says of a launch, of its beginning or its end."""
    text, origin = line.text, line.origin
    if stamped := _DATE.match(text):
        origin = {**origin, "logged_at": _date(stamped)}
        if _ATTEMPT.search(text[:400]):
            yield MilestoneReached(milestone="launched", **origin)
            return
    if len(text) <= _SENTENCE and (match := _SCRIPT.search(text)) and _LAUNCHES.search(text):
        code = int(match[1])
        if code or "last_step=" in text or "attempt" in text.lower():  # a helper's success is no end
            yield from _ended("the script", code, origin, launch=True)


def _date(match: re.Match[str]) -> str:
    month, day, hour, rest, half, year = match.groups()
    hours = int(hour) % 12 + 12 * (half == "P") if half else int(hour)
    return f"{year}-{MONTHS.index(month) + 1:02}-{int(day):02}T{hours:02}:{rest}"


RULES: tuple[Rule, ...] = (
    Rule("launcher.mpi", (b"BAD TERMINATION OF",), read_mpi, opens=HydraGatherer),
    Rule(
        "launcher.launch",
        (b"rc=", b"RC=", b"exit code", b"exit_code", b" attempt ", b"exit status", b"EXIT CODE", b"EXIT_CODE",
         b"Exit code", b" with code ", b"exited with "),
        read_script,
    ),
)  # fmt: skip
