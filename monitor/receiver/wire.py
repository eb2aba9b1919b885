"""Bytes as senders pack them: gzip and snappy, each to a bound, and the fields of a protobuf message. Pure.

WireError: the bytes can never be read. TooLargeError: they are, or become, more than is taken.
"""

import zlib
from collections.abc import Mapping
from typing import Any, TypeAlias

from cramjam import DecompressionError, snappy

_MOST_FIELDS = 400_000  # of a body: each takes a microsecond, and 60 bytes once it is read

Fields: TypeAlias = Mapping[int, tuple[str, Any]]
"""Number -> (name, what it is): `bytes`, `int`, the Fields of a message, or in a list those of one that may repeat."""


class WireError(Exception):
    """No sender will ever have it read: it is cut, damaged or of another form."""


class TooLargeError(Exception):
    """More than is taken once it is unpacked."""


def unpacked(body: bytes, encoding: str, most: int) -> bytes:
    """The body by its Content-Encoding; `most` bytes at most, whatever it says of itself."""
    if encoding in ("", "identity"):
        return body
    if encoding == "snappy":
        return unsnapped(body, most)
    if encoding not in ("gzip", "deflate"):
        raise WireError(f"Content-Encoding {encoding[:40]!r} is not known here: gzip, deflate, snappy or none")
    inflate = zlib.decompressobj(47)  # gzip or zlib, as its head says
    try:
        data = inflate.decompress(body, most + 1)
    except zlib.error as error:
        raise WireError(str(error)) from error
    if len(data) > most:
        raise TooLargeError(f"more than {most} bytes")
    if not inflate.eof:
        raise WireError("the body is cut")
    return data


def unsnapped(body: bytes, most: int) -> bytes:
    """A snappy block (google/snappy, format_description.txt), which begins with how large it will be."""
    size, begin = _varint(body, 0)
    if size > most:
        raise TooLargeError(f"more than {most} bytes")
    try:
        return bytes(snappy.decompress_raw(body)) if begin < len(body) else b""
    except DecompressionError as error:
        raise WireError(str(error)) from error


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(number, where it ends)."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise WireError("a number is cut")


def decoded(data: bytes, known: Fields) -> dict[str, Any]:
    """A message (protobuf.dev, Encoding) as the object of its JSON mapping; texts are bytes. Fields that are not known,
    or of another wire type, are passed over.
    """
    return _decoded(data, known, [_MOST_FIELDS])


def _decoded(data: bytes, known: Fields, left: list[int]) -> dict[str, Any]:
    """`left`: how many fields more are read."""
    found: dict[str, Any] = {}
    at, end = 0, len(data)
    while at < end:
        left[0] -= 1
        if left[0] < 0:
            raise TooLargeError(f"more than {_MOST_FIELDS} fields")
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
        name, form = known.get(tag >> 3, ("", None))
        if isinstance(form, type):
            if isinstance(value, form):
                found[name] = value
        elif form is not None and isinstance(value, bytes):
            if isinstance(form, list):
                found.setdefault(name, []).append(_decoded(value, form[0], left))
            else:
                found[name] = _decoded(value, form, left)
    return found
