"""Rotation: from one file of a path to the next. The old one is read to its end first, then the new one from its
beginning. A file that was cut begins anew.
"""

import errno
import os

from msgspec import Struct

from megatron_monitor.follow.content import Content, is_strong, verify
from megatron_monitor.follow.context import Context, Duplicate
from megatron_monitor.follow.log_directory import LogDirectory
from megatron_monitor.follow.messages import Fingerprint, Gone, Restarted, RestartReason, SourceId
from megatron_monitor.follow.start_offset import renamed, unread
from megatron_monitor.follow.tail import Cut, Tail

_TRIES_AT_OLD = 5  # failed reads of a rotated file before its rest is given up: the new one must not wait for ever


class Left(Duplicate):
    """The path names a file that is read under another name. `links`: names of the old file, None if it is lost."""

    def __init__(self, links: int | None) -> None:
        super().__init__()
        self.links = links


class Rotation(Struct, eq=False):
    """Of one source. Times: `now` is monotonic, `at` Unix seconds."""

    source: SourceId
    path: str
    context: Context
    tail: Tail
    directory: LogDirectory
    failures: int = 0
    """To look at the path, in a row."""
    moved_at: float | None = None
    """Since when the path names another file than the one that is read."""

    def cut(self, cut: Cut, seen: os.stat_result, now: float, at: float) -> None:
        """What was read of the file is no longer in it: it is read from its beginning."""
        tail = self.tail
        content = tail.content
        assert content is not None
        reason: RestartReason = "truncated" if cut.held or seen.st_size < content.offset else "replaced"
        self.switch(reason, cut.proof, Content(*content.identity), at, left=None)
        if tail.read_on(seen, now, at) is not None:
            tail.soon = True

    def moved(self, seen: os.stat_result, now: float, at: float) -> None:
        """The path names another file: first the rest of the old one, then the new one. Raises Duplicate, Changed."""
        tail = self.tail
        content = tail.content
        assert content is not None
        if self.moved_at is None:
            self.moved_at = now
        links = self.drain(now, at, is_last=not seen.st_size)
        if tail.more:
            return
        if seen.st_size == 0 and links:
            self.moved_at = None  # while the new file is empty the writer may not have moved over yet
            return
        drained = links is not None
        if drained and now - self.moved_at < self.context.settings.rotation_grace:
            tail.soon = True
            return
        identity = seen.st_dev, seen.st_ino
        try:
            file = self.context.open_claimed(self.path, identity, self.source)
            mark = content.fingerprint()
            same_inode = seen.st_ino == content.inode
            if (same_inode or (not links and is_strong(mark))) and not verify(file, mark).problem:
                # A remount, or a copy with more in it moved over the old one (rsync): the same text, another number.
                content.device, content.inode = identity
                tail.put(file)
                return
            begun = unread(self.context, self.source, file, seen)
        except Duplicate:
            raise Left(links) from None
        tail.put(file)
        proof = f"device and inode {identity} instead of {content.identity}"
        self.switch("rotated" if drained else "replaced", proof, begun, at, left=mark if links else None)

    def drain(self, now: float, at: float, *, is_last: bool = True) -> int | None:
        """Read the old file on; is there none behind it? Gives the names it still has, or None if it cannot be had."""
        tail = self.tail
        if tail.content is None:
            return None
        file = tail.file
        held = file is not None
        try:
            if file is None:
                found = renamed(self.context, self.path, tail.content.fingerprint())
                if found is None:
                    return None
                file = found[0]
                tail.put(file)
            status = file.stat()
            block = tail.read(file, status, now, at, is_last=is_last)
        except OSError as error:
            stale = held and error.errno == errno.ESTALE
            if not stale and self.failures < _TRIES_AT_OLD:
                raise
            self.context.count_error(error)
            tail.close()
            return self.drain(now, at, is_last=is_last) if stale else None  # it may be had under another name
        if not block.changed:
            return status.st_nlink
        tail.close()  # it was cut before it was renamed
        return None

    def switch(
        self, reason: RestartReason, proof: str, content: Content, at: float, *, left: Fingerprint | None
    ) -> None:
        """The source goes on with other content. `left`: the old file, which was read to its end."""
        tail = self.tail
        if left is not None:
            self.context.registry.remember(left)
        tail.turn_to(content)
        self.directory.forget()
        self.moved_at = None
        if tail.announced and not content.offset:
            self.context.tell(Restarted(self.source, reason, proof, *content.identity, former=left, at=at))
        elif tail.announced:  # another name delivered what stands here now: nothing of this source's own
            tail.announced = False
            self.context.tell(Gone(self.source, at))
