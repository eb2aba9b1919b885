"""Reads the frame in which MPICH and Intel MPI report how a process ended. launchers.yaml reads other launchers."""

from collections.abc import Iterator

from megatron_monitor.parsers.declared.failures import SIGNALS
from megatron_monitor.parsers.declared.schema import EndSpec
from megatron_monitor.parsers.engine.scan import Gatherer, Line, Rule
from megatron_monitor.parsers.events import Event, ProcessExited
from megatron_monitor.parsers.patterns import lazy

_FRAME_LINES = 8  # lines of MPICH's report

# MPICH and Intel: `=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES`, and below it `=   RANK 3 PID 4242 RUNNING
# AT n1`, `=   EXIT CODE: 9`, `=   KILLED BY SIGNAL: 9 (Killed)`
_HYDRA = "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"
_HYDRA_WHERE = lazy(r"^=[ ]{1,6}(?:RANK (\d{1,7}) )?PID \d{1,10} RUNNING AT (\S{1,80})")
_HYDRA_HOW = lazy(r"^=[ ]{1,6}(EXIT CODE|EXIT STATUS|KILLED BY SIGNAL): (\d{1,3})")

_ENDED = EndSpec(message="mpiexec: a process ended by signal {number}")


class HydraGatherer(Gatherer):
    """The frame of `=`: which process ended, where, and how."""

    rank: int | None = None
    node: str | None = None
    lines: int = 0

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """The line with the exit code or signal ends the frame."""
        self.lines += 1
        if match := _HYDRA_WHERE.match(line.text):
            self.rank, self.node = int(match[1]) if match[1] else None, match[2]
            return [], True, False
        if match := _HYDRA_HOW.match(line.text):
            number = int(match[2])
            code = -number if match[1] == "KILLED BY SIGNAL" or number in SIGNALS else number
            origin = {**line.origin, "rank": self.rank, "node": self.node}
            return [*_ENDED.event(code, {}, origin), ProcessExited(exit_code=code, **origin)], True, True
        return [], False, self.lines > _FRAME_LINES

    def close(self) -> list[Event]:
        """Return that a process ended, even if the frame is incomplete."""
        return [ProcessExited(rank=self.rank, node=self.node)]


def read_mpi(line: Line) -> Iterator[Event | Gatherer]:
    """Open MPICH's report."""
    if _HYDRA in line.text:
        yield HydraGatherer()


RULES: tuple[Rule, ...] = (Rule("launcher.mpi", (b"BAD TERMINATION OF",), read_mpi, opens=HydraGatherer),)
