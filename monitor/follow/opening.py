"""How a source begins: with a new file, with the position of the state file, or with what another name left unread."""

from __future__ import annotations

import os
from typing import NamedTuple

from monitor.follow.context import Context
from monitor.follow.identity import Content, is_strong
from monitor.follow.messages import Opened, Position, SourceId
from monitor.follow.textual import looks_binary

_SNIFFED_BYTES = 1024


class Begun(NamedTuple):
    """The open file; or nothing, and why."""

    content: Content | None = None
    descriptor: int = -1
    status: os.stat_result | None = None
    position: Position | None = None
    proof: str = ""
    quiet: bool = False
    """Another name delivered all this: the source is announced when there is more."""
    unsupported: str = ""
    """binary or duplicate: nothing to follow under this name. Nothing at all: the path changed under us, look again."""


def begin_new(context: Context, path: str, source: SourceId, seen: os.stat_result, *, literal: bool) -> Begun:
    """A file that no position speaks of. `literal`: follow it whatever it holds."""
    identity = seen.st_dev, seen.st_ino
    if not context.registry.claim(identity, source):
        return Begun(unsupported="duplicate")
    descriptor = context.open_as(path, identity)
    if descriptor is None:
        context.registry.release(identity, source)
        return Begun()
    if not literal and looks_binary(context.pread(descriptor, _SNIFFED_BYTES, 0)):
        context.descriptors.discard(descriptor)
        context.registry.release(identity, source)
        return Begun(unsupported="binary")
    content = unread(context, source, descriptor, seen)
    if content is None:
        context.descriptors.discard(descriptor)
        context.registry.release(identity, source)
        return Begun(unsupported="duplicate")
    return Begun(content, descriptor, seen, quiet=content.offset > 0)


def unread(context: Context, source: SourceId, descriptor: int, seen: os.stat_result) -> Content | None:
    """What there is to read in an open file: all of it, or what another name has not delivered before.

    None: another source is about to resume it. The descriptor is closed only if the file cannot be read.
    """
    reserved = context.registry.reserved(seen.st_ino, source)
    if reserved is not None and not context.verify(descriptor, reserved).problem:
        return None
    former = context.registry.former(seen.st_ino)
    if former is not None:
        verified = context.verify(descriptor, former)
        if not verified.problem:
            return Content(seen.st_dev, seen.st_ino, former.offset, verified.head, verified.tail)
    return Content(seen.st_dev, seen.st_ino)


def begin_again(context: Context, path: str, source: SourceId, seen: os.stat_result, position: Position) -> Begun:
    """Is the position true of the file that the path names? If not, `proof` says what speaks against it."""
    identity = seen.st_dev, seen.st_ino
    if not context.registry.claim(identity, source):
        return Begun(unsupported="duplicate", proof="another source reads this file")
    descriptor = context.open_as(path, identity)
    if descriptor is None:
        context.registry.release(identity, source)
        return Begun()
    verified = context.verify(descriptor, position)
    problem = verified.problem
    if not problem and seen.st_ino != position.inode and not is_strong(position):
        problem = f"inode {seen.st_ino} instead of {position.inode}"
    if problem:
        context.descriptors.discard(descriptor)
        return Begun(status=seen, proof=problem)
    content = Content(*identity, position.offset, verified.head, verified.tail)
    return Begun(content, descriptor, seen, position)


def begin_renamed(context: Context, path: str, source: SourceId, position: Position) -> Begun:
    """The position's file, renamed beside the path while nobody looked: its rest is read before the path's own file."""
    found = context.find_renamed(path, position)
    if found is None:
        return Begun()
    descriptor, status, verified = found
    identity = status.st_dev, status.st_ino
    if not context.registry.claim(identity, source):
        context.descriptors.discard(descriptor)
        return Begun(unsupported="duplicate")
    content = Content(*identity, position.offset, verified.head, verified.tail)
    return Begun(content, descriptor, status, position)


def opened(
    source: SourceId, path: str, content: Content, status: os.stat_result, position: Position | None, proof: str = ""
) -> Opened:
    """The message for what was begun."""
    return Opened(
        source,
        path,
        position,
        status.st_size,
        status.st_mtime,
        position is not None,
        offset=content.offset,
        device=content.device,
        inode=content.inode,
        head=content.head,
        tail=content.tail,
        proof=proof,
    )
