"""Reads a pickle of plain values without executing code: an interpreter of the few opcodes for such values. Pure.

Python's Unpickler calls functions that a file names. With `find_class` forbidden, other opcodes still allocate
gigabytes. This module uses pickletools and accepts the opcodes of dicts, lists, tuples, text, numbers, None and
booleans: all that PyTorch's C++ pickler (torch/csrc/jit/serialization/pickler.cpp) and Python's protocols 2 to 5 write
for such values. Other opcodes are refused, and so are keys that are not text, because numbers can be chosen to collide.
Time and memory are bounded by the file's size and by `_MAX_OPCODES`: no opcode creates more than its bytes, and a
repeated value is a reference. So a value may contain itself.
"""

import pickletools
from typing import Any, Final

_MAX_OPCODES: Final = 12_000_000  # some 15 s; 20,000 entries with 20 frames each take 7 million
_MARK: Final = object()
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "MARK": _MARK}
_EMPTY: Final = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_BYTES: Final = frozenset({"BINBYTES", "SHORT_BINBYTES"})
_WRITTEN: Final = frozenset(
    {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BININT", "BININT1", "BININT2", "BINFLOAT", "LONG1"}
)
_SKIPPED: Final = frozenset({"PROTO", "FRAME"})


class NotPlainError(ValueError):
    """The bytes are not a pickle of plain values."""


def read_plain(data: bytes) -> Any:
    """Return the value of a pickle. Raises NotPlainError for any other bytes."""
    try:
        return _read(data)
    except NotPlainError:
        raise
    except (IndexError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise NotPlainError(f"it is truncated or not a pickle: {error}") from error


def _read(data: bytes) -> Any:
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for done, (opcode, given, place) in enumerate(pickletools.genops(data)):
        name = opcode.name
        if done >= _MAX_OPCODES:
            raise NotPlainError(f"it has more than {_MAX_OPCODES} values")
        if name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if given is None else given] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            if given not in memo:
                raise NotPlainError(f"value {given} is used before it is defined")
            stack.append(memo[given])
        elif name in _WRITTEN:
            stack.append(given)
        elif name in _BYTES:
            stack.append(bytes(given or b"").decode("utf-8", "surrogatepass"))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name not in _SKIPPED and name != "STOP":
            _fill(stack, opcode, place)
    return stack.pop()


def _fill(stack: list[Any], opcode: pickletools.OpcodeInfo, place: int | None) -> None:
    """Execute an opcode that fills a container."""
    match opcode.name:
        case "SETITEMS":
            items = _since_mark(stack)
            stack[-1].update(zip(map(_key, items[::2]), items[1::2], strict=True))
        case "APPENDS":
            items = _since_mark(stack)
            stack[-1].extend(items)
        case "TUPLE":
            stack.append(tuple(_since_mark(stack)))
        case "TUPLE1" | "TUPLE2" | "TUPLE3":
            count = int(opcode.name[-1])
            if len(stack) < count or _MARK in stack[-count:]:
                raise NotPlainError("a tuple without its items")
            stack[-count:] = [tuple(stack[-count:])]
        case "SETITEM":
            value, key = stack.pop(), stack.pop()
            stack[-1][_key(key)] = value
        case "APPEND":
            value = stack.pop()
            stack[-1].append(value)
        case _:
            raise NotPlainError(f"opcode {ord(opcode.code):#x} at byte {place} does not make a plain value")


def _key(value: Any) -> str:
    if not isinstance(value, str):
        raise NotPlainError("a key is not text")
    return value


def _since_mark(stack: list[Any]) -> list[Any]:
    place = next((at for at in range(len(stack) - 1, -1, -1) if stack[at] is _MARK), None)
    if place is None:
        raise NotPlainError("items without a beginning")
    items = stack[place + 1 :]
    del stack[place:]
    return items
