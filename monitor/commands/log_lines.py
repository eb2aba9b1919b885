"""The log of the long-running commands on standard error: a record is one line of logfmt or one JSON object."""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Literal

from megatron_monitor.config import Config

_FIELD = re.compile(r"(\w[\w.]*)=%[sdr]:?(?: |$)")
_PLAIN = re.compile(r"[^\s\"=\\]+")


class LineFormatter(logging.Formatter):
    """Splits a record into fields: time, level, the `name=%s` at the begin of its message, msg, traceback."""

    def __init__(self, form: Literal["logfmt", "json"]) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line. Control characters, which names of files and logs may hold, are escaped."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {"time": time, "level": record.levelname.lower()}
        message, values = str(record.msg), record.args
        while values and isinstance(values, tuple) and (found := _FIELD.match(message)):
            fields[found[1]], values, message = values[0], values[1:], message[found.end() :]
        if text := message % values if record.args else message:
            fields["msg"] = text
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if self._form == "json":
            return json.dumps(fields, default=str)
        return " ".join(f"{name}={_quoted(str(value))}" for name, value in fields.items())


def _quoted(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.isprintable():
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def start_logging(config: Config) -> None:
    """Log to standard error in the configured format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(config.log_format))
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler])
