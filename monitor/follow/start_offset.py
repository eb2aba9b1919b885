"""The offset from which a file is read that a path shows for the first time, and whether it is to be read at all.

At the position of the state file; else with that position's file, renamed beside the path; else what no other name has
delivered.
"""

import os
from collections.abc import Iterable
from typing import NamedTuple

from megatron_monitor.follow.content import ENOUGH_BYTES, HEAD_BYTES, TAIL_BYTES, Content, is_strong, tail_of, verify
from megatron_monitor.follow.context import Context, Duplicate
from megatron_monitor.follow.messages import Fingerprint, Position, SourceId, source_id
from megatron_monitor.follow.os_layer import OpenFile
from megatron_monitor.follow.sibling_files import LOOKED_AT, begins_as, copy_of, is_part_of, made_from, made_of, renamed

_NO_ACCIDENT = 1 << 14  # bytes that two launches do not print alike: the times of a few iterations are among them


class Start(NamedTuple):
    """A file that was claimed and opened: its content has the offset from which it is to be read."""

    content: Content
    file: OpenFile
    status: os.stat_result
    position: Position | None = None
    """What was proved of it."""
    name: str = ""
    """Of a copy, or of a file that stood at the path since."""


def resumed(
    context: Context, source: SourceId, path: str, seen: os.stat_result, position: Position
) -> tuple[Start | None, str]:
    """The file that the path names, if the position is true of it; else what speaks against it."""
    identity = seen.st_dev, seen.st_ino
    try:
        file = context.open_claimed(path, identity, source)
    except Duplicate:
        return None, "another source reads this file"
    problem, head, tail = verify(file, position)
    if not problem and seen.st_ino != position.inode and not is_strong(position):
        problem = f"inode {seen.st_ino} instead of {position.inode}"
    if problem:
        return None, problem
    return Start(Content(*identity, position.offset, head, tail), file, seen, position), ""


def resumed_beside(context: Context, source: SourceId, path: str, position: Position) -> Start | None:
    """The position's file, if it was renamed beside the path, or copied and cut, while nobody looked."""
    found, name = renamed(context, path, position), ""
    if found is None and (copy := copy_of(context, path, position)) is not None:
        found, name = copy.opened, copy.name
    if found is None:
        return None
    file, status, (_, head, tail) = found
    identity = status.st_dev, status.st_ino
    if not context.claim(identity, source):
        return None
    return Start(Content(*identity, position.offset, head, tail), file, status, position, name)


def unread(context: Context, source: SourceId, path: str, file: OpenFile, seen: os.stat_result) -> Content:
    """What there is to read in a file just claimed: all of it, or what another name has not delivered before.

    Raises Duplicate if another source is about to resume it.
    """
    registry = context.registry
    reserved = registry.reserved(seen.st_ino, source)
    if reserved is not None and not verify(file, reserved).problem:
        raise Duplicate
    for former in registry.left(seen.st_ino, lambda: _originals(path), seen.st_size):
        problem, head, tail = verify(file, former)
        if not problem:
            return Content(seen.st_dev, seen.st_ino, former.offset, head, tail)
    return Content(seen.st_dev, seen.st_ino)


class Waits(Exception):  # noqa: N818 - a finding
    """A file is not to be begun yet. `copied`: it is a copy, as far as can be seen."""

    def __init__(self, *, copied: bool) -> None:
        super().__init__()
        self.copied = copied


class Held(NamedTuple):
    """Why a file that nobody has read is not to be begun yet."""

    original: SourceId
    """The log that its name is made from."""
    copied: bool
    """It holds nothing but what that log has delivered. Else that log is being rotated, or was not looked at since, and
    takes what is its own first."""
    sure: bool = False
    """No launch that says the same by accident."""


def held_back(
    context: Context, path: str, file: OpenFile, seen: os.stat_result, now: float, since: float
) -> Held | None:
    """Of a file that was met `since`. A copy is held back while its log may be cut any moment, or where it is sure."""
    wait = context.settings.copy_seconds
    for name in sorted(name for name in _originals(path) if name in context.sources) if wait else ():
        if (original := context.sources[name].standing) is None:
            continue
        if (original.settling or original.looked_at < since) and now - since < wait:
            context.hasten(name, now)
            return Held(name, copied=False)
        live, content = original.changed_at >= now - wait, original.content
        if seen.st_size < ENOUGH_BYTES and live and now - since < wait:  # a copy that has only begun
            return Held(name, copied=False)
        if content is not None and is_part_of(context, file, seen.st_size, name, content):
            older = seen.st_size < content.offset and seen.st_mtime <= original.written
            sure = older or seen.st_size >= _NO_ACCIDENT
            if sure or live:
                return Held(name, copied=True, sure=sure)
        if seen.st_size >= _NO_ACCIDENT and _is_part_of_left(context, name, file, seen):
            return Held(name, copied=True, sure=True)
    return None


def _is_part_of_left(context: Context, original: str, file: OpenFile, seen: os.stat_result) -> bool:
    """Is all that the open file holds in one that the original has read to its end and left beside it?"""
    registry = context.registry
    left = [name for name, inode in made_of(context, original) if inode != seen.st_ino and registry.renamed(inode, 0)]
    return any(begins_as(file, seen.st_size, context.files.open(name)) for name in left[:LOOKED_AT])


def whole(file: OpenFile, seen: os.stat_result) -> Fingerprint:
    """The proof of all that an open file holds."""
    head = file.pread(min(HEAD_BYTES, seen.st_size), 0).partition(b"\0")[0]
    start = max(0, seen.st_size - TAIL_BYTES)
    tail = tail_of(file.pread(seen.st_size - start, start))
    return Content(seen.st_dev, seen.st_ino, seen.st_size, head, tail).fingerprint()


def _originals(path: str) -> Iterable[SourceId]:
    """The logs that it may be a copy of, by its name: beside it, or above (logrotate's olddir)."""
    directory, _, name = path.rpartition("/")
    found = (f"{where}/{one}" for one in made_from(name) for where in (directory, directory.rpartition("/")[0]))
    return found if source_id(path) == path else map(source_id, found)
