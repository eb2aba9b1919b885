"""What the end of a process tells: its exit status, or how the C library names the signal that ended it."""

from collections.abc import Mapping
from typing import Any

from megatron_monitor.parsers.events import Failure, FailureSeen
from megatron_monitor.parsers.formats import TABLES

_BY_SIGNAL: dict[int, Failure] = {
    2: "stopped", 9: "killed", 11: "segfault", 7: "bus_error", 10: "bus_error", 15: "stopped",
}  # fmt: skip
SIGNALS = frozenset(_BY_SIGNAL)
"""Signals that have a failure of their own."""


def signal_in(exit_code: int) -> int | None:
    """The signal that ended the process: a negative code, or one above 128; what a bare exit code 1 is of stands
    elsewhere.
    """
    return -exit_code if exit_code < 0 else exit_code - 128 if exit_code > 128 else None


def failure_of(exit_code: int) -> Failure:
    """The failure that an exit status tells."""
    if signal := signal_in(exit_code):
        return _BY_SIGNAL.get(signal, "unknown")
    return "python_exception" if exit_code == 1 else "unknown"


def ended_by(signal: str) -> tuple[Failure, bool] | None:
    """What the C library's name of a signal (strsignal) tells, whatever stands behind it, and whether another line says
    why; None if it is none.
    """
    return next((tuple(ends) for name, ends in TABLES["signals"].items() if signal.startswith(name)), None)


def is_victim(exit_code: int) -> bool:
    """SIGTERM is what launchers send to the others."""
    return exit_code in (-15, 143)


def failed(exit_code: int, message: str, origin: Mapping[str, Any], **others: Any) -> FailureSeen:
    """A process that ended with this code. `others`: what is not as usual where a launcher tells of it."""
    told = {"consequence": is_victim(exit_code), "by": "launcher", **others, **origin}
    return FailureSeen(failure=failure_of(exit_code), message=message, exit_code=exit_code, **told)
