"""JSON from other programs: some agents and damaged files have bytes in strings that are not UTF-8."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def read_json(data: bytes, decode: Callable[[bytes | str], T] | None = None) -> T | Any:
    """Return the value (`decode`: of a known type), with U+FFFD for such bytes in strings. Raises msgspec.MsgspecError,
    also if the value is nested too deeply.
    """
    decode = decode or msgspec.json.decode
    try:
        try:
            return decode(data)
        except UnicodeDecodeError:
            return decode(data.decode("utf-8", "replace"))
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error
