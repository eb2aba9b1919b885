"""Runs one program without a shell, with limits for time and kept output. At the time-out its children are killed too.

Rule: arguments are a list. The environment of the daemon's own job (SLURM_*, SBATCH_*) is not passed on, because srun
and sbatch would act on that job.
"""

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final

from megatron_monitor.system.clock import Clock

_BLOCK: Final = 65536
_KEPT_VARIABLES: Final = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT"})
_LEAST_WAIT: Final = 1.0  # seconds for a process that has closed its streams, or was killed, to end


@dataclass(frozen=True, slots=True)
class Finished:
    """The result: `code` is None if the program timed out or could not be started, for the reason in `problem`."""

    code: int | None
    output: bytes = b""
    errors: bytes = b""
    problem: str = ""

    @property
    def message(self) -> str:
        """Why the program failed, as one line; empty if it did not."""
        if self.problem:
            return self.problem
        if self.code == 0:
            return ""
        text = " ".join((self.errors or self.output).decode("utf-8", "replace").split())[-300:]
        clean = "".join(char if char.isprintable() else "�" for char in text)
        return f"exit {self.code}" + (f": {clean}" if clean else "")


def run(
    arguments: Sequence[str], clock: Clock, timeout: float, most: int, variables: Mapping[str, str] | None = None,
    copy: IO[bytes] | None = None, given: bytes = b"",
) -> Finished:  # fmt: skip
    """Run a program to its end, with `variables` added to the environment and `given` as standard input.

    `most`: bytes kept of each output stream. The kept standard output is also written to `copy`.
    """
    try:
        with os.fdopen(os.memfd_create("given"), "wb") as stdin:
            stdin.write(given)
            stdin.seek(0)
            process = subprocess.Popen(  # noqa: S603 - without a shell; callers restrict the arguments
                list(arguments),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**_environment(), **(variables or {})},
                start_new_session=True,
            )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return Finished(None, problem=f"{arguments[0]} cannot be started: {reason}")
    until = clock.monotonic() + timeout
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(one) for one in (process.stdout, process.stderr) if one is not None]
        kept = _drain(streams, clock, until, most, copy)
    if kept is None or not _ended(process, max(_LEAST_WAIT, until - clock.monotonic())):
        _kill(process)
        return Finished(None, problem=f"{arguments[0]} had not ended after {timeout:g} s and was killed")
    return Finished(process.returncode, kept[0], kept[1])


def _environment() -> dict[str, str]:
    """Return the environment without the variables of the job in which the daemon may run."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_VARIABLES or not name.startswith(("SLURM_", "SBATCH_", "SRUN_", "SCONTROL_", "SACCT_"))
    }


def _drain(
    streams: Sequence[IO[bytes]], clock: Clock, until: float, most: int, copy: IO[bytes] | None
) -> list[bytes] | None:
    """Return the first `most` bytes of each stream; None at the time-out. `copy` gets the first stream's."""
    kept = [bytearray() for _ in streams]
    with selectors.DefaultSelector() as selector:
        for place, stream in enumerate(streams):
            selector.register(stream, selectors.EVENT_READ, place)
        while selector.get_map():
            left = until - clock.monotonic()
            if left <= 0:
                return None
            for key, _ in selector.select(left):
                block = os.read(key.fd, _BLOCK)
                if not block:
                    selector.unregister(key.fileobj)
                    continue
                taken = block[: max(0, most - len(kept[key.data]))]
                kept[key.data] += taken
                if copy is not None and key.data == 0:
                    copy.write(taken)
    return [bytes(one) for one in kept]


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    _ended(process, _LEAST_WAIT)
