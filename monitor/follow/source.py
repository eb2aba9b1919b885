"""One path as one endless source: each `poll` looks once and tells what is new.

Rules. The same file whose bytes before the offset are what was read: go on (tail.py). The path names another file: read
the old one to its end, then the new one from its beginning. Those bytes changed: the file was cut, and is read from its
beginning. Absent from a directory that can be seen: read the rest, then gone. Any other error says nothing about the
file: keep everything, report it after the second in a row, try again later.
"""

import errno
import os
import sys

from msgspec import Struct
from msgspec.structs import replace

from megatron_monitor.follow.content import Content, is_strong, verify
from megatron_monitor.follow.context import Changed, Context, Duplicate, Identity
from megatron_monitor.follow.discovery import kind_of
from megatron_monitor.follow.messages import (
    Fingerprint,
    Gone,
    Position,
    Readable,
    Restarted,
    RestartReason,
    SourceId,
    Unreadable,
)
from megatron_monitor.follow.os_layer import stamp
from megatron_monitor.follow.patterns import looks_binary
from megatron_monitor.follow.schedule import Backoff
from megatron_monitor.follow.start_offset import Start, renamed, resumed, resumed_beside, unread
from megatron_monitor.follow.tail import Cut, Tail

_BINARY_CHECK_BYTES = 1024
_TRIES_AT_OLD = 5  # failed reads of a rotated file before its rest is given up: the new one must not wait for ever


class _Left(Duplicate):
    """The path names a file that is read under another name. `links`: names of the old file, None if it is lost."""

    def __init__(self, links: int | None) -> None:
        super().__init__()
        self.links = links


class Source(Struct, eq=False):
    """`poll` when `due_at` has come. Times: `now` is monotonic, `at` Unix seconds."""

    path: str
    source: SourceId
    """The path's id."""
    context: Context
    literal: bool = False
    """The path was given as it stands, so it is followed whatever it holds."""
    resume: Position | None = None
    """Where to go on, until that is done or given up."""
    due_at: float = 0.0
    met: bool = False
    """It was seen how old the file is."""
    looked_at: float = 0.0
    """Monotonic seconds; 0: never."""
    unsupported: str = ""
    """A file is there but not to be followed: directory, fifo, socket, device, binary or duplicate."""
    unreadable: bool = False
    failed: bool = False
    """The monitor's own code failed at it: it is looked at no more."""
    missing_since: float | None = None
    gone_since: float | None = None
    directory: str = ""
    """Where its path lies."""
    backoff: Backoff = None  # type: ignore[assignment]
    tail: Tail = None  # type: ignore[assignment]
    _claim: Identity | None = None
    _binary: Identity | None = None
    _failures: int = 0  # to look at the path, in a row
    _moved_at: float | None = None  # since when the path names another file than the one that is read
    _directory_device: int | None = None  # st_dev of the directory that held the file
    _directory_missing: bool = False  # and no file is held open, so that the file is left to other names

    def __post_init__(self) -> None:
        self.directory = sys.intern(self.path.rpartition("/")[0] or "/")  # of many logs
        self.backoff = Backoff(self.context.settings, self.context.phase())
        self.tail = Tail(self.source, self.path, self.context, self.backoff)

    @property
    def away(self) -> bool:
        """The path names nothing now."""
        return self.gone_since is not None or self.missing_since is not None

    @property
    def more(self) -> bool:
        """There is more to read at once."""
        return self.tail.more

    @property
    def started(self) -> bool:
        """Was there ever a file, now or before the restart?"""
        return self.tail.content is not None or self.resume is not None

    def poll(self, now: float, at: float) -> None:
        """Look once. Reads at most `read_bytes` of each file concerned; what it found is told to the context."""
        seen: os.stat_result | OSError
        self.looked_at = now
        try:
            seen = self.context.stat(self.path)
            if self.tail.rest_stamp is not None and stamp(seen) == self.tail.rest_stamp:  # most files at most times
                self.due_at = now + self._pause(now)
                return
        except OSError as error:
            seen = error
        try:
            self._look(seen, now, at)
        finally:
            content = self.tail.content if self.gone_since is None and not self._directory_missing else None
            reads = content.identity if content is not None else None
            self._claim = self.context.settle(self.source, self._claim, reads)

    def leave(self) -> None:
        """Nobody follows this path any more."""
        self.tail.close()
        self.tail.more = False
        self.context.settle(self.source, self._claim, None)

    def _look(self, seen: os.stat_result | OSError, now: float, at: float) -> None:
        tail = self.tail
        tail.more = tail.soon = False
        tail.rest_stamp = None
        try:
            if isinstance(seen, FileNotFoundError | NotADirectoryError):
                self._absent(seen, now, at)
            elif isinstance(seen, OSError):
                raise seen
            else:
                self._present(seen, now, at)
        except OSError as error:
            self._failures += 1
            self.context.count_error(error)
            if error.errno in (errno.ESTALE, errno.EBADF):
                tail.close()
            if self._failures >= self.context.settings.failures_reported and not self.unreadable:
                self.unreadable = True
                self.context.tell(Unreadable(self.source, error.errno, error.strerror or str(error), at))
            self.due_at = now + self.backoff.after_failure(self._failures)
            return
        self._failures = 0
        if self.unreadable:
            self.unreadable = False
            self.context.tell(Readable(self.source, at))
        self.due_at = now if tail.more else now + self._pause(now)

    def _pause(self, now: float) -> float:
        spread = self.context.spread_seconds
        if self.unsupported and not self.tail.soon:
            return self.backoff.among(self.context.settings.idle_interval, spread)
        quiet_since = self.missing_since if self.missing_since is not None else self.backoff.changed_at
        return self.backoff.pause(now, quiet_since=quiet_since, soon=self.tail.soon, spread_seconds=spread)

    def _present(self, seen: os.stat_result, now: float, at: float) -> None:
        """The path names something."""
        self.unsupported = kind_of(seen.st_mode)
        if self.unsupported:
            return
        self.backoff.first_seen(now, at - seen.st_mtime)
        tail = self.tail
        try:
            if self._directory_missing:
                self._directory_back()
            if tail.content is None:
                self._begin(seen, now)
            elif self.gone_since is not None:
                self._come_back(seen, at)
            if tail.content is None:
                return
            self.missing_since = None
            if self._directory_device is None:
                self._directory_device = self.context.directory_device(self.path, seen.st_dev)
            identity = seen.st_dev, seen.st_ino
            if identity != tail.content.identity:
                self._moved(seen, now, at)
            if tail.content is not None and identity == tail.content.identity:
                self._moved_at = None
                cut = tail.read_on(seen, now, at)
                if cut is not None:
                    self._cut(cut, seen, now, at)
        except _Left as left:
            self._leave_to_other_name(now, at, left.links)
            self.unsupported = "duplicate"
        except Duplicate:
            self.unsupported = "duplicate"
        except Changed:
            tail.soon = True

    # The first file under this path.

    def _begin(self, seen: os.stat_result, now: float) -> None:
        identity = seen.st_dev, seen.st_ino
        if identity == self._binary:
            self.unsupported = "binary"
            return
        proof = ""
        if self.resume is not None:
            start, proof = resumed(self.context, self.source, self.path, seen, self.resume)
            if start is None and (seen.st_ino != self.resume.inode or self.tail.confirmed(seen.st_dev, now)):
                start = resumed_beside(self.context, self.source, self.path, self.resume)
            elif start is None:
                return
            if start is not None:
                self._start(start)
                return
        file = self.context.open_claimed(self.path, identity, self.source)
        if not self.literal and looks_binary(file.pread(_BINARY_CHECK_BYTES, 0)):
            self.unsupported, self._binary = "binary", identity
            return
        self._start(Start(unread(self.context, self.source, file, seen), file, seen), proof)

    def _start(self, start: Start, proof: str = "") -> None:
        self.context.registry.unreserve(self.resume, self.source)
        self.resume = self.gone_since = None
        self.tail.begin(start.content, start.file, start.status, start.position, proof)

    def _come_back(self, seen: os.stat_result, at: float) -> None:
        """The path was gone and is there again: the same file (a rename and back, a flapping server) or another."""
        content = self.tail.content
        assert content is not None
        file = self.context.open_claimed(self.path, (seen.st_dev, seen.st_ino), self.source)
        problem = verify(file, content.fingerprint()).problem
        if not problem and seen.st_ino != content.inode:
            problem = f"inode {seen.st_ino} instead of {content.inode}"
        begun = unread(self.context, self.source, file, seen) if problem else content
        self.tail.put(file)
        self.gone_since = None
        if self.tail.announced:
            self.context.tell(Readable(self.source, at))
        if problem:
            self._switch("replaced", problem, begun, at, left=None)
        else:
            content.device = seen.st_dev

    # The same file with other content, another file, or none.

    def _cut(self, cut: Cut, seen: os.stat_result, now: float, at: float) -> None:
        """What was read of the file is no longer in it: it is read from its beginning."""
        tail = self.tail
        content = tail.content
        assert content is not None
        reason: RestartReason = "truncated" if cut.held or seen.st_size < content.offset else "replaced"
        left = replace(content.fingerprint(), device=0, inode=0)
        self._switch(reason, cut.proof, Content(*content.identity), at, left=left)
        if tail.read_on(seen, now, at) is not None:
            tail.soon = True

    def _moved(self, seen: os.stat_result, now: float, at: float) -> None:
        """The path names another file: first the rest of the old one, then the new one. Raises Duplicate, Changed."""
        tail = self.tail
        content = tail.content
        assert content is not None
        if self._moved_at is None:
            self._moved_at = now
        links = self._drain(now, at, is_last=not seen.st_size)
        if tail.more:
            return
        if seen.st_size == 0 and links:
            self._moved_at = None  # while the new file is empty the writer may not have moved over yet
            return
        drained = links is not None
        if drained and now - self._moved_at < self.context.settings.rotation_grace:
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
            raise _Left(links) from None
        tail.put(file)
        proof = f"device and inode {identity} instead of {content.identity}"
        self._switch("rotated" if drained else "replaced", proof, begun, at, left=mark if links else None)

    def _drain(self, now: float, at: float, *, is_last: bool = True) -> int | None:
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
            if not stale and self._failures < _TRIES_AT_OLD:
                raise
            self.context.count_error(error)
            tail.close()
            return self._drain(now, at, is_last=is_last) if stale else None  # it may be had under another name
        if not block.changed:
            return status.st_nlink
        tail.close()  # it was cut before it was renamed
        return None

    def _switch(
        self, reason: RestartReason, proof: str, content: Content, at: float, *, left: Fingerprint | None
    ) -> None:
        """The source goes on with other content. `left`: the old file, which was read to its end, or what was cut."""
        tail = self.tail
        if left is not None:
            self.context.registry.remember(left, self.source)
        tail.turn_to(content)
        self._directory_device = None  # the path may be a link to another directory
        self._moved_at = None
        if tail.announced and not content.offset:
            self.context.tell(Restarted(self.source, reason, proof, *content.identity, former=left, at=at))
        elif tail.announced:  # another name delivered what stands here now: nothing of this source's own
            tail.announced = False
            self.context.tell(Gone(self.source, at))

    def _leave_to_other_name(self, now: float, at: float, links: int | None) -> None:
        """The path names a file that is read under another name: nothing is left of this source, for now."""
        self._end(now, at, links)
        self.tail.content = self.gone_since = None

    def _absent(self, error: OSError, now: float, at: float) -> None:
        """No such name. That is only believed of a directory that is the one where the file was."""
        self.unsupported = ""
        if not self.started or self.gone_since is not None:
            self.missing_since = now if self.missing_since is None else self.missing_since
            return
        if self._links() != 0:
            try:
                device = self.context.directory_device(self.path)
            except FileNotFoundError:
                if not self._removed():
                    self._without_directory(now, at)
                    raise
            else:
                if self._directory_device not in (None, device):  # another mount is shown
                    raise error
        if self.missing_since is None:
            self.missing_since = now
        if self.tail.content is None and self.resume is not None:
            start = resumed_beside(self.context, self.source, self.path, self.resume)
            if start is not None:
                self._start(start)
        links = self._drain(now, at)
        if self.tail.more:
            return
        self.tail.soon = True
        grace = self.context.settings.renamed_seconds if links else self.context.settings.gone_grace
        last = max(self.missing_since, self.backoff.changed_at) if links else self.missing_since
        if now - last >= grace:
            self._end(now, at, links)

    def _end(self, now: float, at: float, links: int | None) -> None:
        """The path is gone, and what it held has been read. A file with no name left cannot come back."""
        tail, registry = self.tail, self.context.registry
        tail.close()
        registry.unreserve(self.resume, self.source)
        if tail.content is not None and links != 0:
            registry.remember(tail.content.fingerprint(), self.source)
        elif tail.content is None and self.resume is not None:  # under another name it goes on
            registry.remember(self.resume, self.source)
        self.gone_since = now
        if tail.announced or self.resume is not None:
            self.context.tell(Gone(self.source, at))
        self._moved_at = None
        tail.read_stamp = None  # the next look reads, whatever the file's size and times say

    def _without_directory(self, now: float, at: float) -> None:
        """The directory is not there: renamed, or not to be seen. Read on what is open; let another name have the rest.

        Nothing is reported: what cannot be observed is not gone.
        """
        tail, registry = self.tail, self.context.registry
        if tail.file is not None:
            self._drain(now, at)
        elif not self._directory_missing:
            self._directory_missing = True
            if tail.content is not None:
                registry.remember(tail.content.fingerprint(), self.source)
            elif self.resume is not None:
                registry.unreserve(self.resume, self.source)
                registry.remember(self.resume, self.source)

    def _directory_back(self) -> None:
        """The directory is there again. Another name may have read the file, or still does."""
        self._directory_missing = False
        content = self.tail.content
        if content is None:
            return
        if not self.context.claim(content.identity, self.source):
            raise _Left(None)
        finished = self.context.registry.left(content.inode)
        if any(former.offset > content.offset for former in finished):
            self.tail.content = None  # begin anew, behind what the other name read

    def _removed(self) -> bool:
        """Its directory is not there: was it removed? What is still open was not."""
        known = self.tail.content if self.tail.content is not None else self.resume
        return (
            known is not None
            and self.tail.file is None
            and self.context.directory_removed(self.directory, known.device)
        )

    def _links(self) -> int | None:
        """Names that the open file still has: 0 proves that it was deleted. None if it is not open or fails."""
        file = self.tail.file
        if file is None:
            return None
        try:
            return file.stat().st_nlink
        except OSError:
            return None
