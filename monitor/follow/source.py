"""One path as one endless source: each `poll` looks once and tells what is new.

Rules. The same file whose bytes before the offset are what was read: go on (tail.py). The path names another file: read
the old one to its end, then begin the new one (rotation.py). Those bytes changed: truncated. Absent from a directory
that can be seen (log_directory.py): read the rest, then gone. Any other error says nothing about the file: keep
everything, report it after the second in a row, try again later.
"""

import errno
import os

from msgspec import Struct

from megatron_monitor.follow.content import verify
from megatron_monitor.follow.context import Changed, Context, Duplicate, Identity
from megatron_monitor.follow.discovery import kind_of
from megatron_monitor.follow.log_directory import LogDirectory
from megatron_monitor.follow.messages import Gone, Position, Readable, SourceId, Unreadable
from megatron_monitor.follow.os_layer import stamp
from megatron_monitor.follow.patterns import looks_binary
from megatron_monitor.follow.rotation import Left, Rotation
from megatron_monitor.follow.schedule import Backoff
from megatron_monitor.follow.start_offset import Start, resumed, resumed_beside, unread
from megatron_monitor.follow.tail import Tail

_BINARY_CHECK_BYTES = 1024


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
    _claim: Identity | None = None
    _binary: Identity | None = None
    _rotation: Rotation | None = None
    backoff: Backoff = None  # type: ignore[assignment]
    tail: Tail = None  # type: ignore[assignment]
    _directory: LogDirectory = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.backoff = Backoff(self.context.settings, self.context.phase())
        self.tail = Tail(self.source, self.path, self.context, self.backoff)
        self._directory = LogDirectory(self.path, self.context)

    @property
    def _turning(self) -> Rotation:
        """From one file to the next: most paths never need it."""
        if self._rotation is None:
            self._rotation = Rotation(self.source, self.path, self.context, self.tail, self._directory)
        return self._rotation

    def _turned(self) -> None:
        if self._rotation is not None:
            self._rotation.moved_at = None

    @property
    def directory(self) -> str:
        """Where its path lies."""
        return self._directory.path

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
            content = self.tail.content if self.gone_since is None and not self._directory.missing else None
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
            self._turning.failures += 1
            self.context.count_error(error)
            if error.errno in (errno.ESTALE, errno.EBADF):
                tail.close()
            if self._turning.failures >= self.context.settings.failures_reported and not self.unreadable:
                self.unreadable = True
                self.context.tell(Unreadable(self.source, error.errno, error.strerror or str(error), at))
            self.due_at = now + self.backoff.after_failure(self._turning.failures)
            return
        if self._rotation is not None:
            self._rotation.failures = 0
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
            if self._directory.missing:
                self._directory_back()
            if tail.content is None:
                self._begin(seen, now)
            elif self.gone_since is not None:
                self._come_back(seen, at)
            if tail.content is None:
                return
            self.missing_since = None
            self._directory.remember(seen.st_dev)
            identity = seen.st_dev, seen.st_ino
            if identity != tail.content.identity:
                self._turning.moved(seen, now, at)
            if tail.content is not None and identity == tail.content.identity:
                self._turned()
                cut = tail.read_on(seen, now, at)
                if cut is not None:
                    self._turning.cut(cut, seen, now, at)
        except Left as left:
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
            self._turning.switch("replaced", problem, begun, at, left=None)
        else:
            content.device = seen.st_dev

    # The same file with other content, another file, or none.

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
                away = self._directory.shows_another_mount()
            except FileNotFoundError:
                if not self._removed():
                    self._without_directory(now, at)
                    raise
            else:
                if away:
                    raise error
        if self.missing_since is None:
            self.missing_since = now
        if self.tail.content is None and self.resume is not None:
            start = resumed_beside(self.context, self.source, self.path, self.resume)
            if start is not None:
                self._start(start)
        links = self._turning.drain(now, at)
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
            registry.remember(tail.content.fingerprint())
        elif tail.content is None and self.resume is not None:  # under another name it goes on
            registry.remember(self.resume)
        self.gone_since = now
        if tail.announced or self.resume is not None:
            self.context.tell(Gone(self.source, at))
        self._turned()
        tail.read_stamp = None  # the next look reads, whatever the file's size and times say

    def _without_directory(self, now: float, at: float) -> None:
        """The directory is not there: renamed, or not to be seen. Read on what is open; let another name have the rest.

        Nothing is reported: what cannot be observed is not gone.
        """
        tail, registry = self.tail, self.context.registry
        if tail.file is not None:
            self._turning.drain(now, at)
        elif not self._directory.missing:
            self._directory.missing = True
            if tail.content is not None:
                registry.remember(tail.content.fingerprint())
            elif self.resume is not None:
                registry.unreserve(self.resume, self.source)
                registry.remember(self.resume)

    def _directory_back(self) -> None:
        """The directory is there again. Another name may have read the file, or still does."""
        self._directory.missing = False
        content = self.tail.content
        if content is None:
            return
        if not self.context.claim(content.identity, self.source):
            raise Left(None)
        finished = self.context.registry.left(content.inode)
        if any(former.offset > content.offset for former in finished):
            self.tail.content = None  # begin anew, behind what the other name read

    def _removed(self) -> bool:
        """Its directory is not there: was it removed? What is still open was not."""
        known = self.tail.content if self.tail.content is not None else self.resume
        return known is not None and self.tail.file is None and self._directory.removed(known.device)

    def _links(self) -> int | None:
        """Names that the open file still has: 0 proves that it was deleted. None if it is not open or fails."""
        file = self.tail.file
        if file is None:
            return None
        try:
            return file.stat().st_nlink
        except OSError:
            return None
