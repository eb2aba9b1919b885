"""Reads files to the ends that they have now, in the caller's thread, without following them."""

import errno
import os
from collections.abc import Iterable, Iterator

from megatron_monitor.follow.context import MountContext, OpenFiles, Registry
from megatron_monitor.follow.discovery import DiscoveredPath
from megatron_monitor.follow.followed_file import FollowedFile
from megatron_monitor.follow.messages import Message, Scanned, Unreadable, source_id
from megatron_monitor.follow.os_layer import OsLayer
from megatron_monitor.follow.settings import READ_BYTES, FollowSettings
from megatron_monitor.system.clock import Clock


def read_once(found: Iterable[DiscoveredPath], clock: Clock, read_bytes: int = READ_BYTES) -> Iterator[Message]:
    """Yield the messages of each file, in turns of `read_bytes`; of a file with several names once.

    Unreadable is yielded for a file that cannot be read, and for a literal path that is absent or no file.
    """
    system, settings = OsLayer(), FollowSettings(read_bytes=read_bytes)
    files = OpenFiles(system, settings.max_open_files)
    context = MountContext(system, settings, files, Registry({}), lambda _device: True, "")
    yield Scanned("", clock.wall())
    unfinished = [FollowedFile(path, source_id(path), context, literal=literal) for path, literal in found]
    while unfinished:
        left = []
        for file in unfinished:
            file.poll(clock.monotonic(), clock.wall())
            yield from context.pending
            context.pending.clear()
            if file.literal and file.is_away:
                yield Unreadable(file.source, errno.ENOENT, os.strerror(errno.ENOENT), clock.wall())
            elif file.literal and file.unsupported not in ("", "directory", "duplicate"):
                yield Unreadable(file.source, None, f"is a {file.unsupported}", clock.wall())
            if file.caught_up or file.unreadable or file.unsupported or file.is_away:
                files.drop(file)
            else:
                left.append(file)
        unfinished = left
