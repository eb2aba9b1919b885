"""Names the failure behind a text or an exit status: the last line of a Python traceback, a process's exit code, the C
library's name of a signal.

Parsers decide this, so that the code that judges a run reads fields and never text.
"""

import re
import signal
from collections.abc import Collection

from megatron_monitor.parsers.declared import TABLES
from megatron_monitor.parsers.engine.fields import byte_size
from megatron_monitor.parsers.events import Failure, Role
from megatron_monitor.parsers.patterns import lazy, patterned
from megatron_monitor.parsers.tables import table_in

# `RuntimeError: message`, `torch.cuda.OutOfMemoryError: ...`, `KeyboardInterrupt`
_EXCEPTION = lazy(
    r"^(?:\w{1,60}\.){0,8}(\w{0,60}(?:Error|Exception|Interrupt|Exit|Failure|Timeout|Expired|Iteration))"
    r"(?::[ ]?(.{0,1000}))?$"
)
_MESSAGE = 500  # maximum characters of a message

_SIZE = r"(\d{1,9}(?:\.\d{1,9})? ?[KMGT]i?B)"
# `CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; ...)`
_CAPACITY = lazy(r"(?:total capac\w{1,4} of " + _SIZE + r"|(?<![\d.])" + _SIZE + r" total capacity)")
_FAILURES: list[tuple[str, Failure, re.Pattern[str]]] = [
    (row["of"], row["failure"], pattern)
    for row, pattern in patterned(table_in("megatron_monitor.parsers.declared", "failures.toml"), "failures")
]
_KINDS = frozenset(kind for kind, _, _ in _FAILURES)

# Exceptions of ranks that lost contact with another rank
_LOST = lazy(
    r"Connection (?:closed|reset) by peer|Connection refused|Broken pipe|NCCL communicator was aborted|gloo/transport"
    r"|recvValue failed|sendBytes failed|Socket (?:Closed|Timeout)|store->(?:get|wait)|DistNetworkError"
)
# Programs try optional imports, and some print the exception that they caught
IMPORTS = frozenset({"ModuleNotFoundError", "ImportError", "PackageNotFoundError"})

# Programs of a job whose tracebacks do not concern the training
_BYSTANDERS = lazy(r"wandb|tensorboard|nvidia-smi|mlflow|(?<![A-Za-z])(?:aim|comet)(?![a-z])|comet_ml")
# A program that trains or starts one, by its file name (`llamafactory/launcher.py` under torchrun). Other programs of a
# job make data, parse logs or copy files. A launcher's own exceptions come before it starts anything.
_TRAINERS = lazy(
    r"(?:train|tune|sft|ppo|grpo|dpo|gpt|llama|bert|megatron|launch|torchrun|accelerate|deepspeed)[^/]*$|torch/distributed/run\.py$",
    re.IGNORECASE,
)
# `Command '['/usr/bin/python3', '-u', 'train.py']' returned non-zero exit status 1.`, `Command 'torchrun train.py' died
# with <Signals.SIGKILL: 9>.`; a failed build (`ninja`, `make`) or copy ended no training process
_COMMAND = lazy(r"^Command '(?:\['([^']{1,400})'|(\S{1,400}))")
_STARTS = lazy(r"python|torchrun|accelerate|deepspeed|srun|mpirun|mpiexec|prterun|pdsh|bash|\bsh$|launch")
_LAUNCHERS = frozenset({"ChildFailedError", "SignalException"})  # torchrun's
_SIGNAL = lazy(r"got signal: (\d{1,2})")


def exception_of(text: str) -> tuple[str, str] | None:
    """Return (class without its module, message) of a traceback's last line, or None for other text."""
    match = _EXCEPTION.match(text)
    return (match[1], (match[2] or "").strip()[:_MESSAGE]) if match else None


def named(text: str, kinds: Collection[str] = _KINDS) -> Failure | None:
    """Return the failure that a text names, of these kinds (failures.toml)."""
    return next((failure for kind, failure, pattern in _FAILURES if kind in kinds and pattern.search(text)), None)


def device_bytes(text: str) -> int | None:
    """Return the memory of the GPU in an out-of-memory text."""
    capacity = _CAPACITY.search(text)
    return byte_size(capacity[1] or capacity[2]) if capacity else None


def named_failure(exception: str, message: str) -> Failure | None:
    """Return the failure that an exception's class or text names, or None for one of Python's own."""
    if exception == "KeyboardInterrupt":
        return "stopped"
    if exception == "SignalException":
        return "stopped" if signal_of(message) in (2, 15) else "killed"
    return named(f"{exception}: {message}")


def signal_of(message: str) -> int | None:
    """Return the signal in torchrun's `SignalException: Process 4242 got signal: 15`."""
    match = _SIGNAL.search(message)
    return int(match[1]) if match else None


def signal_name(number: int) -> str:
    """Return `SIGHUP` for 1, or the number if it has no name."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def lost_peer(exception: str, message: str) -> bool:
    """Return True if the exception is of a rank that lost contact with another rank."""
    return bool(_LOST.search(f"{exception}: {message}"))


def role_of(exception: str, message: str, script: str | None, text: str) -> Role | None:
    """Return whose traceback it is. `text` is its last line. The exception of a launcher reports that a process ended,
    not why.
    """
    if _BYSTANDERS.search(text) or (script is not None and _BYSTANDERS.search(script)):
        return "bystander"
    if exception in _LAUNCHERS or (exception == "CalledProcessError" and _launched(message)):
        return "launcher"
    if script is None:
        return None
    return "trainer" if _TRAINERS.search(script) else "helper"


def _launched(message: str) -> bool:
    """Return True if the failed command was a training program or is not named."""
    match = _COMMAND.match(message)
    return match is None or bool(_STARTS.search((match[1] or match[2]).rpartition("/")[2]))


_BY_SIGNAL: dict[int, Failure] = {
    2: "stopped", 9: "killed", 11: "segfault", 7: "bus_error", 10: "bus_error", 15: "stopped",
}  # fmt: skip
SIGNALS = frozenset(_BY_SIGNAL)
"""Signals with a failure of their own."""


def signal_in(exit_code: int) -> int | None:
    """Return the signal that ended the process, from a negative code or one above 128. For exit code 1 other lines have
    the cause.
    """
    return -exit_code if exit_code < 0 else exit_code - 128 if exit_code > 128 else None


def failure_of(exit_code: int) -> Failure:
    """Return the failure that an exit status shows."""
    if signal := signal_in(exit_code):
        return _BY_SIGNAL.get(signal, "unknown")
    return "python_exception" if exit_code == 1 else "unknown"


def ended_by(signal: str) -> tuple[Failure, bool] | None:
    """Return the failure of a signal's name in the C library (strsignal), whatever text follows, and whether another
    line has the cause. None if the text begins with no such name.
    """
    return next((tuple(ends) for name, ends in TABLES["signals"].items() if signal.startswith(name)), None)


def is_victim(exit_code: int) -> bool:
    """Return True for SIGTERM, which launchers send to the remaining processes."""
    return exit_code in (-15, 143)
