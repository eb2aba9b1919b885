"""JSON from other programs: some agents and damaged files have bytes in strings that are not UTF-8."""

from typing import Any

import msgspec


def read_json(data: bytes) -> Any:
    """Return the value, with U+FFFD for such bytes in strings. Raises msgspec.MsgspecError, also if the value is nested
    too deeply.
    """
    try:
        try:
            return msgspec.json.decode(data)
        except UnicodeDecodeError:
            return msgspec.json.decode(data.decode("utf-8", "replace"))
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error
