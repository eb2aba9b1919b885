"""A program that is started at each transition: to dump stacks while the ranks still hang, or to tell a local system.

Comes in: a Transition. Goes out: one process with the JSON object on its standard input and the main facts in its
environment. Exit 0 is a delivery, 75 (sysexits' EX_TEMPFAIL) asks for another try, anything else is final.
Law: no shell; nothing of a log becomes an argument. The program and all that it started end with its timeout.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Final

from monitor.config import CommandSettings
from monitor.incidents import Transition
from monitor.notifiers.message import DeliveryError, payload

_TRY_AGAIN: Final = 75


class Command:
    """One program."""

    def __init__(self, settings: CommandSettings, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ

    @property
    def name(self) -> str:
        """The name in the configuration."""
        return self._settings.name

    def send(self, message: Transition) -> None:
        """Runs the program once. Raises DeliveryError."""
        body = json.dumps(payload(message), allow_nan=False).encode("ascii")
        try:
            process = subprocess.Popen(  # noqa: S603 - the administrator's own program, without a shell
                list(self._settings.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**self._environ, **_variables(message)},
                start_new_session=True,
            )
        except OSError as error:
            raise DeliveryError(f"{self._settings.command[0]}: {error.strerror or error}", permanent=True) from error
        except ValueError as error:
            raise DeliveryError("the command holds a NUL byte", permanent=True) from error
        try:
            _, errors = process.communicate(body, timeout=self._settings.timeout)
        except subprocess.TimeoutExpired as error:
            _end(process)
            raise DeliveryError(f"not done within {self._settings.timeout:g} s", permanent=True) from error
        if process.returncode:
            said = "".join(c for c in errors.decode("utf-8", "replace").strip()[-200:] if c.isprintable())
            told = f"exit {process.returncode}" + (f": {said}" if said else "")
            raise DeliveryError(told, permanent=process.returncode != _TRY_AGAIN)


def _variables(message: Transition) -> dict[str, str]:
    """The facts for programs that read no JSON; a NUL cannot stand in an environment."""
    fields = {
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
