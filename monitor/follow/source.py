"""One path as one endless source: each `poll` looks once and gives what is new.

Rules. The same file whose bytes before the offset are what was read: go on. The path names another file: read the old
one to its end, then begin the new one. Those bytes changed, on a fresh open: truncated; on a network mount two opens
`confirm_seconds` apart must agree. Absent from a directory that can be seen: read the rest, then gone. Any other error
says nothing about the file: keep everything, report it after the second in a row, try again later.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Iterable
from typing import TypeAlias

from monitor.follow.content import Block, Content, is_strong, read_block
from monitor.follow.context import Changed, Context, Duplicate
from monitor.follow.discovery import kind_of
from monitor.follow.messages import (
    CaughtUp,
    Data,
    Gone,
    Message,
    Opened,
    Position,
    Readable,
    Restarted,
    RestartReason,
    Unreadable,
    source_id,
)
from monitor.follow.patterns import looks_binary
from monitor.follow.schedule import Backoff

_TRIES_AT_OLD = 5  # failed reads of a rotated file before its rest is given up: the new one must not wait for ever
_FRESH_SECONDS = 60.0  # of age by its time stamp: a file that was written so lately may be written again any moment
_BINARY_CHECK_BYTES = 1024
_Stamp: TypeAlias = tuple[int, int, int, int, int]
Messages: TypeAlias = Generator[Message, None, None]


class Source:
    """`poll` when `due_at` has come. Times: `now` is monotonic, `at` Unix seconds."""

    def __init__(self, path: str, context: Context, *, literal: bool = False, resume: Position | None = None) -> None:
        """`literal`: the path was given as it stands, so it is followed whatever it holds."""
        self.path = path
        self.source = source_id(path)
        self.directory = os.path.dirname(path)
        self.literal = literal
        self.due_at = 0.0
        self.more = False
        """There is more to read at once."""
        self.unsupported = ""
        """A file is there but not to be followed: directory, fifo, socket, device, binary or duplicate."""
        self.unreadable = False
        self.failed = False
        """The monitor's own code failed at it: it is looked at no more."""
        self.missing_since: float | None = None
        self.gone_since: float | None = None
        self._context = context
        self._settings = context.settings
        self._backoff = Backoff(context.settings, context.phase())
        self._resume = resume
        self._content: Content | None = None
        self._announced = self._caught_up = False
        self._failures = 0
        self._soon = False
        self._read_stamp: _Stamp | None = None  # of the file when it was last read to its end
        self._rest_stamp: _Stamp | None = None  # the same, if nothing can have happened since that it does not show
        self._directory_device: int | None = None
        self._directory_missing = False  # and no descriptor held, so that the file is left to other names
        self._suspected_at: float | None = None
        self._moved_at: float | None = None
        self._binary: tuple[int, int] | None = None

    @property
    def followed(self) -> bool:
        """Is there a file, or was there one that may come back?"""
        return self._content is not None

    @property
    def started(self) -> bool:
        """Was there ever a file, now or before the restart?"""
        return self._content is not None or self._resume is not None

    def poll(self, now: float, at: float) -> Iterable[Message]:
        """Look once. Reads at most `read_bytes` of each file concerned."""
        seen: os.stat_result | OSError
        try:
            seen = self._context.stat(self.path)
            if self._rest_stamp is not None and _stamp(seen) == self._rest_stamp:  # most files at most times
                self.due_at = now + self._pause(now)
                return ()
        except OSError as error:
            seen = error
        return self._look(seen, now, at)

    def leave(self) -> None:
        """Nobody follows this path any more."""
        self._context.descriptors.close(self)
        if self._content is not None:
            self._context.registry.release(self._content.identity, self.source)

    def _look(self, seen: os.stat_result | OSError, now: float, at: float) -> Messages:
        self.more = self._soon = False
        self._rest_stamp = None
        try:
            if isinstance(seen, FileNotFoundError | NotADirectoryError):
                yield from self._absent(seen, now, at)
            elif isinstance(seen, OSError):
                raise seen
            else:
                yield from self._present(seen, now, at)
        except OSError as error:
            self._failures += 1
            self._context.count_error(error)
            if error.errno in (errno.ESTALE, errno.EBADF):
                self._context.descriptors.close(self)
            if self._failures >= self._settings.failures_reported and not self.unreadable:
                self.unreadable = True
                yield Unreadable(self.source, error.errno, error.strerror or str(error), at)
            self.due_at = now + self._backoff.after_failure(self._failures)
            return
        self._failures = 0
        if self.unreadable:
            self.unreadable = False
            yield Readable(self.source, at)
        self.due_at = now if self.more else now + self._pause(now)

    def _pause(self, now: float) -> float:
        spread = self._context.spread_seconds
        if self.unsupported:
            return self._backoff.among(self._settings.idle_interval, spread)
        quiet_since = self.missing_since if self.missing_since is not None else self._backoff.changed_at
        return self._backoff.pause(now, quiet_since=quiet_since, soon=self._soon, spread_seconds=spread)

    def _present(self, seen: os.stat_result, now: float, at: float) -> Messages:
        """The path names something."""
        self.unsupported = kind_of(seen.st_mode)
        if self.unsupported:
            return
        self._backoff.first_seen(now, at - seen.st_mtime)
        try:
            if self._directory_missing:
                yield from self._directory_back(now, at)
            if self._content is None:
                yield from self._begin(seen, now)
            elif self.gone_since is not None:
                yield from self._come_back(seen, at)
            if self._content is None:
                return
            self.missing_since = None
            if self._directory_device is None:
                self._directory_device = self._directory().st_dev
            identity = seen.st_dev, seen.st_ino
            if identity != self._content.identity:
                yield from self._moved(seen, now, at)
            if self._content is not None and identity == self._content.identity:
                self._moved_at = None
                yield from self._same(seen, now, at)
        except Duplicate:
            self.unsupported = "duplicate"
        except Changed:
            self._soon = True

    # The first file under this path.

    def _begin(self, seen: os.stat_result, now: float) -> Messages:
        """At the position of the state file; else with its file, renamed beside the path; else at what is unread."""
        identity = seen.st_dev, seen.st_ino
        registry, descriptors = self._context.registry, self._context.descriptors
        if identity == self._binary:
            self.unsupported = "binary"
            return
        proof = ""
        if self._resume is not None:
            proof = yield from self._begin_resumed(seen, self._resume)
            if not proof or (seen.st_ino == self._resume.inode and not self._confirmed(seen.st_dev, now)):
                return
            if (yield from self._begin_renamed(self._resume)):
                registry.release(identity, self.source)
                return
        descriptor = self._context.open_claimed(self.path, identity, self.source)
        if not self.literal and looks_binary(self._context.pread(descriptor, _BINARY_CHECK_BYTES, 0)):
            descriptors.discard(descriptor)
            registry.release(identity, self.source)
            self.unsupported, self._binary = "binary", identity
            return
        yield from self._start(self._unread(descriptor, seen), descriptor, seen, None, proof)

    def _begin_resumed(self, seen: os.stat_result, position: Position) -> Generator[Message, None, str]:
        """Begin at the position if it is true of the file that the path names; else give what speaks against it."""
        identity = seen.st_dev, seen.st_ino
        try:
            descriptor = self._context.open_claimed(self.path, identity, self.source)
        except Duplicate:
            return "another source reads this file"
        problem, head, tail = self._context.verify(descriptor, position)
        if not problem and seen.st_ino != position.inode and not is_strong(position):
            problem = f"inode {seen.st_ino} instead of {position.inode}"
        if problem:
            self._context.descriptors.discard(descriptor)
            return problem
        yield from self._start(Content(*identity, position.offset, head, tail), descriptor, seen, position)
        return ""

    def _begin_renamed(self, position: Position) -> Generator[Message, None, bool]:
        """Begin with the position's file if it was renamed beside the path while nobody looked."""
        found = self._context.find_renamed(self.path, position)
        if found is None:
            return False
        descriptor, status, (_, head, tail) = found
        identity = status.st_dev, status.st_ino
        if not self._context.registry.claim(identity, self.source):
            self._context.descriptors.discard(descriptor)
            return False
        yield from self._start(Content(*identity, position.offset, head, tail), descriptor, status, position)
        return True

    def _unread(self, descriptor: int, seen: os.stat_result) -> Content:
        """What there is to read in a file just claimed: all of it, or what another name has not delivered before.

        Raises Duplicate, and gives the file back, if another source is about to resume it.
        """
        registry = self._context.registry
        reserved = registry.reserved(seen.st_ino, self.source)
        if reserved is not None and not self._context.verify(descriptor, reserved).problem:
            self._context.descriptors.discard(descriptor)
            registry.release((seen.st_dev, seen.st_ino), self.source)
            raise Duplicate
        former = registry.former(seen.st_ino)
        if former is not None:
            problem, head, tail = self._context.verify(descriptor, former)
            if not problem:
                return Content(seen.st_dev, seen.st_ino, former.offset, head, tail)
        return Content(seen.st_dev, seen.st_ino)

    def _start(
        self, content: Content, descriptor: int, status: os.stat_result, position: Position | None, proof: str = ""
    ) -> Messages:
        """What another name has delivered is announced only when there is more."""
        self._context.descriptors.put(self, descriptor)
        self._content, self._resume, self._suspected_at, self.gone_since = content, None, None, None
        self._announced = position is not None or not content.offset
        self._caught_up = not self._announced
        self._context.registry.unreserve(self.source)
        if self._announced:
            yield self._opened(content, status, position, proof)

    def _opened(
        self, content: Content, status: os.stat_result, position: Position | None = None, proof: str = ""
    ) -> Opened:
        return Opened(
            self.source, self.path, position, status.st_size, status.st_mtime, position is not None,
            content.offset, content.device, content.inode, content.head, content.tail, proof,
            status.st_uid, self._context.mount,
        )  # fmt: skip

    def _come_back(self, seen: os.stat_result, at: float) -> Messages:
        """The path was gone and is there again: the same file (a rename and back, a flapping server) or another."""
        content = self._content
        assert content is not None
        descriptor = self._context.open_claimed(self.path, (seen.st_dev, seen.st_ino), self.source)
        problem = self._context.verify(descriptor, content.fingerprint()).problem
        if not problem and seen.st_ino != content.inode:
            problem = f"inode {seen.st_ino} instead of {content.inode}"
        begun = self._unread(descriptor, seen) if problem else content
        self._context.descriptors.put(self, descriptor)
        self.gone_since = None
        if self._announced:
            yield Readable(self.source, at)
        if problem:
            yield from self._switch("replaced", problem, begun, at, links=None)
        else:
            content.device = seen.st_dev

    # The same file as before.

    def _same(self, seen: os.stat_result, now: float, at: float) -> Messages:
        content = self._content
        assert content is not None
        changed = _stamp(seen) != self._read_stamp
        if not changed and self._at_rest():
            self._remember_stamp(seen)
            return
        descriptor = self._context.descriptors.get(self)
        block = None
        if descriptor is not None:
            block = yield from self._read(descriptor, seen, now, at)
        if block is None or block.changed:
            descriptor = yield from self._reopen(seen, now, at, held=block is not None)
            if descriptor is None:
                return
            block = yield from self._read(descriptor, seen, now, at)
        if block.changed:
            self._soon = True
            return
        if changed and self._read_stamp is not None and not block.data:
            self._changed(seen, now, at)
        self._remember_stamp(seen)

    def _remember_stamp(self, seen: os.stat_result) -> None:
        self._read_stamp = None if self.more else _stamp(seen)
        self._rest_stamp = self._read_stamp if self._at_rest() else None

    def _at_rest(self) -> bool:
        """Nothing more can have happened to the file that its size and times do not show."""
        content = self._content
        return (
            content is not None
            and content.compared_at >= self._backoff.recheck_until
            and self._suspected_at is None
            and content.hole_since is None
        )

    def _read(self, descriptor: int, status: os.stat_result, now: float, at: float) -> Generator[Message, None, Block]:
        """Read on; give what came."""
        content, settings = self._content, self._settings
        assert content is not None
        waited = content.hole_since is not None and now - content.hole_since >= settings.hole_seconds
        wait_for_holes = not waited and settings.hole_seconds > 0 and not self._context.is_local(content.device)
        expected = status.st_size - content.offset + settings.least_read
        count = min(settings.read_bytes, max(settings.least_read, expected))
        block = read_block(self._context.os_layer, descriptor, content, count, wait_for_holes=wait_for_holes)
        if block.changed:
            return block
        content.compared_at = now
        content.hole_since = (content.hole_since if content.hole_since is not None else now) if block.hole else None
        self._soon = self._soon or block.hole
        self.more = not block.at_end
        if block.data:
            if not self._announced:
                self._announced = True
                yield self._opened(content, status)
            content.take(block.offset, block.data)
            if self._caught_up or at - status.st_mtime < _FRESH_SECONDS:  # to read an old log is no sign of life in it
                self._changed(status, now, at)
            behind = max(0, status.st_size - content.offset)
            yield Data(self.source, block.offset, block.data, status.st_mtime, at, behind)
        if block.at_end and not block.hole and not self._caught_up:
            self._caught_up = True
            yield CaughtUp(self.source, at)
        return block

    def _changed(self, status: os.stat_result, now: float, at: float) -> None:
        recheck = self._settings.recheck_seconds
        if status.st_mtime % 1.0 and self._context.is_local(status.st_dev):  # whole seconds: the stamps are no finer
            stamp_ticks_until = max(status.st_mtime, status.st_ctime) + self._settings.recheck_local
            recheck = min(max(0.0, stamp_ticks_until - at), recheck)
        self._backoff.changed(now, recheck_seconds=recheck, grown=self._caught_up)

    def _reopen(
        self, seen: os.stat_result, now: float, at: float, *, held: bool
    ) -> Generator[Message, None, int | None]:
        """A fresh open: only that can prove that the bytes before the offset are not what was read, or are missing.

        None: it seems so, but is not proved yet.
        """
        content = self._content
        assert content is not None
        descriptor = self._context.open_as(self.path, content.identity)
        problem = self._context.verify(descriptor, content.fingerprint()).problem
        if problem and not self._confirmed(content.device, now):
            self._context.descriptors.discard(descriptor)
            return None
        self._context.descriptors.put(self, descriptor)
        self._suspected_at = None
        if problem:  # else attributes or pages of this client were old, or the descriptor had been given up
            reason: RestartReason = "truncated" if held or seen.st_size < content.offset else "replaced"
            yield from self._switch(reason, problem, Content(*content.identity), at, links=None)
        return descriptor

    def _confirmed(self, device: int, now: float) -> bool:
        """Is what looks like a truncation proved by now? On a network mount the first look is not believed."""
        if self._context.is_local(device):
            return True
        if self._suspected_at is None:
            self._suspected_at = now
        self._soon = True
        return now - self._suspected_at >= self._settings.confirm_seconds

    # Another file, or none.

    def _moved(self, seen: os.stat_result, now: float, at: float) -> Messages:
        """The path names another file: first the rest of the old one, then the new one."""
        content = self._content
        assert content is not None
        if self._moved_at is None:
            self._moved_at = now
        links = yield from self._drain(now, at)
        if self.more:
            return
        drained = links is not None
        if seen.st_size == 0 and links:
            self._moved_at = None  # while the new file is empty the writer may not have moved over yet
            return
        if drained and now - self._moved_at < self._settings.rotation_grace:
            self._soon = True
            return
        identity = seen.st_dev, seen.st_ino
        try:
            descriptor = self._context.open_claimed(self.path, identity, self.source)
            mark = content.fingerprint()
            same_inode = seen.st_ino == content.inode
            if (same_inode or (not links and is_strong(mark))) and not self._context.verify(descriptor, mark).problem:
                # A remount, or a copy with more in it moved over the old one (rsync): the same text, another number.
                self._context.registry.release(content.identity, self.source)
                content.device, content.inode = identity
                self._context.descriptors.put(self, descriptor)
                return
            begun = self._unread(descriptor, seen)
        except Duplicate:
            yield from self._leave_to_other_name(now, at, links)
        self._context.descriptors.put(self, descriptor)
        proof = f"device and inode {identity} instead of {content.identity}"
        yield from self._switch("rotated" if drained else "replaced", proof, begun, at, links=links)

    def _drain(self, now: float, at: float) -> Generator[Message, None, int | None]:
        """Read the old file on. Gives the names it still has, or None if it cannot be had (any more)."""
        content = self._content
        if content is None:
            return None
        descriptor = self._context.descriptors.get(self)
        try:
            if descriptor is None:
                found = self._context.find_renamed(self.path, content.fingerprint())
                if found is None:
                    return None
                descriptor = found[0]
                self._context.descriptors.put(self, descriptor)
            status = self._context.os_layer.fstat(descriptor)
            block = yield from self._read(descriptor, status, now, at)
        except OSError as error:
            if error.errno != errno.ESTALE and self._failures < _TRIES_AT_OLD:
                raise
            self._context.count_error(error)
            self._context.descriptors.close(self)
            return None
        if block.changed:  # cut after it was renamed: what is left of it is no longer what was read
            self._context.descriptors.close(self)
            return None
        return status.st_nlink

    def _switch(self, reason: RestartReason, proof: str, content: Content, at: float, *, links: int | None) -> Messages:
        """The source goes on with other content. `links`: names of the old file, which was read to its end."""
        old = self._content
        assert old is not None
        left = old.fingerprint() if links else None
        if content.identity != old.identity:
            self._context.registry.release(old.identity, self.source)
        if left is not None:
            self._context.registry.remember(left)
        self._content = content
        self._caught_up = quiet = content.offset > 0
        self._read_stamp = self._directory_device = self._moved_at = None
        self.more = True
        if self._announced and not quiet:
            yield Restarted(self.source, reason, proof, *content.identity, former=left, at=at)
        elif self._announced:  # another name delivered what stands here now: nothing of this source's own
            self._announced = False
            yield Gone(self.source, at)

    def _leave_to_other_name(self, now: float, at: float, links: int | None) -> Messages:
        """The path names a file that is read under another name: nothing is left of this source, for now."""
        yield from self._end(now, at, links)
        self._content = self.gone_since = None
        raise Duplicate

    def _absent(self, error: OSError, now: float, at: float) -> Messages:
        """No such name. That is only believed of a directory that is the one where the file was."""
        self.unsupported = ""
        if not self.started or self.gone_since is not None:
            self.missing_since = now if self.missing_since is None else self.missing_since
            return
        if self._links() != 0:
            try:
                directory = self._directory()
            except FileNotFoundError:
                if not self._removed():
                    yield from self._without_directory(now, at)
                    raise
            else:
                if self._directory_device is not None and directory.st_dev != self._directory_device:
                    raise error  # the mount is not there
        if self.missing_since is None:
            self.missing_since = now
        if self._content is None and self._resume is not None:
            yield from self._begin_renamed(self._resume)
        links = yield from self._drain(now, at)
        if self.more:
            return
        self._soon = True
        grace = self._settings.renamed_seconds if links else self._settings.gone_grace
        last = self._backoff.changed_at if links and self._backoff.changed_at is not None else self.missing_since
        if now - max(self.missing_since, last) >= grace:
            yield from self._end(now, at, links)

    def _end(self, now: float, at: float, links: int | None) -> Messages:
        """The path is gone, and what it held has been read. A file with no name left cannot come back."""
        self._context.descriptors.close(self)
        self._context.registry.unreserve(self.source)
        if self._content is not None:
            self._context.registry.release(self._content.identity, self.source)
            if links != 0:
                self._context.registry.remember(self._content.fingerprint())
        elif self._resume is not None:  # under another name it goes on
            self._context.registry.remember(self._resume)
        self.gone_since = now
        if self._announced or self._resume is not None:
            yield Gone(self.source, at)
        self._moved_at = self._read_stamp = None

    def _without_directory(self, now: float, at: float) -> Messages:
        """The directory is not there: renamed, or not to be seen. Read on what is open; let another name have the rest.

        Nothing is reported: what cannot be observed is not gone.
        """
        registry = self._context.registry
        if self._context.descriptors.get(self) is not None:
            yield from self._drain(now, at)
        elif not self._directory_missing:
            self._directory_missing = True
            if self._content is not None:
                registry.release(self._content.identity, self.source)
                registry.remember(self._content.fingerprint())
            elif self._resume is not None:
                registry.unreserve(self.source)
                registry.remember(self._resume)

    def _directory_back(self, now: float, at: float) -> Messages:
        """The directory is there again. Another name may have read the file, or still does."""
        self._directory_missing = False
        content = self._content
        if content is None:
            return
        if not self._context.registry.claim(content.identity, self.source):
            yield from self._leave_to_other_name(now, at, None)
        former = self._context.registry.former(content.inode)
        if former is not None and former.offset > content.offset:
            self._content = None  # begin anew, behind what the other name read

    def _removed(self) -> bool:
        """Its directory is not there. On a local disk it was removed, or renamed, where the nearest one above that is
        there lies on the log's device; a mount that is away shows another. A server may forget a name for a while.
        """
        known = self._content if self._content is not None else self._resume
        if known is None or self._context.descriptors.get(self) is not None or not self._context.is_local(known.device):
            return False
        above = os.path.dirname(self.directory)
        while True:
            try:
                return self._context.stat(above).st_dev == known.device
            except FileNotFoundError:
                if above == os.path.dirname(above):
                    return False
                above = os.path.dirname(above)

    def _links(self) -> int | None:
        """Names that the open file still has: 0 proves that it was deleted. None if it is not open or fails."""
        descriptor = self._context.descriptors.get(self)
        if descriptor is None:
            return None
        try:
            return self._context.os_layer.fstat(descriptor).st_nlink
        except OSError:
            return None

    def _directory(self) -> os.stat_result:
        """The directory that holds the file itself, links followed."""
        return self._context.stat(os.path.dirname(self._context.os_layer.realpath(self.path)))


def _stamp(seen: os.stat_result) -> _Stamp:
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns
