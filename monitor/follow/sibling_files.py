"""Files beside a log that a rotation made of it: renamed, or copied before it was cut (copytruncate).

Names only say where to look; contents prove. The one exception are the files of rotations that came and went between
two looks (`passed_by`): nobody has read a byte of them, so their names, inodes and times must do.
"""

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from megatron_monitor.follow.content import ENOUGH_BYTES, TAIL_BYTES, Content, Verified, digest, is_strong, verify
from megatron_monitor.follow.context import Changed, Context
from megatron_monitor.follow.messages import Fingerprint
from megatron_monitor.follow.os_layer import Entry, OpenFile
from megatron_monitor.follow.patterns import may_be_log

_SEPARATORS = re.compile(r"[-._~ ]+")
_DIGITS = re.compile(r"\d+")
_PIECES = 12  # of a name, from its end: to drop any of them gives 90 names to look for
LOOKED_AT = 64  # files beside a log that are opened in search of its copy


def renamed(context: Context, path: str, mark: Fingerprint) -> tuple[OpenFile, os.stat_result, Verified] | None:
    """The file of the mark under another name beside `path`: what a rename while nobody looked left unread."""
    for name, entry in _files(context, path):
        if entry.inode != mark.inode:
            continue
        file = context.files.open(name)
        verified = verify(file, mark)
        if not verified.problem:
            return file, file.stat(), verified
    return None


class Copy(NamedTuple):
    """A file that holds what was read of a log before it was cut: `mark` says how much of it."""

    mark: Fingerprint
    name: str
    opened: tuple[OpenFile, os.stat_result, Verified] | None
    """Where it may hold more than was read. None: it holds less, so that all of it was read."""


def copy_of(context: Context, path: str, mark: Fingerprint, head: bytes = b"", recent: bytes = b"") -> Copy | None:
    """The copy of what `path` held before it was cut. `head` and `recent`: the first and the last bytes read of it."""
    shorter: list[Copy] = []
    longest: tuple[OpenFile, os.stat_result, Verified] | None = None
    found = ""
    for name in _may_be_copies(context, path) if is_strong(mark) else ():
        file = context.files.open(name)
        status, verified = file.stat(), verify(file, mark)
        if not verified.problem and (longest is None or longest[1].st_size < status.st_size):
            longest, found = (file, status, verified), name
        elif (less := _shorter(file, status, mark.offset, head, recent)) is not None:
            shorter.append(Copy(less, name, None))
    if longest is not None:
        status = longest[1]
        there = Fingerprint(
            status.st_dev, status.st_ino, mark.head_bytes, mark.head_hash, mark.offset, mark.tail_bytes, mark.tail_hash
        )
        return Copy(there, found, longest)
    return max(shorter, key=lambda one: one.mark.offset, default=None)


def _may_be_copies(context: Context, path: str) -> list[str]:
    """Beside `path`: first those that nobody has read, then those that may have been written over since."""
    registry = context.registry
    new: list[str] = []
    known: list[str] = []
    for name, inode in made_of(context, path):
        (known if registry.renamed(inode, 0) else new).append(name)
    return new[:LOOKED_AT] + known[:LOOKED_AT]


def is_part_of_file(context: Context, file: OpenFile, size: int, path: str, seen: os.stat_result) -> bool:
    """As `is_part_of`, of a file that need not have been read."""
    return is_part_of(context, file, size, path, Content(seen.st_dev, seen.st_ino, seen.st_size))


def is_part_of(context: Context, file: OpenFile, size: int, path: str, content: Content) -> bool:
    """Is all that the open file holds what was read at `path`?"""
    if not ENOUGH_BYTES <= size <= content.offset:
        return False
    if not file.pread(TAIL_BYTES, 0).startswith(content.head[: min(TAIL_BYTES, size)]):
        return False
    try:
        known = context.open_as(path, content.identity)
    except (Changed, OSError):  # it cannot be told
        return False
    return begins_as(file, size, known)


def begins_as(file: OpenFile, size: int, known: OpenFile) -> bool:
    """Do the two open files agree that far? Looked at: the begin, the middle and the end."""
    count = min(TAIL_BYTES, size)
    places = [0, (size - count) // 2, size - count]
    with contextlib.suppress(OSError):
        return size >= ENOUGH_BYTES and all(known.pread(count, place) == file.pread(count, place) for place in places)
    return False


def made_of(context: Context, path: str) -> list[tuple[str, int]]:
    """The files beside `path` whose names are made from its own, with their inodes."""
    own = os.path.basename(path)
    return [(name, entry.inode) for name, entry in _files(context, path) if own in made_from(entry.name)]


def rotations(context: Context, path: str) -> dict[int, str]:
    """The paths of files beside `path` that are named as rotations name them, by inode."""
    named = _rotated(os.path.basename(path))
    return {entry.inode: name for name, entry in _files(context, path) if named.fullmatch(entry.name)}


def passed_by(
    context: Context, path: str, known: frozenset[int] | None, written: float, read: set[int], copied: str = ""
) -> list[tuple[str, os.stat_result]]:
    """Files that may have stood at `path` after the one written last at `written`, rotated away unread; oldest first.

    `known`: the inodes that lay beside it before; None if nobody looked. One of these, or where nobody looked any, must
    have been renamed since it was written (inodes are used again), or be named as `copied`: the copy of what was read,
    before the log was cut. `read`: inodes of what was read. Risk left: a file that is written under such a name of its
    own, and whose mode was changed since, is taken for one.
    """
    found: list[tuple[str, os.stat_result]] = []
    for inode, name in rotations(context, path).items():
        if inode in read:
            continue
        try:
            status = context.stat(name)
        except FileNotFoundError:
            continue
        new = known is not None and inode not in known
        renamed_since = status.st_ctime > status.st_mtime and (written or known is None)
        alike = bool(copied) and _DIGITS.sub("0", name) == _DIGITS.sub("0", copied)
        if status.st_mtime >= written and status.st_size and (new or renamed_since or alike):
            found.append((name, status))
    return sorted(found, key=lambda one: (one[1].st_mtime, one[1].st_ctime, one[1].st_ino))


@functools.lru_cache(maxsize=4096)
def made_from(name: str) -> frozenset[str]:
    """The names of which this one may have been made: with a piece put before, into or behind them."""
    cuts, found = [one.span() for one in _SEPARATORS.finditer(name)][-_PIECES:], set[str]()
    for number, (start, end) in enumerate(cuts):
        before = name[:start]
        found |= {before, name[end:], *[before + name[later:] for later, _ in cuts[number + 1 :]]}
    return frozenset(found - {"", name})


@functools.lru_cache(maxsize=4096)
def _rotated(base: str) -> re.Pattern[str]:
    """main.log.1  main.log-20261121  main-20261121.log  main.log.old"""
    number = r"[-._](?:\d[-._:T\d]{0,40}|(?:old|bak|prev|copy)[-. \d]{0,9})"
    stem, dot, extension = base.rpartition(".")
    if not stem:
        return re.compile(re.escape(base) + number)
    return re.compile(f"{re.escape(base)}{number}|{re.escape(stem)}{number}{re.escape(dot + extension)}")


def _files(context: Context, path: str) -> Iterator[tuple[str, Entry]]:
    """The files beside a log that may be logs, with their paths."""
    directory, _, own = context.os_layer.realpath(path).rpartition("/")
    try:
        entries = list(context.os_layer.scandir(directory or "/"))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name != own and entry.kind == "file" and may_be_log(entry.name, in_tree=False):
            yield f"{directory}/{entry.name}", entry


def _shorter(file: OpenFile, status: os.stat_result, offset: int, head: bytes, recent: bytes) -> Fingerprint | None:
    """A copy that was made before the last lines came: it ends within what was read last."""
    size, head = status.st_size, head[: status.st_size]
    end = len(recent) - (offset - size)
    if not ENOUGH_BYTES <= end < len(recent) or file.pread(len(head), 0) != head:
        return None
    tail = recent[max(0, end - TAIL_BYTES) : end]
    if file.pread(len(tail), size - len(tail)) != tail:
        return None
    return Fingerprint(status.st_dev, status.st_ino, len(head), digest(head), size, len(tail), digest(tail))
