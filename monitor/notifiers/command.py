"""The notifier `command`: starts a program for each message, for example to dump stacks while the ranks still hang.

Input: a Transition. Output: one process with the JSON object on standard input and the main facts in its environment.
Exit code 0 means delivered, 75 (EX_TEMPFAIL of sysexits.h) asks for a retry, any other code is final.
Rule: there is no shell, and no text of a log becomes an argument. The program and its children end at the timeout.
"""

import json
import os
from typing import ClassVar, Final

from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers.message import DeliveryError, Notifier, message_id, payload
from megatron_monitor.scalars import CommandLine, PositiveSeconds
from megatron_monitor.system.clock import SystemClock
from megatron_monitor.system.process import run

_TRY_AGAIN: Final = 75
_MAX_OUTPUT: Final = 1 << 20  # bytes of the output that explains a failure


class Command(Notifier, frozen=True, kw_only=True, tag_field="type", tag="command"):
    """A program that is started for each message, with the JSON object on its standard input."""

    command: CommandLine
    """Program and arguments, passed without a shell."""
    refusal_is_final: ClassVar[bool] = True
    timeout: PositiveSeconds = 300.0
    """Seconds until the program and its children are killed: py-spy on a hundred nodes takes minutes."""

    def send(self, message: Transition) -> str:
        """Run the program once. Raises DeliveryError."""
        body = json.dumps(payload(message), allow_nan=False).encode("ascii")
        variables = {**os.environ, **_variables(message)}
        done = run(self.command, SystemClock(), self.timeout, _MAX_OUTPUT, variables, given=body)
        if done.message:
            raise DeliveryError(done.message, permanent=done.code != _TRY_AGAIN)
        return f"exit {done.code}"


def _variables(message: Transition) -> dict[str, str]:
    """Return the environment variables, for programs that do not read JSON. NUL is not allowed in a variable."""
    fields = {
        "MEGATRON_MESSAGE_ID": message_id(message),
        "MEGATRON_RUN": message.run,
        "MEGATRON_INCIDENT": message.incident,
        "MEGATRON_STATUS": message.status,
        "MEGATRON_SEVERITY": message.severity,
        "MEGATRON_ITERATION": "" if message.iteration is None else str(message.iteration),
    }
    return {name: value.replace("\0", "") for name, value in fields.items()}
