"""A program that is started at each transition: to dump stacks while the ranks still hang, or to notify a local system.

Comes in: a Transition. Goes out: one process with the JSON object on its standard input and the main facts in its
environment. Exit 0 is a delivery, 75 (sysexits' EX_TEMPFAIL) asks for another try, anything else is final.
Law: no shell; nothing of a log becomes an argument. The program and all that it started end with its timeout.
"""

import contextlib
import json
import os
import signal
import subprocess
from typing import ClassVar, Final

from monitor.incidents import Transition
from monitor.notifiers.message import DeliveryError, Notifier, message_id, payload
from monitor.scalars import CommandLine
from monitor.units import PositiveSeconds

_TRY_AGAIN: Final = 75


class Command(Notifier, frozen=True, kw_only=True, tag_field="type", tag="command"):
    """A program, started at each transition with the JSON object on its standard input."""

    command: CommandLine
    """Program and arguments; no shell looks at them."""
    refusal_is_final: ClassVar[bool] = True
    timeout: PositiveSeconds = 300.0
    """Then it is ended, with everything it started: py-spy over a hundred nodes takes minutes."""

    def send(self, message: Transition) -> None:
        """Runs the program once. Raises DeliveryError."""
        body = json.dumps(payload(message), allow_nan=False).encode("ascii")
        try:
            process = subprocess.Popen(  # noqa: S603 - the administrator's own program, without a shell
                list(self.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **_variables(message)},
                start_new_session=True,
            )
        except OSError as error:
            raise DeliveryError(f"{self.command[0]}: {error.strerror or error}", permanent=True) from error
        except ValueError as error:
            raise DeliveryError("the command holds a NUL byte", permanent=True) from error
        try:
            _, errors = process.communicate(body, timeout=self.timeout)
        except subprocess.TimeoutExpired as error:
            _end(process)
            raise DeliveryError(f"not done within {self.timeout:g} s", permanent=True) from error
        if process.returncode:
            text = "".join(c for c in errors.decode("utf-8", "replace").strip()[-200:] if c.isprintable())
            reason = f"exit {process.returncode}" + (f": {text}" if text else "")
            raise DeliveryError(reason, permanent=process.returncode != _TRY_AGAIN)


def _variables(message: Transition) -> dict[str, str]:
    """The facts for programs that read no JSON; a NUL cannot stand in an environment."""
    fields = {
        "MEGATRON_MESSAGE_ID": message_id(message),
        "MEGATRON_RUN": message.run,
        "MEGATRON_INCIDENT": message.incident,
        "MEGATRON_STATUS": message.status,
        "MEGATRON_SEVERITY": message.severity,
        "MEGATRON_ITERATION": "" if message.iteration is None else str(message.iteration),
    }
    return {name: value.replace("\0", "") for name, value in fields.items()}


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process and everything that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=5)
