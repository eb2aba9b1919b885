"""One read of one open file: what may be taken now, and whether the bytes before it are still those that were read.

Trailing NULs are left: blocks that a file system or a writer reserved are overwritten in place later. NULs with text
behind them are passed on; long runs and holes are skipped. One `pread` both checks the tail and reads on.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from monitor.follow.identity import Content
from monitor.follow.os_layer import OsLayer

_PAGE_BYTES = 4096
_HOLE_BLOCKS = 8  # blocks of real zeros looked through per pass; holes cost one call whatever their size
_NOT_NUL = re.compile(rb"[^\0]")


class Taken(NamedTuple):
    """`data` lies at `offset`; `at_end`: nothing more to take now."""

    offset: int
    data: bytes
    at_end: bool
    changed: bool = False
    """The bytes before the offset are not those that were read: data is empty."""
    hole: bool = False
    """A run of NULs that ends at a page boundary is waited for."""
    scanned: int = 0
    """How far real zeros were looked through: where the next pass goes on."""


def take(os_layer: OsLayer, descriptor: int, content: Content, count: int, *, patient: bool, scanned: int = 0) -> Taken:
    """At most `count` new bytes. `patient`: runs of NULs may still be filled, stop before them."""
    tail = content.tail
    block = os_layer.pread(descriptor, len(tail) + count, content.offset - len(tail))
    if not block.startswith(tail):
        return Taken(content.offset, b"", True, changed=True)
    if not tail and content.offset and not block and os_layer.fstat(descriptor).st_size < content.offset:
        return Taken(content.offset, b"", True, changed=True)
    fresh = block[len(tail) :] if tail else block
    end = text_end(fresh)
    short = len(fresh) < count
    if end:
        stop = first_unfilled(fresh, end, content.offset) if patient else end
        return Taken(content.offset, fresh[:stop], short or stop < end, hole=stop < end)
    if short:
        return Taken(content.offset, b"", True)
    return _beyond(os_layer, descriptor, max(scanned, content.offset + count), count, content.offset, patient)


def text_end(data: bytes) -> int:
    """Length without trailing NULs."""
    return len(data.rstrip(b"\0"))


def first_unfilled(data: bytes, end: int, offset: int) -> int:
    """Where the first run of NULs begins that ends at a page boundary of the file; `end` if there is none.

    A network client writes whole pages back in any order, so a page that has not arrived ends where a page ends. A
    writer's own hole (copytruncate without append) ends anywhere.
    """
    start = data.find(b"\0", 0, end)
    while start >= 0:
        text = _NOT_NUL.search(data, start)
        if text is None:
            return end
        if (offset + text.start()) % _PAGE_BYTES == 0:
            return start
        start = data.find(b"\0", text.start(), end)
    return end


def _beyond(os_layer: OsLayer, descriptor: int, start: int, count: int, offset: int, patient: bool) -> Taken:
    """A whole block was NULs: the next text, wherever it is."""
    position = start
    for _ in range(_HOLE_BLOCKS):
        found = os_layer.next_data(descriptor, position)
        if found is None:
            return Taken(offset, b"", True)
        block = os_layer.pread(descriptor, count, found)
        text = block.lstrip(b"\0")
        if text:
            place = found + len(block) - len(text)
            if patient and place % _PAGE_BYTES == 0:
                return Taken(offset, b"", True, hole=True)
            end = text_end(text)
            return Taken(place, text[:end], len(block) < count)
        if len(block) < count:
            return Taken(offset, b"", True)
        position = found + len(block)
    return Taken(offset, b"", False, scanned=position)
