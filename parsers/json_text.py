"""JSON that others wrote: some agents, and files that were damaged, hold bytes in its strings that are no UTF-8."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def read_json(data: bytes, decode: Callable[[bytes | str], T] | None = None) -> T | Any:
    """The value (`decode`: of a known type), its strings with U+FFFD for such bytes. Raises msgspec.MsgspecError, also
    where it is nested too deeply.
    """
    decode = decode or msgspec.json.decode
    try:
        try:
            return decode(data)
        except UnicodeDecodeError:
            return decode(data.decode("utf-8", "replace"))
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error
