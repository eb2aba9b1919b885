"""Decoding of pushed bytes: gzip and snappy with a bound on the unpacked size, and protobuf messages. Pure."""

import zlib
from collections.abc import Mapping
from typing import Any, TypeAlias

from cramjam import DecompressionError, snappy

_MAX_MEMBERS = 100  # of gzip (RFC 1952): each costs a copy of those after it
_MAX_FIELDS = 260_000  # of a body: each takes a microsecond and up to 190 bytes

Fields: TypeAlias = Mapping[int, tuple[str, Any]]
"""Number -> (name, type). The type is bytes, int, the Fields of a message, or a list of one Fields if it repeats."""


class WireError(Exception):
    """The bytes can never be read: they are cut, damaged or in another format."""


class TooLargeError(Exception):
    """The bytes are, or become, more than is accepted."""


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """Unpack the body by its Content-Encoding. Never makes more than `limit` bytes, whatever size the body states."""
    if encoding in ("", "identity"):
        return body
    if encoding == "snappy":
        return unpack_snappy(body, limit)
    if encoding not in ("gzip", "deflate"):
        raise WireError(f"Content-Encoding {encoding[:40]!r} is not supported: use gzip, deflate, snappy or none")
    data = b""
    for _ in range(_MAX_MEMBERS):
        inflate = zlib.decompressobj(47)  # gzip or zlib by its header
        try:
            data += inflate.decompress(body, limit + 1 - len(data))
        except zlib.error as error:
            raise WireError(str(error)) from error
        if len(data) > limit:
            raise TooLargeError(f"more than {limit} bytes")
        if not inflate.eof:
            raise WireError("the body is cut")
        if not (body := inflate.unused_data):
            return data
    raise TooLargeError(f"more than {_MAX_MEMBERS} members of gzip")


def unpack_snappy(body: bytes, limit: int) -> bytes:
    """Unpack a snappy block (google/snappy, format_description.txt), which begins with its unpacked size."""
    size, begin = _varint(body, 0)
    if size > limit:
        raise TooLargeError(f"more than {limit} bytes")
    try:
        return bytes(snappy.decompress_raw(body)) if begin < len(body) else b""
    except DecompressionError as error:
        raise WireError(str(error)) from error


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number and the offset of its end."""
    if at < len(data) and data[at] < 128:  # most numbers have one byte
        return data[at], at + 1
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise WireError("a number is cut")


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it."""
    rest = b""
    while number > 127:
        rest, number = rest + bytes([number & 127 | 128]), number >> 7
    return rest + bytes([number])


def decode_protobuf(data: bytes, fields: Fields, left: list[int] | None = None) -> dict[str, Any]:
    """Decode a message (protobuf.dev, Encoding) to the object of its JSON mapping; texts are bytes. Other fields, and
    those with another wire type, are skipped. `left`: how many more fields may be read, in a list of one.
    """
    left = [_MAX_FIELDS] if left is None else left
    message: dict[str, Any] = {}
    at, end = 0, len(data)
    while at < end:
        left[0] -= 1
        if left[0] < 0:
            raise TooLargeError(f"more than {_MAX_FIELDS} fields")
        tag, at = _varint(data, at)
        kind = tag & 7
        value: int | bytes
        if kind == 0:
            value, at = _varint(data, at)
        elif kind in (1, 2, 5):
            size, at = _varint(data, at) if kind == 2 else (8 if kind == 1 else 4, at)
            if at + size > end:
                raise WireError("a field is cut")
            piece = data[at : at + size]
            value = piece if kind == 2 else int.from_bytes(piece, "little")
            at += size
        else:
            raise WireError(f"a field of wire type {kind}")
        name, form = fields.get(tag >> 3, ("", None))
        if isinstance(form, type):
            if isinstance(value, form):
                message[name] = value
        elif form is not None and isinstance(value, bytes):
            if isinstance(form, list):
                message.setdefault(name, []).append(decode_protobuf(value, form[0], left))
            else:
                message[name] = decode_protobuf(value, form, left)
    return message
