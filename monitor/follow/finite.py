"""Reads files to the ends that they have now, in the caller's thread, without following them."""

import os
from collections.abc import Iterable, Iterator

from megatron_monitor.follow.content import Content, read_block
from megatron_monitor.follow.discovery import DiscoveredPath, unsupported_kind
from megatron_monitor.follow.messages import CaughtUp, Data, Message, Opened, Scanned, Unreadable, source_id
from megatron_monitor.follow.os_layer import OpenFile, OsLayer
from megatron_monitor.follow.patterns import BINARY_CHECK_BYTES, looks_binary
from megatron_monitor.follow.settings import READ_BYTES
from megatron_monitor.system.clock import Clock


def read_once(found: Iterable[DiscoveredPath], clock: Clock, read_bytes: int = READ_BYTES) -> Iterator[Message]:
    """Yield the messages of each file, in turns of `read_bytes`; of a file with several names once.

    Unreadable is yielded for a file that cannot be read, and for a literal path that is absent or no file.
    """
    known = set[tuple[int, int]]()
    yield Scanned("", clock.wall())
    unfinished = [_read(path, literal, known, clock, read_bytes) for path, literal in found]
    while unfinished:
        left = []
        for messages in unfinished:
            for message in messages:
                if message is None:
                    left.append(messages)
                    break
                yield message
        unfinished = left


def _read(
    path: str, literal: bool, known: set[tuple[int, int]], clock: Clock, read_bytes: int
) -> Iterator[Message | None]:  # fmt: skip
    """Yield the messages of one file, and None at the end of each turn but the last."""
    system, source, content = OsLayer(), source_id(path), None
    try:
        if kind := unsupported_kind(os.stat(path).st_mode):
            if literal and kind != "directory":
                yield Unreadable(source, None, f"is a {kind}", clock.wall())
            return
        while True:
            file = OpenFile(system, system.open(path))  # for each turn: there may be more files than descriptors
            status = file.stat()
            if content is None:
                identity = status.st_dev, status.st_ino
                if identity in known or (not literal and looks_binary(file.pread(BINARY_CHECK_BYTES, 0))):
                    return
                known.add(identity)
                content = Content(*identity)
                yield Opened(source, path, None, status.st_size, status.st_mtime, False, owner=status.st_uid)
            block = read_block(file, content, read_bytes, wait_for_holes=False)
            if block.data:
                content.advance(block.offset, block.data)
                behind = max(0, status.st_size - content.offset)
                yield Data(source, block.offset, block.data, status.st_mtime, clock.wall(), behind)
            if block.at_end:
                break
            yield None
        yield CaughtUp(source, clock.wall())
    except OSError as error:
        if literal or not isinstance(error, FileNotFoundError):
            yield Unreadable(source, error.errno, error.strerror or str(error), clock.wall())
