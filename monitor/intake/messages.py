"""Pushed bodies to streams of dated lines: Loki's push (JSON, protobuf) and OTLP's logs (JSON, protobuf). Pure.

One bad line costs itself and is counted; a body of another form raises WireError. Nanoseconds are Unix time; 0 is a
line that nobody dated. protobuf's own reader refuses a whole batch for one byte that is no UTF-8, which its sender then
throws away: so the fields are read here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from megatron_monitor.intake.wire import WireError, fields
from megatron_monitor.parsers.json_text import read_json

_LABELS = 64  # of a stream; more name no run any better
_LABEL_CHARACTERS = 256
_PAIR = re.compile(r'\s*([^\s=,{}"]{1,256})\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPED = re.compile(r"\\(.)")
_LONGEST = 2**63  # nanoseconds


@dataclass(slots=True)
class Stream:
    """Lines of one set of labels."""

    labels: dict[str, str]
    entries: list[tuple[int, bytes]] = field(default_factory=list)
    """(Unix nanoseconds, text)."""


@dataclass(slots=True)
class Push:
    """What a body holds."""

    streams: list[Stream] = field(default_factory=list)
    refused: int = 0
    """Lines that are none."""


class _LokiStream(msgspec.Struct):
    stream: dict[str, str] = {}
    values: list[list[Any]] = []


class _LokiPush(msgspec.Struct):
    streams: list[_LokiStream]


_LOKI = msgspec.json.Decoder(_LokiPush)


def loki_json(body: bytes) -> Push:
    """`{"streams": [{"stream": {labels}, "values": [["ns", "text"], ...]}]}`."""
    try:
        pushed = read_json(body, _LOKI.decode)
    except msgspec.MsgspecError as error:
        raise WireError(str(error)) from error
    push = Push()
    for one in pushed.streams:
        stream = Stream(bounded(one.stream))
        for value in one.values:
            try:
                at, text = value[0], value[1]
                stream.entries.append((_nanoseconds(at), text.encode()))
            except (ValueError, TypeError, IndexError, AttributeError):
                push.refused += 1
        push.streams.append(stream)
    return push


def loki_protobuf(body: bytes) -> Push:
    """PushRequest: streams = 1 {labels = 1, entries = 2 {timestamp = 1 {seconds = 1, nanos = 2}, line = 2}}."""
    push = Push()
    for one in _parts(body, 1):
        stream = Stream({})
        for name, value in fields(one):
            if name == 1 and isinstance(value, bytes):
                stream.labels = bounded(_loki_labels(value.decode("utf-8", "replace")))
            elif name == 2 and isinstance(value, bytes):
                entry = dict(fields(value))
                stamp, text = (part if isinstance(part := entry.get(place), bytes) else b"" for place in (1, 2))
                told = {part: count for part, count in fields(stamp) if isinstance(count, int)}
                stream.entries.append((_nanoseconds(told.get(1, 0) * 1_000_000_000 + told.get(2, 0)), text))
        push.streams.append(stream)
    return push


def _loki_labels(text: str) -> dict[str, str]:
    """`{job="train", pod="a-0"}`."""
    return {match[1]: _ESCAPED.sub(_unescaped, match[2]) for match in _PAIR.finditer(text)}


def _unescaped(match: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t"}.get(match[1], match[1])


def otlp_json(body: bytes) -> Push:
    """ExportLogsServiceRequest in the JSON mapping of protobuf."""
    try:
        request = read_json(body)
    except msgspec.MsgspecError as error:
        raise WireError(str(error)) from error
    if not isinstance(request, dict):
        raise WireError("no object")
    push, streams = Push(), dict[tuple[tuple[str, str], ...], Stream]()
    for resource in _objects(request, "resourceLogs"):
        about = _attributes(_object(resource, "resource"))
        for scope in _objects(resource, "scopeLogs"):
            for record in _objects(scope, "logRecords"):
                try:
                    stamps = (_nanoseconds(record.get(name) or 0) for name in ("timeUnixNano", "observedTimeUnixNano"))
                    at = next(filter(None, stamps), 0)
                    text = _text(_object(record, "body"))
                except (ValueError, TypeError):
                    push.refused += 1
                    continue
                _add(push, streams, about | _attributes(record), at, text)
    return push


def _object(holder: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = holder.get(name)
    return found if isinstance(found, dict) else {}


def _objects(holder: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    found = holder.get(name) or []
    if not isinstance(found, list):
        raise WireError(f"{name} is no list")
    return (one for one in found if isinstance(one, dict))


def _attributes(holder: Mapping[str, Any]) -> dict[str, str]:
    found = ((one.get("key"), _text(_object(one, "value"))) for one in _objects(holder, "attributes"))
    return {name: text.decode() for name, text in found if isinstance(name, str)}


def _text(value: Mapping[str, Any]) -> bytes:
    """An AnyValue in JSON as text."""
    if len(value) == 1:
        ((kind, content),) = value.items()
        if kind in ("stringValue", "intValue", "doubleValue", "boolValue", "bytesValue"):
            return content.encode() if isinstance(content, str) else msgspec.json.encode(content)
    return msgspec.json.encode(value) if value else b""


def otlp_protobuf(body: bytes) -> Push:
    """resource_logs = 1 {resource = 1 {attributes = 1}, scope_logs = 2 {log_records = 2}}; of a record the fields
    time_unix_nano = 1, body = 5, attributes = 6, observed_time_unix_nano = 11 (opentelemetry-proto, logs.proto).
    """
    push, streams = Push(), dict[tuple[tuple[str, str], ...], Stream]()
    for logs in _parts(body, 1):
        about = {name: value for one in _parts(logs, 1) for name, value in _pairs(one, 1)}
        for scope in _parts(logs, 2):
            for record in _parts(scope, 2):
                told = dict(fields(record))
                at = next((at for at in (told.get(1), told.get(11)) if at and isinstance(at, int)), 0)
                text = _any(held) if isinstance(held := told.get(5), bytes) else b""
                _add(push, streams, about | dict(_pairs(record, 6)), _nanoseconds(at), text)
    return push


def _parts(message: bytes, number: int) -> Iterator[bytes]:
    return (value for name, value in fields(message) if name == number and isinstance(value, bytes))


def _pairs(message: bytes, number: int) -> Iterator[tuple[str, str]]:
    """Attributes: key = 1, value = 2."""
    for pair in _parts(message, number):
        name = b"".join(_parts(pair, 1)).decode("utf-8", "replace")
        yield name, b"".join(map(_any, _parts(pair, 2))).decode("utf-8", "replace")


def _any(value: bytes) -> bytes:
    """An AnyValue as text: string = 1, bool = 2, int = 3, double = 4, bytes = 7; others are left as they are packed."""
    for number, content in fields(value):
        if isinstance(content, bytes):
            return content
        return msgspec.json.encode(bool(content) if number == 2 else content)
    return b""


def _add(
    push: Push, streams: dict[tuple[tuple[str, str], ...], Stream], labels: dict[str, str], at: int, text: bytes
) -> None:
    if (tag := labels.pop("logtag", "")) in ("P", "F"):  # a runtime may have cut the line: as Fluent Bit says it
        output = labels.get("log.iostream") or labels.get("stream", "stdout")
        text = msgspec.json.encode({"log": text.decode("utf-8", "replace"), "stream": output, "logtag": tag})
    key = tuple(labels.items())
    stream = streams.get(key)
    if stream is None:
        stream = streams[key] = Stream(bounded(labels))
        push.streams.append(stream)
    stream.entries.append((at, text))


def bounded(labels: Mapping[str, str]) -> dict[str, str]:
    """As many labels, each as long, as are looked at."""
    return {name[:_LABEL_CHARACTERS]: text[:_LABEL_CHARACTERS] for name, text in list(labels.items())[:_LABELS]}


def _nanoseconds(at: Any) -> int:
    """ValueError, TypeError where it is none."""
    found = int(at)
    return found if 0 <= found < _LONGEST else 0


PROTOCOLS = {
    "/loki/api/v1/push": ("loki", loki_json, loki_protobuf),
    "/v1/logs": ("otlp", otlp_json, otlp_protobuf),
    "/otlp/v1/logs": ("otlp", otlp_json, otlp_protobuf),
}
"""Path -> the protocol, its reader of JSON, its reader of protobuf."""
