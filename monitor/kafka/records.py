"""Parsing of a Kafka record to streams of dated lines. Pure.

A record holds a body of Loki's push or of OTLP's logs (the Collector, Alloy), a JSON object with a line (Fluent Bit,
Vector), or the line alone (rsyslog, syslog-ng). The record's headers are labels, too. WireError: it is not text.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from operator import methodcaller
from typing import Any

import msgspec

from megatron_monitor.parsers.wrappers import read_json
from megatron_monitor.receiver.messages import (
    MAX_LABEL_CHARACTERS,
    MAX_LABELS,
    Push,
    Stream,
    bounded,
    loki_json,
    otlp_json,
    otlp_protobuf,
)
from megatron_monitor.receiver.wire import WireError

_TEXTS = ("message", "log", "line", "MESSAGE", "msg", "body")
_HEADERS = methodcaller("headers")  # a direct call crashes Python 3.11 in warm code if a name is not UTF-8
_TIME_FIELDS = ("timestamp", "@timestamp", "time", "date")


def headers_of(message: object) -> dict[str, str]:
    """Return the headers of a confluent_kafka Message, as many as a stream may have labels; none if a name is not
    UTF-8.
    """
    try:
        first = islice(_HEADERS(message) or (), MAX_LABELS)
        return {name: (value or b"").decode("utf-8", "replace") for name, value in first}
    except Exception:  # noqa: BLE001 - a record must not end the member
        return {}


def push_of(value: bytes, headers: Mapping[str, str], at: int) -> Push:
    """Return the record's streams. `at` (Unix nanoseconds, when the record was written) dates lines without a time and
    those dated more than five minutes later. WireError, TooLargeError.
    """
    push = Push()
    for part in bounded(_read(value)).streams:
        push.stream({**headers, **part.labels}).entries += part.entries
    for stream in push.streams:
        stream.date(at)
    return push


def _read(value: bytes) -> Push:
    if value.startswith(b"{"):
        try:
            fields = read_json(value)
        except msgspec.MsgspecError:
            fields = {}  # a line that begins with a brace
        if "resourceLogs" in fields:
            return otlp_json(value)
        if "streams" in fields:
            return loki_json(value)
        for name in _TEXTS:
            if isinstance(text := fields.pop(name, None), str):
                entry = (_stamp(fields), text.rstrip("\r\n").encode("utf-8", "replace"))
                return Push([Stream(_flat(fields, {}), [entry])])
    if value.startswith(b"\n"):  # the first field of a message, or an empty line
        try:
            if (push := otlp_protobuf(value)).streams:
                return push
        except WireError:
            pass
    if b"\0" in value:
        raise WireError("neither text nor OTLP: configure the agent to write text, JSON or otlp_proto")
    return Push([Stream({}, [(0, value.rstrip(b"\r\n"))])])


def _flat(fields: Mapping[str, Any], labels: dict[str, str], prefix: str = "") -> dict[str, str]:
    """Add nested fields to the labels: `a_b` for b in a, but plain names for those in `kubernetes` and `labels`. Return
    the labels, as many and as long as a stream may have.
    """
    for key, value in fields.items():
        if len(labels) >= MAX_LABELS:
            break
        name = f"{prefix}{key}"[:MAX_LABEL_CHARACTERS]
        if isinstance(value, dict):
            _flat(value, labels, "" if name in ("kubernetes", "labels", "annotations") else f"{name}_")
        elif isinstance(value, str | int):
            labels[name] = str(value)
    return labels


def _stamp(fields: dict[str, Any]) -> int:
    """Remove the fields with the agent's time (ISO 8601, or seconds); return Unix nanoseconds, 0 without a time."""
    for name in _TIME_FIELDS:
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
