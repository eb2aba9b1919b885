"""Rotation: from one file of a path to the next. The old one is read to its end first, then what came and went between
two looks, then what the path names now.

A file that was cut is, where its copy lies beside it, a file that was renamed: the rest of it stands in the copy.
"""

import errno
import os
from collections.abc import Callable

import msgspec
from msgspec import Struct

from megatron_monitor.follow.content import Content, is_strong, verify
from megatron_monitor.follow.context import Changed, Context, Duplicate
from megatron_monitor.follow.log_directory import LogDirectory
from megatron_monitor.follow.messages import Fingerprint, Gone, Restarted, RestartReason, SourceId
from megatron_monitor.follow.os_layer import OpenFile
from megatron_monitor.follow.sibling_files import begins_as, copy_of, is_part_of_file, passed_by, renamed, rotations
from megatron_monitor.follow.start_offset import Start, unread
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
    content_of: Callable[[OpenFile, os.stat_result, float, float], Content]
    """What is to be read of a file that the path shows for the first time: as in `Source`."""
    failures: int = 0
    """To look at the path, in a row."""
    copied: str = ""
    """The copy of what was read before the file was cut. Other copies may have been made since."""
    _moved_at: float | None = None
    _cut_by: tuple[RestartReason, str] | None = None
    """The file was cut, and why and by what proof that is known: its copy is read to the end first."""
    _rewritten: bool = False
    """The old file was cut and holds other text, which nobody has read."""
    _beside: frozenset[int] | None = None
    """Inodes under the names of rotations, when that was last looked up."""

    @property
    def under_way(self) -> bool:
        """Is the source between two files?"""
        return self._moved_at is not None or self._cut_by is not None

    def over(self) -> None:
        """The path names the file that is read."""
        self._moved_at = None

    def note_beside(self) -> None:
        """While the log grows: which names of rotations are there already."""
        if self._beside is None:
            self._beside = frozenset(rotations(self.context, self.path))

    def cut(self, cut: Cut, seen: os.stat_result, now: float, at: float) -> None:
        """What was read of the file is no longer in it: its first bytes now are new."""
        tail = self.tail
        content = tail.content
        assert content is not None
        reason: RestartReason = "truncated" if cut.held or seen.st_size < content.offset else "replaced"
        left = self._take_copy()
        if left is None:  # what was not read before the cut stands there: as if the file had been renamed
            tail.more, self._cut_by = True, (reason, cut.proof)
            return
        if self.copied and self._passed_by(seen, now, at, left):
            return
        self.switch(reason, cut.proof, Content(*content.identity), at, left=left)
        if tail.read_on(seen, now, at) is not None:
            tail.soon = True

    def moved(self, seen: os.stat_result, now: float, at: float) -> None:
        """The path names another file: first the rest of the old one, then the new one."""
        tail = self.tail
        content = tail.content
        assert content is not None
        if self._moved_at is None:
            self._moved_at = now
        links = self.drain(now, at, is_last=not seen.st_size)
        if tail.more:
            return
        drained = links is not None
        if seen.st_size == 0 and links and self._cut_by is None:
            self._moved_at = None  # while the new file is empty the writer may not have moved over yet
            return
        if drained and now - self._moved_at < self.context.settings.rotation_grace:
            tail.soon = True
            return
        if self._passed_by(seen, now, at, content.fingerprint() if links else None, drained=drained):
            return
        try:
            begun = self._open_new(seen, now, at, links)
        except Duplicate:
            raise Left(links) from None
        if begun is None:
            return
        proof = f"device and inode {seen.st_dev, seen.st_ino} instead of {content.identity}"
        reason, proof = self._cut_by or ("rotated" if drained else "replaced", proof)
        self.switch(reason, proof, begun, at, left=content.fingerprint() if links else None)

    def _open_new(self, seen: os.stat_result, now: float, at: float, links: int | None) -> Content | None:
        """What the path names now; None if it is the same text in another file. Raises Duplicate, Waits, Changed."""
        content = self.tail.content
        assert content is not None
        identity = seen.st_dev, seen.st_ino
        file = self.context.open_claimed(self.path, identity, self.source)
        mark = content.fingerprint()
        same_inode = seen.st_ino == content.inode
        if (same_inode or (not links and is_strong(mark))) and not verify(file, mark).problem:
            # A remount, or a copy with more in it moved over the old one (rsync): the same text, another number.
            content.device, content.inode = identity
            self.tail.put(file)
            return None
        begun = self.content_of(file, seen, now, at)
        self.tail.put(file)
        return begun

    def _passed_by(
        self, seen: os.stat_result, now: float, at: float, left: Fingerprint | None, *, drained: bool = True
    ) -> bool:
        """Files that came and went between two looks are read in their turn, before what the path names now. `left`: as
        in `switch`.
        """
        content = self.tail.content
        assert content is not None
        read = {seen.st_ino} if self._rewritten else {content.inode, seen.st_ino}
        if left is not None:
            read.add(left.inode)
        copied, cut_by = self.copied, self._cut_by
        found = self.first_passed_by(seen, self._beside, self.tail.written, read)
        if found is None:
            return False
        self.tail.put(found.file)
        proof = f"{found.name} stood there since"
        self.switch("rotated" if drained else "replaced", proof, found.content, at, left=left)
        self._moved_at, self.copied, self._cut_by = now, copied, cut_by
        return True

    def first_passed_by(
        self, seen: os.stat_result, known: frozenset[int] | None, written: float, read: set[int]
    ) -> Start | None:
        """The oldest file that stood at the path before what it names now, of which nobody has read a byte."""
        context = self.context
        files = passed_by(context, self.path, known, written, read, self.copied)
        for path, status in files:
            try:
                file = context.open_claimed(path, (status.st_dev, status.st_ino), self.source)
                begun = unread(context, self.source, path, file, status)
            except (Duplicate, Changed):  # it is read under its own name
                continue
            others = [(self.path, seen), *((name, other) for name, other in files if name != path)]
            if not begun.offset and not self._is_copy(file, status.st_size, others):
                return Start(begun, file, status, name=os.path.basename(path))
        return None

    def _is_copy(self, file: OpenFile, size: int, others: list[tuple[str, os.stat_result]]) -> bool:
        """Is all that the open file holds in what was read last, or in one of the others?"""
        content, known = self.tail.content, self.tail.file
        if content is None or known is None or size > content.offset:
            known = None
        if known is not None and begins_as(file, size, known):
            return True
        return any(is_part_of_file(self.context, file, size, name, other) for name, other in others)

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
        if self._take_copy() is None:  # cut before it was renamed
            return self.drain(now, at, is_last=is_last)
        tail.close()
        self._rewritten = True
        return None

    def _take_copy(self) -> Fingerprint | None:
        """Go on with a copy of what was cut, if it may hold more than was read. Else give what is left behind."""
        tail = self.tail
        content = tail.content
        assert content is not None
        copy = copy_of(self.context, self.path, content.fingerprint(), content.head, tail.recent)
        self.copied = copy.name if copy is not None else ""
        if copy is not None and copy.opened is not None:
            identity = copy.mark.device, copy.mark.inode
            if self.context.claim(identity, self.source):
                content.device, content.inode = identity
                tail.put(copy.opened[0])
                return None
        # without a copy here there may be one elsewhere: no file has the inode 0
        return copy.mark if copy is not None else msgspec.structs.replace(content.fingerprint(), device=0, inode=0)

    def switch(
        self, reason: RestartReason, proof: str, content: Content, at: float, *, left: Fingerprint | None
    ) -> None:
        """The source goes on with other content. `left`: the old file, which was read to its end."""
        tail = self.tail
        if left is not None:
            self.context.registry.remember(left, self.source)
        tail.turn_to(content)
        self.directory.forget()
        self._moved_at = self._cut_by = None
        self.copied, self._rewritten = "", False
        if tail.announced and not content.offset:
            self.context.tell(Restarted(self.source, reason, proof, *content.identity, former=left, at=at))
        elif tail.announced:  # another name delivered what stands here now: nothing of this source's own
            tail.announced = False
            self.context.tell(Gone(self.source, at))
