"""One path as one endless source: each `poll` looks once and gives what is new.

Rules. The same file whose bytes before the offset are what was read: go on. The path names another file: read the old
one to its end, then begin the new one. Those bytes changed, on a fresh open: truncated; on a network mount two opens
`confirm_seconds` apart must agree. Absent from a directory that can be seen: read the rest, then gone. Any other error
says nothing about the file: keep everything, tell it after the second in a row, try again later.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from monitor.follow.context import Context
from monitor.follow.discovery import kind_of
from monitor.follow.following import Following, Told
from monitor.follow.identity import Content, former_of, is_strong
from monitor.follow.messages import Data, Message, Position, Readable, RestartReason, Unreadable
from monitor.follow.opening import begin_again, begin_new, begin_renamed, unread


class Source(Following):
    """`poll` when `due_at` has come. Times: `now` is monotonic, `at` Unix seconds."""

    def __init__(self, path: str, context: Context, *, literal: bool = False, resume: Position | None = None) -> None:
        super().__init__(path, context, resume)
        self.literal = literal
        self.due_at = 0.0
        self.unsupported = ""
        """A file is there but not to be followed: directory, fifo, socket, device, binary or duplicate."""
        self.unreadable = False
        self.missing_since: float | None = None
        self._binary: tuple[int, int] | None = None
        self._rest: tuple[int, int, int, int, int] | None = None
        self._glanced: os.stat_result | None = None

    @property
    def followed(self) -> bool:
        """Is there a file, or was there one that may come back?"""
        return self._content is not None

    @property
    def started(self) -> bool:
        """Was there ever a file, now or before the restart?"""
        return self._content is not None or self._resume is not None

    def glance(self, now: float, at: float) -> tuple[Data] | tuple[()] | None:
        """Look at a path that was at rest: what was appended since, if anything. None: `poll` has to look.

        This is all that happens to most files at most times: no more is done than tells it from what `poll` is for.
        """
        if self._rest is None:
            return None
        try:
            seen = self._glanced = self._context.stat(self.path)
            told = () if _identity_and_stamp(seen) == self._rest else self._appended(seen, now, at)
        except OSError:
            return None
        if told is not None:
            self._glanced = None
            self.due_at = now + self._pause(now)
        return told

    def _appended(self, seen: os.stat_result, now: float, at: float) -> tuple[Data] | None:
        """The file that was read to its end has grown by a little text, and what stands before is what was read."""
        content, descriptor = self._content, self._context.descriptors.get(self)
        if content is None or descriptor is None or not (self._announced and self._caught_up):
            return None
        offset, tail, rest = content.offset, content.tail, self._rest
        count = seen.st_size - offset
        most = min(self._settings.least_read, self._settings.read_bytes)
        if rest is None or rest[:3] != (seen.st_dev, seen.st_ino, offset) or not 0 < count <= most:
            return None
        block = self._context.os_layer.pread(descriptor, len(tail) + count, offset - len(tail))
        data = block[len(tail) :]
        if len(data) != count or not block.startswith(tail) or b"\0" in data:
            return None
        content.take(offset, data)
        self._compared_at = now
        self._changed(seen, now, at)
        self._stamp = seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns
        self._rest = _identity_and_stamp(seen) if self._at_rest() else None
        return (Data(self.source, offset, data, seen.st_mtime, at, 0),)

    def poll(self, now: float, at: float) -> Iterator[Message]:
        """Look once. Reads at most `read_bytes` of each file concerned."""
        self.more = self._soon = False
        self._rest = None
        try:
            yield from self._look(now, at)
        except OSError as error:
            yield from self._fail(error, now, at)
            return
        self._failures = 0
        if self.unreadable:
            self.unreadable = False
            yield Readable(self.source, at)
        self.due_at = now if self.more else now + self._pause(now)

    def _pause(self, now: float) -> float:
        spread = self._context.spread_seconds
        if self.unsupported:
            return self._pacing.among(self._settings.idle_interval, spread)
        quiet_since = self.missing_since if self.missing_since is not None else self._pacing.changed_at
        return self._pacing.pause(now, quiet_since=quiet_since, soon=self._soon, spread_seconds=spread)

    def leave(self) -> None:
        """Nobody follows this path any more."""
        self._context.descriptors.close(self)
        if self._content is not None:
            self._context.registry.release(self._content.identity, self.source)

    # What the path names now.

    def _look(self, now: float, at: float) -> Told:
        seen, self._glanced = self._glanced, None
        try:
            seen = seen or self._context.stat(self.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            yield from self._absent(error, now, at)
            return
        self.unsupported = kind_of(seen.st_mode)
        if self.unsupported:
            return
        self._pacing.first_seen(now, at - seen.st_mtime)
        if self._lent_since is not None:
            yield from self._reclaim(now, at)
        identity = seen.st_dev, seen.st_ino
        if self._content is None:
            yield from self._begin(seen, now)
        elif self.gone_since is not None:
            yield from self._come_back(seen, at)
        if self._content is None or self.gone_since is not None:
            return
        self.missing_since = None
        if self._home is None:
            self._home = self._directory().st_dev
        if identity != self._content.identity:
            yield from self._moved(seen, now, at)
        if self._content is not None and identity == self._content.identity:
            self._moved_at = None
            yield from self._same(seen, now, at)

    def _begin(self, seen: os.stat_result, now: float) -> Told:
        if (seen.st_dev, seen.st_ino) == self._binary:
            self.unsupported = "binary"
            return
        proof = ""
        if self._resume is not None:
            begun = begin_again(self._context, self.path, self.source, seen, self._resume)
            proof = begun.proof
            if begun.content is None:
                if not proof:
                    self._soon = True
                    return
                if seen.st_ino == self._resume.inode and not self._confirmed(seen.st_dev, now):
                    return
                begun = begin_renamed(self._context, self.path, self.source, self._resume)
                if begun.content is not None:
                    self._context.registry.release((seen.st_dev, seen.st_ino), self.source)
            if begun.content is not None:
                yield from self._start(begun, "")
                return
        begun = begin_new(self._context, self.path, self.source, seen, literal=self.literal)
        self.unsupported = begun.unsupported
        self._soon = not begun.unsupported and begun.content is None
        if begun.unsupported == "binary":
            self._binary = seen.st_dev, seen.st_ino
        if begun.content is not None:
            yield from self._start(begun, proof)

    def _come_back(self, seen: os.stat_result, at: float) -> Told:
        """The path was gone and is there again: the same file (a rename and back, a flapping server) or another."""
        assert self._content is not None
        identity = seen.st_dev, seen.st_ino
        if not self._context.registry.claim(identity, self.source):
            self.unsupported = "duplicate"
            return
        descriptor = self._context.open_as(self.path, identity)
        if descriptor is None:
            self._soon = True
            return
        problem = self._context.verify(descriptor, self._content.former()).problem
        if not problem and seen.st_ino != self._content.inode:
            problem = f"inode {seen.st_ino} instead of {self._content.inode}"
        content = unread(self._context, self.source, descriptor, seen) if problem else self._content
        if content is None:
            self._context.descriptors.discard(descriptor)
            self.unsupported = "duplicate"
            return
        self._context.descriptors.put(self, descriptor)
        self.gone_since = None
        if self._announced:
            yield Readable(self.source, at)
        if problem:
            yield from self._turn("replaced", problem, content, at, links=None)
        else:
            content.device = seen.st_dev

    # The same file as before.

    def _same(self, seen: os.stat_result, now: float, at: float) -> Told:
        assert self._content is not None
        stamp = seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns
        changed = stamp != self._stamp
        if not changed and self._at_rest():
            self._rest = _identity_and_stamp(seen)
            return
        descriptor = self._context.descriptors.get(self)
        held = descriptor is not None
        if descriptor is None:
            descriptor = self._context.open_as(self.path, self._content.identity)
            if descriptor is None:
                self._soon = True
                return
            problem = self._context.verify(descriptor, self._content.former()).problem
            self._context.descriptors.put(self, descriptor)
            if problem:
                yield from self._suspect(seen, now, at, held=False)
                return
        before = self._stamp
        taken = yield from self._take(descriptor, seen, now, at)
        if changed and before is not None and not taken.data:
            self._changed(seen, now, at)
        if taken.changed:
            yield from self._suspect(seen, now, at, held=held)
            return
        self._suspected_at = None
        self._stamp = None if self.more else stamp
        if not self.more and self._at_rest():
            self._rest = _identity_and_stamp(seen)

    def _at_rest(self) -> bool:
        """Nothing more can have happened to the file that its size and times do not show."""
        settled = self._compared_at >= self._pacing.settled_at
        return settled and self._suspected_at is None and self._hole_since is None

    def _suspect(self, seen: os.stat_result, now: float, at: float, *, held: bool) -> Told:
        """The bytes before the offset are not what was read, or are missing. Only a fresh open can prove it."""
        content = self._content
        assert content is not None
        descriptor = self._context.open_as(self.path, content.identity)
        self._soon = True
        if descriptor is None:
            return
        problem = self._context.verify(descriptor, content.former()).problem
        if problem and not self._confirmed(content.device, now):
            self._context.descriptors.discard(descriptor)
            return
        self._context.descriptors.put(self, descriptor)
        self._suspected_at = None
        if not problem:
            return  # attributes or pages of this client were old
        reason: RestartReason = "truncated" if held or seen.st_size < content.offset else "replaced"
        yield from self._turn(reason, problem, Content(*content.identity), at, links=None)
        yield from self._take(descriptor, seen, now, at)

    # Another file, or none.

    def _moved(self, seen: os.stat_result, now: float, at: float) -> Told:
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
        if not self._context.registry.claim(identity, self.source):
            yield from self._give_way(now, at, links)
            return
        descriptor = self._context.open_as(self.path, identity)
        if descriptor is None:
            self._context.registry.release(identity, self.source)
            self._soon = True
            return
        mark = content.former()
        same_inode = seen.st_ino == content.inode
        if (same_inode or (not links and is_strong(mark))) and not self._context.verify(descriptor, mark).problem:
            # A remount, or a copy with more in it moved over the old one (rsync): the same text under another number.
            self._context.registry.release(content.identity, self.source)
            content.device, content.inode = identity
            self._context.descriptors.put(self, descriptor)
            return
        begun = unread(self._context, self.source, descriptor, seen)
        if begun is None:
            self._context.descriptors.discard(descriptor)
            self._context.registry.release(identity, self.source)
            yield from self._give_way(now, at, links)
            return
        self._context.descriptors.put(self, descriptor)
        proof = f"device and inode {identity} instead of {content.identity}"
        yield from self._turn("rotated" if drained else "replaced", proof, begun, at, links=links)

    def _give_way(self, now: float, at: float, links: int | None) -> Told:
        """The path names a file that is read under another name: nothing is left of this source, for now."""
        yield from self._end(now, at, links)
        self._content = self.gone_since = None
        self.unsupported = "duplicate"

    def _absent(self, error: OSError, now: float, at: float) -> Told:
        """No such name. That is only believed of a directory that is the one where the file was."""
        self.unsupported = ""
        if not self.started or self.gone_since is not None:
            self.missing_since = now if self.missing_since is None else self.missing_since
            return
        if self._links() != 0:
            try:
                directory = self._directory()
            except FileNotFoundError:
                yield from self._homeless(now, at)
                raise
            if self._home is not None and directory.st_dev != self._home:
                raise error  # the mount is not there
        if self.missing_since is None:
            self.missing_since = now
        if self._content is None and self._resume is not None:
            begun = begin_renamed(self._context, self.path, self.source, self._resume)
            if begun.content is not None:
                yield from self._start(begun, "")
        links = yield from self._drain(now, at)
        if self.more:
            return
        self._soon = True
        patience = self._settings.renamed_patience if links else self._settings.gone_grace
        last = self._pacing.changed_at if links and self._pacing.changed_at is not None else self.missing_since
        if now - max(self.missing_since, last) >= patience:
            yield from self._end(now, at, links)

    def _homeless(self, now: float, at: float) -> Told:
        """The directory is not there: renamed, or not to be seen. Read on what is open; let another name have the rest.

        Nothing is told: what cannot be observed is not gone.
        """
        if self._context.descriptors.get(self) is not None:
            yield from self._drain(now, at)
            return
        if self._lent_since is None:
            self._lent_since = now
            if self._content is not None:
                self._context.registry.release(self._content.identity, self.source)
                self._context.registry.remember(self._content.former())
            elif self._resume is not None:
                self._context.registry.settle(self.source)
                self._context.registry.remember(former_of(self._resume))

    def _reclaim(self, now: float, at: float) -> Told:
        """The directory is there again. Another name may have read the file, or still does."""
        self._lent_since = None
        content = self._content
        if content is None:
            return
        if not self._context.registry.claim(content.identity, self.source):
            yield from self._give_way(now, at, None)
            return
        former = self._context.registry.former(content.inode)
        if former is not None and former.offset > content.offset:
            self._content = None  # begin anew, behind what the other name read

    # What says nothing about the file.

    def _fail(self, error: OSError, now: float, at: float) -> Told:
        self._failures += 1
        self._context.count_error(error)
        if error.errno in (errno.ESTALE, errno.EBADF):
            self._context.descriptors.close(self)
        if self._failures >= self._settings.failures_told and not self.unreadable:
            self.unreadable = True
            yield Unreadable(self.source, error.errno, error.strerror or str(error), at)
        self.due_at = now + self._pacing.after_failure(self._failures)


def _identity_and_stamp(seen: os.stat_result) -> tuple[int, int, int, int, int]:
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns
