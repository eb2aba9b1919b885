"""Parsing of pushed bodies to streams of dated lines: Loki's push and OTLP's logs, as JSON or protobuf. Pure.

A bad line is skipped and counted; a body in another format raises WireError, one with too many parts TooLargeError.
Times are Unix nanoseconds; 0 is a line without a time. Protobuf's own parser refuses a whole batch for one byte of
invalid UTF-8, and the sender then drops the batch; so `decode_protobuf` reads the fields instead.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from megatron_monitor.parsers.wrappers import read_json
from megatron_monitor.receiver.wire import Fields, TooLargeError, WireError, decode_protobuf

MAX_LABELS = 64
"""Of a stream; the first ones count."""
MAX_LABEL_CHARACTERS = 256
"""Of a name, and of a value."""
_MAX_LABEL_BYTES = 1 << 16  # of all labels as one text: to match 8 MiB takes a second
_MAX_STREAMS = 2_000  # of a body: all of a tenant; to find the run of one takes 0.1 ms
_MAX_JSON_PARTS = 500_000  # objects, lists and values of a body: each takes 60 bytes when parsed
_PAIR = re.compile(r'[\s,{]*+([^\s=,{}"]++)\s*+=\s*+"((?:[^"\\]|\\.)*+)"')
_ESCAPED = re.compile(r"\\(.)")
_MAX_LINES = 150_000  # of a body: to write one takes 2 us and 250 bytes
_LINE_ENDS = (b"\n", b"\\n", b"\\u000a", b"\\u000A")  # as they are, and as JSON in a line escapes them
AHEAD = 300 * 10**9
"""Nanoseconds by which a sender's clock may be ahead of the receiver's; normal clocks are nearer."""

_ANY: Fields = {
    1: ("stringValue", bytes), 2: ("boolValue", int), 3: ("intValue", int), 4: ("doubleValue", int),
    5: ("arrayValue", bytes), 6: ("kvlistValue", bytes), 7: ("bytesValue", bytes),
}  # fmt: skip
_ATTRIBUTE: Fields = {1: ("key", bytes), 2: ("value", _ANY)}
_RECORD: Fields = {
    1: ("timeUnixNano", int), 5: ("body", _ANY), 6: ("attributes", [_ATTRIBUTE]), 11: ("observedTimeUnixNano", int)
}  # fmt: skip
_OTLP: Fields = {
    1: ("resourceLogs", [{
        1: ("resource", {1: ("attributes", [_ATTRIBUTE])}),
        2: ("scopeLogs", [{2: ("logRecords", [_RECORD])}]),
    }])
}  # fmt: skip
"""ExportLogsServiceRequest (opentelemetry-proto, logs.proto)."""
_LOKI: Fields = {
    1: ("streams", [{
        1: ("labels", bytes),
        2: ("entries", [{1: ("timestamp", {1: ("seconds", int), 2: ("nanos", int)}), 2: ("line", bytes)}]),
    }])
}  # fmt: skip
"""PushRequest."""


@dataclass(slots=True)
class Stream:
    """The lines of one set of labels."""

    labels: dict[str, str]
    entries: list[tuple[int, bytes]] = field(default_factory=list)  # (Unix nanoseconds, text)

    def date(self, arrived: int, newest: int = 0) -> int:
        """Date lines without a time, and lines more than five minutes ahead of their arrival, by their arrival, but
        after the `newest` line of the stream: whatever is known of the sender's clock, they came after it. Unix
        nanoseconds of the sender's clock. Returns the number of lines that were ahead.
        """
        latest, ahead = arrived + AHEAD, 0
        for place, (at, text) in enumerate(self.entries):
            ahead += at > latest
            dated = at if 0 < at <= latest else max(arrived, newest + 1)
            self.entries[place], newest = (dated, text), max(newest, dated)
        return ahead


@dataclass(slots=True)
class Push:
    """The content of a body."""

    streams: list[Stream] = field(default_factory=list)
    refused: int = 0  # lines that could not be read
    _by_labels: dict[tuple[tuple[str, str], ...], Stream] = field(default_factory=dict)

    def stream(self, labels: Mapping[str, str]) -> Stream:
        """Return the stream of these labels; labels beyond the bounds are cut."""
        key = tuple(labels.items())
        stream = self._by_labels.get(key)
        if stream is None:
            if len(self.streams) >= _MAX_STREAMS:
                raise TooLargeError(f"more than {_MAX_STREAMS} streams")
            most = MAX_LABEL_CHARACTERS
            stream = self._by_labels[key] = Stream({name[:most]: text[:most] for name, text in key[:MAX_LABELS]})
            self.streams.append(stream)
        return stream


def bounded(push: Push) -> Push:
    """Return the push. TooLargeError if its texts are too many lines."""
    texts = (text for stream in push.streams for _, text in stream.entries)
    if sum(1 + sum(map(text.count, _LINE_ENDS)) for text in texts) > _MAX_LINES:
        raise TooLargeError(f"more than {_MAX_LINES} lines")
    return push


def loki_json(body: bytes) -> Push:
    """Parse `{"streams": [{"stream": {labels}, "values": [["ns", "text"], ...]}]}`."""
    push = Push()
    for item in _dicts(_json(body), "streams"):
        labels = item.get("stream")
        stream = push.stream(_texts(labels) if isinstance(labels, dict) else {})
        for value in _list(item, "values"):
            try:
                at, text = value[0], value[1]
                stream.entries.append((int(at), text.encode()))
            except (ValueError, TypeError, LookupError, AttributeError):
                push.refused += 1
    return push


def loki_protobuf(body: bytes) -> Push:
    """Parse a PushRequest; its labels are text: `{job="train", pod="a-0"}`."""
    push = Push()
    for item in decode_protobuf(body, _LOKI).get("streams", ()):
        labels = item.get("labels", b"")[:_MAX_LABEL_BYTES].decode("utf-8", "replace")
        stream = push.stream(_loki_labels(labels))
        for entry in item.get("entries", ()):
            timestamp = entry.get("timestamp", {})
            at = timestamp.get("seconds", 0) * 10**9 + timestamp.get("nanos", 0)
            stream.entries.append((at, entry.get("line", b"")))
    return push


def _loki_labels(text: str) -> dict[str, str]:
    """Match pairs one after the other, up to the first other text: a search would take quadratic time."""
    labels: dict[str, str] = {}
    at = 0
    while len(labels) < MAX_LABELS and (pair := _PAIR.match(text, at)) is not None:
        labels[pair[1]] = _ESCAPED.sub(lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), pair[2])
        at = pair.end()
    return labels


def otlp_json(body: bytes) -> Push:
    """Parse an ExportLogsServiceRequest in the JSON mapping of protobuf."""
    return _otlp(_json(body))


def otlp_protobuf(body: bytes) -> Push:
    """Parse an ExportLogsServiceRequest in protobuf."""
    return _otlp(decode_protobuf(body, _OTLP))


def _otlp(request: Mapping[str, Any]) -> Push:
    push = Push()
    for resource in _dicts(request, "resourceLogs"):
        if not resource.get("scopeLogs"):
            continue
        about = _attributes(_dict(resource, "resource"))
        streams = dict[tuple[tuple[str, str], ...], Stream]()  # by the attributes of the record alone
        for scope in _dicts(resource, "scopeLogs"):
            for record in _dicts(scope, "logRecords"):
                try:
                    stamps = (int(record.get(name) or 0) for name in ("timeUnixNano", "observedTimeUnixNano"))
                    at = next(filter(None, stamps), 0)
                    text = _text(_dict(record, "body"))
                except (ValueError, TypeError):
                    push.refused += 1
                    continue
                own = _attributes(record)
                if (tag := own.pop("logtag", "")) in ("P", "F"):  # cut by the container runtime
                    output = own.get("log.iostream") or own.get("stream", "stdout")
                    partial = {"log": text.decode("utf-8", "replace"), "stream": output, "logtag": tag}
                    text = msgspec.json.encode(partial)
                if (stream := streams.get(key := tuple(own.items()))) is None:
                    stream = streams[key] = push.stream(about | own)
                stream.entries.append((at, text))
    return push


def _attributes(holder: Mapping[str, Any]) -> dict[str, str]:
    pairs = ((item.get("key"), _text(_dict(item, "value"))) for item in _dicts(holder, "attributes"))
    return _texts({name: text for name, text in pairs if isinstance(name, str | bytes)})


def _text(value: Mapping[str, Any]) -> bytes:
    """Return an AnyValue as text; lists and maps as JSON."""
    if len(value) == 1:
        ((kind, content),) = value.items()
        if isinstance(content, bytes):
            return content
        if kind == "boolValue":
            content = bool(content)
        if kind in ("stringValue", "intValue", "doubleValue", "boolValue", "bytesValue"):
            return content.encode() if isinstance(content, str) else msgspec.json.encode(content)
    return msgspec.json.encode(value) if value else b""


def _json(body: bytes) -> dict[str, Any]:
    if sum(map(body.count, (b"[", b"{", b","))) > _MAX_JSON_PARTS:
        raise TooLargeError(f"more than {_MAX_JSON_PARTS} objects, lists and values")
    try:
        found = read_json(body)
    except msgspec.MsgspecError as error:
        raise WireError(str(error)) from error
    if not isinstance(found, dict):
        raise WireError("the body is not an object")
    return found


def _dict(holder: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = holder.get(name)
    return found if isinstance(found, dict) else {}


def _list(holder: Mapping[str, Any], name: str) -> list[Any]:
    found = holder.get(name) or []
    if not isinstance(found, list):
        raise WireError(f"{name} is not a list")
    return found


def _dicts(holder: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return [item for item in _list(holder, name) if isinstance(item, dict)]


def _texts(labels: Mapping[Any, Any]) -> dict[str, str]:
    """Return the first names and values as text; values of other types are left out."""
    texts: dict[str, str] = {}
    for pair in labels.items():
        if len(texts) == MAX_LABELS:
            break
        name, value = (text.decode("utf-8", "replace") if isinstance(text, bytes) else text for text in pair)
        if isinstance(name, str) and isinstance(value, str):
            texts[name] = value
    return texts


PROTOCOLS: dict[str, tuple[str, Callable[[bytes], Push], Callable[[bytes], Push]]] = {
    "/loki/api/v1/push": ("loki", loki_json, loki_protobuf),
    "/v1/logs": ("otlp", otlp_json, otlp_protobuf),
    "/otlp/v1/logs": ("otlp", otlp_json, otlp_protobuf),
}
"""Path -> protocol, parser of JSON, parser of protobuf."""
