"""Expands Slurm node lists such as `jpbo-034-[01-38,40],login1`, and joins names to a list. Pure.

The grammar is that of `scontrol show hostnames` (src/common/hostlist.c): names are separated by commas outside
brackets; brackets contain numbers and ranges; the zeros of the first number give the width; several brackets multiply.
"""

import itertools
from collections.abc import Iterable, Iterator

from megatron_monitor.parsers.patterns import lazy

MOST = 65_536
"""Maximum names: no cluster is larger, and `n[1-99999999]` in a log must not fill the memory."""
_MAX_TEXT = 1_000_000
"""Maximum characters of a list: 65,536 names of 15 characters each."""

_NAME = lazy(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9_])?")
_ITEM = lazy(r"(?:[^,\s\[\]]|\[[^\[\]]*\])+")
_PIECE = lazy(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = lazy(r"(\d{1,12})(?:-(\d{1,12}))?")


class HostlistError(ValueError):
    """The text is not a node list. The message shows where."""


def is_node_name(text: str) -> bool:
    """Return True for a valid host name. Other text is never passed to another program."""
    return _NAME.fullmatch(text) is not None


def expand(text: str) -> list[str]:
    """Return the names of a list, in its order, each once. Raises HostlistError, also for more than MOST names."""
    if len(text) > _MAX_TEXT:
        raise HostlistError(f"a node list of {len(text)} characters; at most {_MAX_TEXT} are read")
    if rest := _ITEM.sub("", text).strip(", \t\r\n"):
        raise HostlistError(f"{rest[:80]!r} is not part of a node list")
    names: dict[str, None] = {}
    for item in _ITEM.finditer(text):
        for name in _expand_item(item[0]):
            if not is_node_name(name):
                raise HostlistError(f"{name[:80]!r} in {item[0][:80]!r} is not a node name")
            names[name] = None
            if len(names) > MOST:
                raise HostlistError(f"{item[0][:80]!r} names more than {MOST} nodes")
    return list(names)


def joined(names: Iterable[str]) -> str:
    """Return the list of these names: sorted, each once, without ranges."""
    return ",".join(sorted(set(names)))


def _expand_item(item: str) -> Iterator[str]:
    """Yield the names of one item: the product of its brackets, the first one slowest."""
    pieces: list[list[str]] = []
    count = 1
    for match in _PIECE.finditer(item):
        pieces.append(list(_numbers(match[1], item)) if match[1] is not None else [match[2]])
        count *= len(pieces[-1])
        if count > MOST:
            raise HostlistError(f"{item[:80]!r} names more than {MOST} nodes")
    return map("".join, itertools.product(*pieces))


def _numbers(ranges: str, item: str) -> Iterator[str]:
    for text in ranges.split(","):
        match = _RANGE.fullmatch(text.strip())
        if match is None:
            raise HostlistError(f"{text[:80]!r} in {item[:80]!r} is neither a number nor a range such as 01-38")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low:
            raise HostlistError(f"the range {text[:80]!r} in {item[:80]!r} runs backwards")
        if high - low >= MOST:
            raise HostlistError(f"{item[:80]!r} names more than {MOST} nodes")
        for number in range(low, high + 1):
            yield f"{number:0{len(match[1])}d}"
