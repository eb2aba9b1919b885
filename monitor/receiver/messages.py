"""Pushed bodies to streams of dated lines: Loki's push (JSON, protobuf) and OTLP's logs (JSON, protobuf). Pure.

One bad line costs itself and is counted; a body of another form raises WireError, one of too many parts TooLargeError.
Nanoseconds are Unix time; 0 is a line that nobody dated. protobuf's own reader refuses a whole batch for one byte that
is no UTF-8, which its sender then throws away: so the fields are read here, to the objects of protobuf's JSON mapping.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from megatron_monitor.parsers.json_text import read_json
from megatron_monitor.receiver.wire import Fields, TooLargeError, WireError, decoded

_LABELS = 64  # of a stream; more name no run any better
_LABEL_CHARACTERS = 256
_STREAMS = 10_000  # of a body: whose each is takes 0.1 ms to tell
_PARTS = 500_000  # objects, lists and values of a body in JSON: each takes 60 bytes once it is read
_PAIR = re.compile(r'[\s,{]*+([^\s=,{}"]++)\s*+=\s*+"((?:[^"\\]|\\.)*+)"')
_ESCAPED = re.compile(r"\\(.)")
AHEAD = 300 * 10**9
"""Nanoseconds by which a sender's clock may be ahead of ours: one that is set in a normal way is not."""

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
    """Lines of one set of labels."""

    labels: dict[str, str]
    entries: list[tuple[int, bytes]] = field(default_factory=list)
    """(Unix nanoseconds, text)."""

    def date(self, arrived: int, shift: int = 0) -> int:
        """Lines without a time, and those dated more than five minutes ahead, are as old as their arrival, Unix
        nanoseconds by the sender's clock. To all `shift` is added. How many were ahead.
        """
        latest = arrived + AHEAD
        ahead = sum(at > latest for at, _ in self.entries)
        self.entries = [((at if 0 < at <= latest else arrived) + shift, text) for at, text in self.entries]
        return ahead


@dataclass(slots=True)
class Push:
    """What a body holds."""

    streams: list[Stream] = field(default_factory=list)
    refused: int = 0
    """Lines that are none."""
    _by_labels: dict[tuple[tuple[str, str], ...], Stream] = field(default_factory=dict)

    def stream(self, labels: Mapping[str, str]) -> Stream:
        """That of these labels, of which as many, each as long, are kept as are looked at."""
        key = tuple(labels.items())
        found = self._by_labels.get(key)
        if found is None:
            if len(self.streams) >= _STREAMS:
                raise TooLargeError(f"more than {_STREAMS} streams")
            kept = {name[:_LABEL_CHARACTERS]: text[:_LABEL_CHARACTERS] for name, text in key[:_LABELS]}
            found = self._by_labels[key] = Stream(kept)
            self.streams.append(found)
        return found


def loki_json(body: bytes) -> Push:
    """`{"streams": [{"stream": {labels}, "values": [["ns", "text"], ...]}]}`."""
    push = Push()
    for one in _dicts(_json(body), "streams"):
        labels = one.get("stream")
        stream = push.stream(_texts(labels) if isinstance(labels, dict) else {})
        for value in _list(one, "values"):
            try:
                at, text = value[0], value[1]
                stream.entries.append((int(at), text.encode()))
            except (ValueError, TypeError, LookupError, AttributeError):
                push.refused += 1
    return push


def loki_protobuf(body: bytes) -> Push:
    """As `loki_json`; labels are `{job="train", pod="a-0"}`."""
    push = Push()
    for one in decoded(body, _LOKI).get("streams", ()):
        stream = push.stream(_loki_labels(one.get("labels", b"").decode("utf-8", "replace")))
        for entry in one.get("entries", ()):
            timestamp = entry.get("timestamp", {})
            at = timestamp.get("seconds", 0) * 10**9 + timestamp.get("nanos", 0)
            stream.entries.append((at, entry.get("line", b"")))
    return push


def _loki_labels(text: str) -> dict[str, str]:
    """One pair behind the other, up to what is none: a search for pairs would look at a text again and again."""
    labels: dict[str, str] = {}
    at = 0
    while len(labels) < _LABELS and (pair := _PAIR.match(text, at)) is not None:
        labels[pair[1]] = _ESCAPED.sub(lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), pair[2])
        at = pair.end()
    return labels


def otlp_json(body: bytes) -> Push:
    """ExportLogsServiceRequest in the JSON mapping of protobuf."""
    return _otlp(_json(body))


def otlp_protobuf(body: bytes) -> Push:
    """The same message, packed."""
    return _otlp(decoded(body, _OTLP))


def _otlp(request: Mapping[str, Any]) -> Push:
    push = Push()
    for resource in _dicts(request, "resourceLogs"):
        about = _attributes(_dict(resource, "resource"))
        for scope in _dicts(resource, "scopeLogs"):
            for record in _dicts(scope, "logRecords"):
                try:
                    stamps = (int(record.get(name) or 0) for name in ("timeUnixNano", "observedTimeUnixNano"))
                    at = next(filter(None, stamps), 0)
                    text = _text(_dict(record, "body"))
                except (ValueError, TypeError):
                    push.refused += 1
                    continue
                labels = about | _attributes(record)
                if (tag := labels.pop("logtag", "")) in ("P", "F"):  # the runtime cut the line: as Fluent Bit says it
                    output = labels.get("log.iostream") or labels.get("stream", "stdout")
                    partial = {"log": text.decode("utf-8", "replace"), "stream": output, "logtag": tag}
                    text = msgspec.json.encode(partial)
                push.stream(labels).entries.append((at, text))
    return push


def _attributes(holder: Mapping[str, Any]) -> dict[str, str]:
    found = ((one.get("key"), _text(_dict(one, "value"))) for one in _dicts(holder, "attributes"))
    return _texts({name: text for name, text in found if isinstance(name, str | bytes)})


def _text(value: Mapping[str, Any]) -> bytes:
    """An AnyValue as text: what is no scalar as it came."""
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
    if sum(map(body.count, (b"[", b"{", b","))) > _PARTS:
        raise TooLargeError(f"more than {_PARTS} objects, lists and values")
    try:
        found = read_json(body)
    except msgspec.MsgspecError as error:
        raise WireError(str(error)) from error
    if not isinstance(found, dict):
        raise WireError("no object")
    return found


def _dict(holder: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = holder.get(name)
    return found if isinstance(found, dict) else {}


def _list(holder: Mapping[str, Any], name: str) -> list[Any]:
    found = holder.get(name) or []
    if not isinstance(found, list):
        raise WireError(f"{name} is no list")
    return found


def _dicts(holder: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return [one for one in _list(holder, name) if isinstance(one, dict)]


def _texts(labels: Mapping[Any, Any]) -> dict[str, str]:
    """Names and values as text; a value that is none is left out."""
    found = ((_decoded(name), _decoded(value)) for name, value in labels.items())
    return {name: value for name, value in found if name is not None and value is not None}


def _decoded(text: Any) -> str | None:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text if isinstance(text, str) else None


PROTOCOLS: dict[str, tuple[str, Callable[[bytes], Push], Callable[[bytes], Push]]] = {
    "/loki/api/v1/push": ("loki", loki_json, loki_protobuf),
    "/v1/logs": ("otlp", otlp_json, otlp_protobuf),
    "/otlp/v1/logs": ("otlp", otlp_json, otlp_protobuf),
}
"""Path -> the protocol, its reader of JSON, its reader of protobuf."""
