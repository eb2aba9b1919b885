"""One path as one endless source: each `poll` looks once and tells what is new.

Rules. The same file whose bytes before the offset are what was read: go on. The path names another file: read the old
one to its end, then the new one from its beginning. Those bytes changed, on a fresh open: the file was cut, and is read
from its beginning; on a network mount two opens three seconds apart must agree. Absent from a directory that can
be seen: read the rest, then gone. Any other error says nothing about the file: keep everything, report it after the
second in a row, try again later.
"""

import errno
import os
import sys

from msgspec.structs import replace

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
from megatron_monitor.follow.context import Changed, Duplicate, Identity
from megatron_monitor.follow.discovery import kind_of
from megatron_monitor.follow.messages import (
    Fingerprint,
    Gone,
    Position,
    Readable,
    Restarted,
    RestartReason,
    Unreadable,
)
from megatron_monitor.follow.os_layer import OpenFile, stamp
from megatron_monitor.follow.patterns import looks_binary, may_be_log
from megatron_monitor.follow.tail import Tail

_BINARY_CHECK_BYTES = 1024
_TRIES_AT_OLD = 5  # failed reads of a rotated file before its rest is given up: the new one must not wait for ever
# Seconds:
_ROTATION = 1.0  # that the old file is still read after its name shows another: writers move over one after the other
_GONE = 2.0  # that a name must be absent: a rotation leaves it absent between its rename and its create
_RENAMED = 300.0  # for which a file that was renamed, not deleted, is read on under its old name although it is silent
_FAILURE_INTERVAL = 30.0  # between two tries at an unreadable file at most
_FAILURES_REPORTED = 2  # in a row before a source is called unreadable: one lost RPC is no news


class FollowedFile(Tail, eq=False):
    """`poll` when `due_at` has come. Times: `now` is monotonic, `at` Unix seconds."""

    literal: bool = False
    """The path was given as it stands, so it is followed whatever it holds."""
    resume: Position | None = None
    """Where to go on, until that is done or given up."""
    directory: str = ""
    """Where its path lies."""
    met: bool = False
    """It was seen how old the file is."""
    looked_at: bool = False
    failed: bool = False
    """The monitor's own code failed at it: it is looked at no more."""
    unsupported: str = ""
    """A file is there but not to be followed: directory, fifo, socket, device, binary or duplicate."""
    unreadable: bool = False
    missing_since: float | None = None
    gone_since: float | None = None
    """Since when the loop knows that it is gone."""
    let_go: bool = False
    """The path names nothing, nothing is held open: the file is left to other names."""
    _claims: tuple[Identity, ...] = ()
    _binary: Identity | None = None
    _failures: int = 0  # to look at the path, in a row
    _moved_at: float | None = None  # since when the path names another file than the one that is read
    _directory_device: int | None = None  # st_dev of the directory that held the file

    def __post_init__(self) -> None:
        self.directory = sys.intern(self.path.rpartition("/")[0] or "/")  # of many logs

    @property
    def away(self) -> bool:
        """The path names nothing now."""
        return self.gone_since is not None or self.missing_since is not None

    @property
    def started(self) -> bool:
        """Was there ever a file, now or before the restart?"""
        return self.content is not None or self.resume is not None

    def poll(self, now: float, at: float) -> None:
        """Look once. Reads at most `read_bytes` of each file concerned; what it found is told to the context."""
        seen: os.stat_result | OSError
        self.looked_at = True
        try:
            seen = self.context.stat(self.path)
            if self.settled and stamp(seen) == self.stamp:  # most files at most times
                self.due_at = self._next_look(now)
                return
        except OSError as error:
            seen = error
        self.more = self.soon = self.settled = False
        try:
            self._look(seen, now, at)
        except OSError as error:
            self._count_failure(error, now, at)
        else:
            self._failures = 0
            if self.unreadable:
                self.unreadable = False
                self.context.emit(Readable(self.source, at))
            self.due_at = now if self.more else self._next_look(now)
        finally:
            self._release(None if self.content is None or self.let_go else self.content.identity)

    def leave(self) -> None:
        """Nobody follows this path any more."""
        self.context.files.drop(self)
        self.more = False
        self._release(None)

    def _look(self, seen: os.stat_result | OSError, now: float, at: float) -> None:
        try:
            if isinstance(seen, FileNotFoundError | NotADirectoryError):
                self._absent(seen, now, at)
            elif isinstance(seen, OSError):
                raise seen
            else:
                self._present(seen, now, at)
        except Duplicate:
            self.unsupported = "duplicate"
        except Changed:
            self.soon = True

    def _count_failure(self, error: OSError, now: float, at: float) -> None:
        settings = self.context.settings
        self._failures += 1
        self.context.count_error(error)
        if error.errno in (errno.ESTALE, errno.EBADF):
            self.context.files.drop(self)
        if not self.unreadable and self._failures >= (1 if settings.once else _FAILURES_REPORTED):
            self.unreadable = True
            self.context.emit(Unreadable(self.source, error.errno, error.strerror or str(error), at))
        self.due_at = now + min(_FAILURE_INTERVAL, settings.poll_interval * 2.0 ** min(self._failures - 1, 16))

    def _next_look(self, now: float) -> float:
        if self.unsupported and not self.soon:
            return now + self._within_budget(self.context.settings.idle_interval)
        return now + self._pause(now, self.changed_at if self.missing_since is None else self.missing_since)

    # Claims: a file is read under one name.

    def _claim(self, identity: Identity) -> bool:
        """May the source read this file? It is nobody else's until the look is over, and as long as it is read."""
        self._claims = (*self._claims, identity)
        return self.context.registry.claim(identity, self.source)

    def _open_claimed(self, identity: Identity) -> OpenFile:
        """The file that the path names. Raises Duplicate if it is another's, Changed if it is not that one."""
        if not self._claim(identity):
            raise Duplicate
        return self.context.open_as(self.path, identity)

    def _release(self, reads: Identity | None) -> None:
        """Of what the source has claimed it keeps what it reads."""
        kept: tuple[Identity, ...] = ()
        for identity in self._claims:
            if identity == reads:
                kept = (identity,)
            else:
                self.context.registry.release(identity, self.source)
        self._claims = kept

    # The path names something.

    def _present(self, seen: os.stat_result, now: float, at: float) -> None:
        self.unsupported = kind_of(seen.st_mode)
        if self.unsupported:
            return
        if self.changed_at == float("-inf"):  # a stamp from the future (another host's clock) says nothing
            self.changed_at = now - max(0.0, at - seen.st_mtime)
        if self.content is None:
            self._begin(seen, now)
        elif self.let_go:
            self._come_back(seen, now, at)
        if self.content is None:
            return
        self.missing_since = None
        if self._directory_device is None:
            self._directory_device = self.context.directory_device(self.path, seen.st_dev)
        identity = seen.st_dev, seen.st_ino
        if identity != self.content.identity:
            self._moved(seen, now, at)
        if self.content is not None and identity == self.content.identity:
            self._moved_at = None
            self._read_on(seen, now, at)

    def _begin(self, seen: os.stat_result, now: float) -> None:
        """The first file under this path: from the saved position, if it is proved of it or of one beside it."""
        self.let_go = False
        identity, position, problem = (seen.st_dev, seen.st_ino), self.resume, ""
        if identity == self._binary:
            self.unsupported = "binary"
            return
        if position is not None:
            problem = self._resumed(seen, position)
            if not problem or (seen.st_ino == position.inode and not self._confirmed(seen.st_dev, now)):
                return
            if self._resume_renamed(position):
                return
        file = self._open_claimed(identity)
        if not self.literal and looks_binary(file.pread(_BINARY_CHECK_BYTES, 0)):
            self.unsupported, self._binary = "binary", identity
            return
        self._start(self._unread(file, seen), file, seen, proof=problem)

    def _resumed(self, seen: os.stat_result, position: Position) -> str:
        """Go on in the file that the path names, if the position is true of it; else what speaks against it."""
        identity = seen.st_dev, seen.st_ino
        try:
            file = self._open_claimed(identity)
        except Duplicate:
            return "another source reads this file"
        problem, head, tail = verify(file, position)
        if not problem and seen.st_ino != position.inode and not is_strong(position):
            problem = f"inode {seen.st_ino} instead of {position.inode}"
        if not problem:
            self._start(Content(*identity, position.offset, head, tail), file, seen, position)
        return problem

    def _resume_renamed(self, position: Position) -> bool:
        """Go on in the position's file, if it was renamed beside the path while nobody looked."""
        found = self._renamed(position)
        if found is None:
            return False
        file, status, (_, head, tail) = found
        identity = status.st_dev, status.st_ino
        if not self._claim(identity):
            return False
        self._start(Content(*identity, position.offset, head, tail), file, status, position)
        return True

    def _renamed(self, mark: Fingerprint) -> tuple[OpenFile, os.stat_result, Verified] | None:
        """The file of the mark under another name beside the path: what a rename while nobody looked left unread."""
        context = self.context
        directory, _, own = context.os_layer.realpath(self.path).rpartition("/")
        try:
            entries = list(context.os_layer.scandir(directory or "/"))
        except FileNotFoundError:
            return None
        for entry in entries:
            other = entry.inode == mark.inode and entry.name != own and entry.kind == "file"
            if other and may_be_log(entry.name, in_tree=False):
                file = context.files.open(f"{directory}/{entry.name}")
                proved = verify(file, mark)
                if not proved.problem:
                    return file, file.stat(), proved
        return None

    def _unread(self, file: OpenFile, seen: os.stat_result) -> Content:
        """What there is to read in a file just claimed: all of it, or what another name has not delivered before; of
        the copy of a log that was cut, what will be added to it. Raises Duplicate if another source is to resume it.
        """
        registry, identity = self.context.registry, (seen.st_dev, seen.st_ino)
        reserved = registry.reserved(seen.st_ino, self.source)
        if reserved is not None and not verify(file, reserved).problem:
            raise Duplicate
        for former in registry.left(seen.st_ino):
            problem, head, tail = verify(file, former)
            if not problem:
                return Content(*identity, former.offset, head, tail)
        head = file.pread(HEAD_BYTES, 0)
        for former in registry.truncated(self.source, digest(head)) if len(head) == HEAD_BYTES else ():
            if not verify(file, former).problem:  # a copy of a log that was cut (copytruncate): nothing in it is news
                tail = tail_of(file.pread(TAIL_BYTES, max(0, seen.st_size - TAIL_BYTES)))
                return Content(*identity, seen.st_size, head, tail)
        return Content(*identity)

    def _start(
        self, content: Content, file: OpenFile, status: os.stat_result, position: Position | None = None,
        proof: str = "",
    ) -> None:  # fmt: skip
        """Read this file. What another name has delivered is announced only when there is more."""
        self.context.registry.unreserve(self.resume, self.source)
        self.context.files.put(self, file)
        self.resume = self.gone_since = self.suspected_at = None
        self.content, self.let_go = content, False
        self.announced = position is not None or not content.offset
        self.caught_up = not self.announced
        if self.announced:
            self.context.emit(self._opened(content, status, position, proof))

    def _come_back(self, seen: os.stat_result, now: float, at: float) -> None:
        """The path is there again: with the same file (a rename and back, a flapping server) or another."""
        content, registry = self.content, self.context.registry
        assert content is not None
        try:
            file = self._open_claimed((seen.st_dev, seen.st_ino))
        except Duplicate:
            if self.gone_since is None:
                self._leave_to_other_name(now, at, None)
            raise
        if any(former.offset > content.offset for former in registry.left(content.inode)):  # another name has read on
            self._start(self._unread(file, seen), file, seen)
            return
        problem = verify(file, content.fingerprint()).problem
        if not problem and seen.st_ino != content.inode:
            problem = f"inode {seen.st_ino} instead of {content.inode}"
        begun = self._unread(file, seen) if problem else content
        self.context.files.put(self, file)
        if self.announced and self.gone_since is not None:
            self.context.emit(Readable(self.source, at))
        self.gone_since, self.let_go = None, False
        if problem:
            self._switch("replaced", problem, begun, at, left=None)
        else:
            content.device = seen.st_dev

    # The file that is read.

    def _read_on(self, seen: os.stat_result, now: float, at: float) -> None:
        """The path still names it: read what is new, or find that it was cut."""
        content, file = self.content, self.context.files.get(self)
        assert content is not None
        block = self._read(file, seen, now, at) if file is not None else None
        if block is None or block.changed:
            file = self.context.open_as(self.path, content.identity)  # only a fresh open can prove a cut
            problem = verify(file, content.fingerprint()).problem
            if problem and not self._confirmed(content.device, now):
                return
            self.context.files.put(self, file)
            if problem:  # else attributes or pages of this client were old, or the file had been given up
                left = replace(content.fingerprint(), device=0, inode=0)
                content = Content(*content.identity)
                self._switch("truncated", problem, content, at, left=left)
            block = self._read(file, seen, now, at)
        if block.changed:
            self.soon = True
            return
        found, self.suspected_at = stamp(seen), None
        if self.stamp not in (None, found) and not block.data:
            self._note_change(seen, now, at)
        self.stamp = None if self.more else found
        self.settled = not self.more and now >= self.recheck_until and not block.hole
        if self.settled and self.announced and not self.context.settings.once:
            content.hash_head()

    # The path names another file, or none.

    def _moved(self, seen: os.stat_result, now: float, at: float) -> None:
        """First the rest of the old file, then the new one. Raises Duplicate, Changed."""
        content = self.content
        assert content is not None
        if self._moved_at is None:
            self._moved_at = now
        links = self._drain(now, at, is_last=not seen.st_size)
        if self.more:
            return
        if seen.st_size == 0 and links:
            self._moved_at = None  # while the new file is empty the writer may not have moved over yet
            return
        drained = links is not None
        if drained and now - self._moved_at < self._within(_ROTATION):
            self.soon = True
            return
        identity = seen.st_dev, seen.st_ino
        try:
            file = self._open_claimed(identity)
            mark = content.fingerprint()
            same_inode = seen.st_ino == content.inode
            if (same_inode or (not links and is_strong(mark))) and not verify(file, mark).problem:
                # A remount, or a copy with more in it moved over the old one (rsync): the same text, another number.
                content.device, content.inode = identity
                self.context.files.put(self, file)
                return
            begun = self._unread(file, seen)
        except Duplicate:
            self._leave_to_other_name(now, at, links)
            raise
        self.context.files.put(self, file)
        proof = f"device and inode {identity} instead of {content.identity}"
        self._switch("rotated" if drained else "replaced", proof, begun, at, left=mark if links else None)

    def _drain(self, now: float, at: float, *, is_last: bool = True) -> int | None:
        """Read the old file on; is there none behind it? Gives the names it still has, or None if it cannot be had."""
        files = self.context.files
        if self.content is None:
            return None
        file = files.get(self)
        held = file is not None
        try:
            if file is None:
                found = self._renamed(self.content.fingerprint())
                if found is None:
                    return None
                file = found[0]
                files.put(self, file)
            status = file.stat()
            block = self._read(file, status, now, at, is_last=is_last)
        except OSError as error:
            stale = held and error.errno == errno.ESTALE
            if not stale and self._failures < _TRIES_AT_OLD:
                raise
            self.context.count_error(error)
            files.drop(self)
            return self._drain(now, at, is_last=is_last) if stale else None  # it may be had under another name
        if not block.changed:
            return status.st_nlink
        files.drop(self)  # it was cut before it was renamed
        return None

    def _switch(
        self, reason: RestartReason, proof: str, content: Content, at: float, *, left: Fingerprint | None
    ) -> None:
        """Go on with other content. `left`: the old file, which was read to its end, or what was cut."""
        if left is not None:
            self.context.registry.remember(left, self.source)
        self.content, self.caught_up = content, content.offset > 0
        self.stamp, self.more = None, True
        self._directory_device = None  # the path may be a link to another directory
        self._moved_at = None
        if self.announced and not content.offset:
            self.context.emit(Restarted(self.source, reason, proof, *content.identity, former=left, at=at))
        elif self.announced:  # another name delivered what stands here now: nothing of this source's own
            self.announced = False
            self.context.emit(Gone(self.source, at))

    def _absent(self, error: OSError, now: float, at: float) -> None:
        """No such name. That is only believed of a directory that is the one where the file was."""
        self.unsupported = ""
        if not self.started or self.gone_since is not None:
            self.missing_since = now if self.missing_since is None else self.missing_since
            return
        if self._links() != 0 and not self._is_absence_true():
            self._go_unseen(now, at)
            raise error
        if self.missing_since is None:
            self.missing_since = now
        if self.content is None and self.resume is not None:
            self._resume_renamed(self.resume)
        links = None if self.let_go else self._drain(now, at)
        if self.more:
            return
        self.soon = True
        last = max(self.missing_since, self.changed_at) if links else self.missing_since
        if now - last >= self._within(_RENAMED if links else _GONE):
            self._end(now, at, links)

    def _is_absence_true(self) -> bool:
        """Is the directory there that held the file? On a local disk it was removed, if nothing is open in it and the
        nearest one above that is there lies on the same device; a mount that is away shows another. A server may forget
        a name for a while.
        """
        known = self.content if self.content is not None else self.resume
        climbs = known is not None and self.context.files.get(self) is None and self.context.is_local(known.device)
        directory, device = os.path.dirname(self.context.os_layer.realpath(self.path)), self._directory_device
        while True:
            try:
                found = self.context.stat(directory).st_dev
                return device is None or found == device
            except FileNotFoundError:
                if not climbs or known is None or directory == "/":
                    return False
                device = known.device if device is None else device
                directory = os.path.dirname(directory)

    def _go_unseen(self, now: float, at: float) -> None:
        """The directory is renamed, or not to be seen: read on what is open; let another name have the rest. Nothing is
        reported: what cannot be observed is not gone.
        """
        registry = self.context.registry
        if self.context.files.get(self) is not None:
            self._drain(now, at)
        elif not self.let_go:
            self.let_go = True
            registry.unreserve(self.resume, self.source)
            mark = self.content.fingerprint() if self.content is not None else self.resume
            if mark is not None:
                registry.remember(mark, self.source)

    def _end(self, now: float, at: float, links: int | None) -> None:
        """The path is gone, and what it held has been read. A file with no name left cannot come back."""
        registry = self.context.registry
        self.context.files.drop(self)
        registry.unreserve(self.resume, self.source)
        if self.content is not None and links != 0:
            registry.remember(self.content.fingerprint(), self.source)
        elif self.content is None and self.resume is not None:  # under another name it goes on
            registry.remember(self.resume, self.source)
        self.gone_since, self.let_go = now, True
        if self.announced or self.resume is not None:
            self.context.emit(Gone(self.source, at))
        self._moved_at = self.stamp = None

    def _leave_to_other_name(self, now: float, at: float, links: int | None) -> None:
        """The path names a file that is read under another name: nothing is left of this source, for now."""
        self._end(now, at, links)
        self.content = self.gone_since = None
        self.let_go = False

    def _links(self) -> int | None:
        """Names that the open file still has: 0 proves that it was deleted. None if it is not open or fails."""
        file = self.context.files.get(self)
        if file is None:
            return None
        try:
            return file.stat().st_nlink
        except OSError:
            return None
