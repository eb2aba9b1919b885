"""The offset from which a file is read that a path shows for the first time.

That of the saved position, if it is proved; else that of the position's file, renamed beside the path; else the end of
what another name has delivered, which mostly is 0.
"""

import os
from typing import NamedTuple

from megatron_monitor.follow.content import (
    HEAD_BYTES,
    TAIL_BYTES,
    Content,
    Verified,
    digest,
    is_strong,
    tail_of,
    verify,
)
from megatron_monitor.follow.context import Context, Duplicate
from megatron_monitor.follow.messages import Fingerprint, Position, SourceId
from megatron_monitor.follow.os_layer import OpenFile
from megatron_monitor.follow.patterns import may_be_log


class Start(NamedTuple):
    """A file that was claimed and opened: its content has the offset from which it is to be read."""

    content: Content
    file: OpenFile
    status: os.stat_result
    position: Position | None = None
    """What was proved of it."""


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


def renamed(context: Context, path: str, mark: Fingerprint) -> tuple[OpenFile, os.stat_result, Verified] | None:
    """The file of the mark under another name beside `path`: what a rename while nobody looked left unread."""
    directory, _, own = context.os_layer.realpath(path).rpartition("/")
    try:
        entries = list(context.os_layer.scandir(directory or "/"))
    except FileNotFoundError:
        return None
    for entry in entries:
        if entry.inode != mark.inode or entry.name == own or entry.kind != "file":
            continue
        if may_be_log(entry.name, in_tree=False):
            file = context.files.open(f"{directory}/{entry.name}")
            verified = verify(file, mark)
            if not verified.problem:
                return file, file.stat(), verified
    return None


def resumed_beside(context: Context, source: SourceId, path: str, position: Position) -> Start | None:
    """The position's file, if it was renamed beside the path while nobody looked."""
    found = renamed(context, path, position)
    if found is None:
        return None
    file, status, (_, head, tail) = found
    identity = status.st_dev, status.st_ino
    if not context.claim(identity, source):
        return None
    return Start(Content(*identity, position.offset, head, tail), file, status, position)


def unread(context: Context, source: SourceId, file: OpenFile, seen: os.stat_result) -> Content:
    """What there is to read in a file just claimed: all of it, or what another name has not delivered before; of the
    copy of a log that was cut, what will be added to it.

    Raises Duplicate if another source is about to resume it.
    """
    registry = context.registry
    reserved = registry.reserved(seen.st_ino, source)
    if reserved is not None and not verify(file, reserved).problem:
        raise Duplicate
    for former in registry.left(seen.st_ino):
        problem, head, tail = verify(file, former)
        if not problem:
            return Content(seen.st_dev, seen.st_ino, former.offset, head, tail)
    head = file.pread(HEAD_BYTES, 0)
    for former in registry.cut(source, digest(head)) if len(head) == HEAD_BYTES else ():
        if not verify(file, former).problem:  # a copy of a log that was cut (copytruncate): nothing in it is news
            tail = tail_of(file.pread(TAIL_BYTES, max(0, seen.st_size - TAIL_BYTES)))
            return Content(seen.st_dev, seen.st_ino, seen.st_size, head, tail)
    return Content(seen.st_dev, seen.st_ino)
