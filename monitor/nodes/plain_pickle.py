"""Reads a pickle of plain values and executes nothing: an interpreter of the few opcodes that make them. Pure.

Python's own Unpickler calls what a file names; forbidding that (`find_class`) still leaves opcodes that allocate
gigabytes. This one knows dicts, lists, tuples, text, numbers, None and booleans: all that PyTorch's C++ pickler writes
(torch/csrc/jit/serialization/pickler.cpp), and Python's for such values, protocols 2 to 5. Any other opcode is refused.
Work and memory are bounded by the file's size: no opcode makes more than it has bytes, and one that repeats a value
makes a reference.
"""

from __future__ import annotations

import struct
from typing import Any, Final

_MARK: Final = object()
_CONSTANTS: Final = {0x4E: None, 0x88: True, 0x89: False}  # N, NEWTRUE, NEWFALSE
_EMPTY: Final = {0x7D: dict, 0x5D: list, 0x29: tuple}  # } ] )
_TEXTS: Final = {
    0x58: 4,
    0x8C: 1,
    0x8D: 8,
    0x42: 4,
    0x43: 1,
}  # BINUNICODE, SHORT_, 8, BINBYTES, SHORT_: bytes of the length
_NUMBERS: Final = {0x4A: "<i", 0x4B: "<B", 0x4D: "<H", 0x47: ">d"}  # BININT, BININT1, BININT2, BINFLOAT
_SKIPPED: Final = {0x80: 1, 0x95: 8}  # PROTO, FRAME: bytes that say nothing of the value
_PUTS: Final = {0x71: 1, 0x72: 4}  # BINPUT, LONG_BINPUT: bytes of the place
_GETS: Final = {0x68: 1, 0x6A: 4}  # BINGET, LONG_BINGET
_TUPLES: Final = {0x85: 1, 0x86: 2, 0x87: 3}


class NotPlainError(ValueError):
    """The bytes are no pickle of plain values."""


def read_plain(data: bytes) -> Any:
    """The value. Raises NotPlainError for whatever else."""
    try:
        return _Reader(data).read()
    except (IndexError, struct.error, UnicodeDecodeError, TypeError, AttributeError, OverflowError) as error:
        raise NotPlainError(f"it is cut off or no pickle: {error}") from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def read(self) -> Any:
        data, stack, memo = self._data, self._stack, self._memo
        while True:
            opcode = data[self._at]
            self._at += 1
            if opcode in _PUTS:
                memo[self._number(_PUTS[opcode])] = stack[-1]
            elif opcode in _GETS:
                stack.append(self._known(self._number(_GETS[opcode])))
            elif opcode in _TEXTS:
                text = self._take(self._number(_TEXTS[opcode]))
                stack.append(text.decode("utf-8", "surrogatepass"))
            elif opcode in _NUMBERS:
                form = _NUMBERS[opcode]
                stack.append(struct.unpack(form, self._take(struct.calcsize(form)))[0])
            elif opcode in _CONSTANTS:
                stack.append(_CONSTANTS[opcode])
            elif opcode in _EMPTY:
                stack.append(_EMPTY[opcode]())
            elif opcode == 0x28:  # ( MARK
                stack.append(_MARK)
            elif opcode == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
            elif opcode == 0x8A:  # LONG1
                stack.append(int.from_bytes(self._take(self._number(1)), "little", signed=True))
            elif opcode in _TUPLES:
                count = _TUPLES[opcode]
                if len(stack) < count or _MARK in stack[-count:]:
                    raise NotPlainError("a tuple of what is not there")
                stack[-count:] = [tuple(stack[-count:])]
            elif opcode in _SKIPPED:
                self._take(_SKIPPED[opcode])
            elif opcode == 0x2E:  # . STOP
                return stack.pop()
            else:
                self._fill(opcode)

    def _fill(self, opcode: int) -> None:
        """What goes into a container."""
        stack = self._stack
        if opcode == 0x75:  # u SETITEMS
            items = self._since_mark()
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif opcode == 0x65:  # e APPENDS
            items = self._since_mark()
            stack[-1].extend(items)
        elif opcode == 0x74:  # t TUPLE
            stack.append(tuple(self._since_mark()))
        elif opcode == 0x73:  # s SETITEM
            value, key = stack.pop(), stack.pop()
            stack[-1][key] = value
        elif opcode == 0x61:  # a APPEND
            value = stack.pop()
            stack[-1].append(value)
        else:
            raise NotPlainError(f"opcode {opcode:#x} at byte {self._at - 1} makes no plain value: it is not read")

    def _since_mark(self) -> list[Any]:
        stack = self._stack
        place = next((at for at in range(len(stack) - 1, -1, -1) if stack[at] is _MARK), None)
        if place is None:
            raise NotPlainError("items without a beginning")
        items = stack[place + 1 :]
        del stack[place:]
        return items

    def _known(self, place: int) -> Any:
        if place not in self._memo:
            raise NotPlainError(f"value {place} is used before it is made")
        return self._memo[place]

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _take(self, count: int) -> bytes:
        begin, end = self._at, self._at + count
        if end > len(self._data):
            raise NotPlainError("it is cut off")
        self._at = end
        return self._data[begin:end]
