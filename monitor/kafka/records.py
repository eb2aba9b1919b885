"""One record of the topic to streams of dated lines. Pure.

What agents write: Loki's push or OTLP's logs whole (the Collector, Alloy), a JSON object a line (Fluent
Bit, Vector), or the line alone (rsyslog, syslog-ng); the record's headers are labels, too. WireError: no text at all.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from megatron_monitor.parsers.json_text import read_json
from megatron_monitor.receiver.messages import Push, Stream, loki_json, otlp_json, otlp_protobuf
from megatron_monitor.receiver.wire import WireError

_TEXTS = ("message", "log", "line", "MESSAGE", "msg", "body")
_TIMES = ("timestamp", "@timestamp", "time", "date")


def push_of(value: bytes, headers: Mapping[str, str], at: int) -> Push:
    """`at`: when the record was written, Unix nanoseconds; lines that say nothing else, or more than five
    minutes later, are dated so.
    """
    record, push = _read(value), Push()
    for one in record.streams:
        push.stream({**headers, **one.labels}).entries += one.entries
    for stream in push.streams:
        stream.date(at)
    return push


def _read(value: bytes) -> Push:
    if value.startswith(b"{"):
        try:
            fields = read_json(value)
        except msgspec.MsgspecError:
            fields = {}  # a line that begins so
        if "resourceLogs" in fields:
            return otlp_json(value)
        if "streams" in fields:
            return loki_json(value)
        for name in _TEXTS:
            if isinstance(text := fields.pop(name, None), str):
                entry = (_stamp(fields), text.rstrip("\r\n").encode("utf-8", "replace"))
                return Push([Stream(_flat(fields), [entry])])
    if value.startswith(b"\n"):  # the first field of a message, or an empty line
        try:
            if (push := otlp_protobuf(value)).streams:
                return push
        except WireError:
            pass
    if b"\0" in value:
        raise WireError("neither text nor OTLP: let the agent write text, JSON or otlp_proto")
    return Push([Stream({}, [(0, value.rstrip(b"\r\n"))])])


def _flat(fields: Mapping[str, Any]) -> dict[str, str]:
    """Values by name; those of `kubernetes` and of `labels` by their own names."""
    found: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            inner = name in ("kubernetes", "labels", "annotations")
            found |= _flat(value if inner else {f"{name}_{key}": one for key, one in value.items()})
        elif isinstance(value, str | int):
            found[name] = str(value)
    return found


def _stamp(fields: dict[str, Any]) -> int:
    """Unix nanoseconds of what the agent dates the line by (ISO 8601, or seconds); 0 where nothing does."""
    for name in _TIMES:
        value = fields.pop(name, None)
        if isinstance(value, int | float) and 1e9 < value < 1e10:
            return round(value * 1e6) * 1000
        if isinstance(value, str):
            try:
                moment = datetime.fromisoformat(value)
                return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1e6) * 1000
            except (ValueError, OverflowError):
                continue
    return 0
