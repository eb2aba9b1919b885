"""Bytes as senders pack them: gzip and snappy, each to a bound, and the fields of a protobuf message. Pure.

WireError: the bytes can never be read. TooLargeError: they are, or become, more than is taken.
"""

import zlib
from collections.abc import Iterator

from cramjam import DecompressionError, snappy


class WireError(Exception):
    """No sender will ever have it read: it is cut, damaged or of another form."""


class TooLargeError(Exception):
    """More than the limit once it is unpacked."""


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
        raise TooLargeError
    if not inflate.eof:
        raise WireError("the body is cut")
    return data


def unsnapped(body: bytes, most: int) -> bytes:
    """A snappy block (google/snappy, format_description.txt), which begins with how large it will be."""
    size, begin = varint(body, 0)
    if size > most:
        raise TooLargeError
    try:
        return bytes(snappy.decompress_raw(body)) if begin < len(body) else b""
    except DecompressionError as error:
        raise WireError(str(error)) from error


def varint(data: bytes, at: int) -> tuple[int, int]:
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


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a message: a number, or bytes (protobuf.dev, Encoding)."""
    at, end = 0, len(data)
    while at < end:
        tag = data[at]
        at += 1
        if tag >= 128:
            tag, at = varint(data, at - 1)
        kind = tag & 7
        if kind == 2:
            if at >= end:
                raise WireError("a field is cut")
            length = data[at]
            at += 1
            if length >= 128:
                length, at = varint(data, at - 1)
        elif kind == 0:
            value, at = varint(data, at)
            yield tag >> 3, value
            continue
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise WireError(f"a field of wire type {kind}")
        if at + length > end:
            raise WireError("a field is cut")
        piece = data[at : at + length]
        at += length
        yield tag >> 3, piece if kind == 2 else int.from_bytes(piece, "little")
