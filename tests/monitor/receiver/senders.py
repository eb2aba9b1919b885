"""Pushes as senders write them: Loki's and OTLP's messages, encoded by the rules of protobuf.dev's Encoding."""

import json
from collections.abc import Mapping, Sequence


def varint(number: int) -> bytes:
    """A number."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def message(*fields: tuple[int, int | bytes | str]) -> bytes:
    """(number, value) of each field; numbers are varints."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def fixed(number: int, value: int) -> bytes:
    """A field of eight bytes."""
    return varint(number << 3 | 1) + value.to_bytes(8, "little")


def push_request(labels: Mapping[str, str], entries: Sequence[tuple[int, str]]) -> bytes:
    """Loki's PushRequest of one stream."""
    quoted = ((name, value.replace("\\", "\\\\").replace('"', '\\"')) for name, value in labels.items())
    named = "{" + ", ".join(f'{name}="{value}"' for name, value in quoted) + "}"
    lines = ((2, message((1, message((1, at // 10**9), (2, at % 10**9))), (2, text))) for at, text in entries)
    return message((1, message((1, named), *lines, (3, 77))))


def snapped(data: bytes) -> bytes:
    """A snappy block of literals, and of copies where a byte repeats."""
    out = varint(len(data))
    for begin in range(0, len(data), 60):
        piece = data[begin : begin + 60]
        out += bytes([len(piece) - 1 << 2]) + piece
    return out


def otlp_push(
    resource: Mapping[str, str], records: Sequence[tuple[int, int, str, Mapping[str, str]]], *, as_json: bool
) -> bytes:
    """An ExportLogsServiceRequest of (time, observed time, text, attributes)."""
    if as_json:
        logs = [
            {
                "timeUnixNano": str(at),
                "observedTimeUnixNano": str(observed),
                "body": {"stringValue": text},
                "attributes": [{"key": name, "value": {"stringValue": value}} for name, value in more.items()],
            }
            for at, observed, text, more in records
        ]
        about = [{"key": name, "value": {"stringValue": value}} for name, value in resource.items()]
        scopes = [{"scope": {}, "logRecords": logs}]
        return json.dumps({"resourceLogs": [{"resource": {"attributes": about}, "scopeLogs": scopes}]}).encode()
    packed = []
    for at, observed, text, more in records:
        record = (fixed(1, at) if at else b"") + message((2, 9), (3, "INFO"), (5, message((1, text))))
        record += message(*((6, _pair(name, value)) for name, value in more.items()))
        packed.append((2, record + (fixed(11, observed) if observed else b"")))
    about_resource = message(*((1, _pair(name, value)) for name, value in resource.items()))
    return message((1, message((1, about_resource), (2, message((1, b""), *packed)))))


def _pair(name: str, value: str) -> bytes:
    return message((1, name), (2, message((1, value))))
