"""A program that is started at each transition: to dump stacks while the ranks still hang, or to notify a local system.

Comes in: a Transition. Goes out: one process with the JSON object on its standard input and the main facts in its
environment. Exit 0 is a delivery, 75 (sysexits' EX_TEMPFAIL) asks for another try, anything else is final.
Law: no shell; nothing of a log becomes an argument. The program and all that it started end with its timeout.
"""

import json
import os
from typing import ClassVar, Final

from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers.message import DeliveryError, Notifier, message_id, payload
from megatron_monitor.scalars import CommandLine
from megatron_monitor.system.clock import SystemClock
from megatron_monitor.system.process import run
from megatron_monitor.units import PositiveSeconds

_TRY_AGAIN: Final = 75
_MOST: Final = 1 << 20  # bytes of what it says of a failure


class Command(Notifier, frozen=True, kw_only=True, tag_field="type", tag="command"):
    """A program, started at each transition with the JSON object on its standard input."""

    command: CommandLine
    """Program and arguments; no shell looks at them."""
    refusal_is_final: ClassVar[bool] = True
    timeout: PositiveSeconds = 300.0
    """Then it is ended, with everything it started: py-spy over a hundred nodes takes minutes."""

    def send(self, message: Transition) -> str:
        """Runs the program once. Raises DeliveryError."""
        body = json.dumps(payload(message), allow_nan=False).encode("ascii")
        variables = {**os.environ, **_variables(message)}
        done = run(self.command, SystemClock(), self.timeout, _MOST, variables, given=body)
        if done.message:
            raise DeliveryError(done.message, permanent=done.code != _TRY_AGAIN)
        return f"exit {done.code}"


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
