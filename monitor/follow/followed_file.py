"""A followed path as one endless source: each `poll` looks once and emits what is new.

Rules:
- The path names the same file, and the bytes before the offset are the ones that were read: read on.
- The path names another file (rotation): read the old one to its end, then the new one from its beginning.
- The bytes before the offset changed, on a fresh open (truncation): read the file from its beginning. On a network
  mount two opens three seconds apart must agree.
- The path is absent from a directory that can be read: read the rest of the open file, then report it as gone.
- Any other error shows nothing about the file: keep the state, report the second error in a row, try again later.
"""

import contextlib
import errno
import os
import sys
import zlib

from msgspec import Struct
from msgspec.structs import replace

from megatron_monitor.follow.content import (
    Content,
    FileBlock,
    Verification,
    content_from,
    is_strong,
    read_block,
    verify,
)
from megatron_monitor.follow.context import DuplicateFileError, FileChangedError, Identity, MountContext
from megatron_monitor.follow.discovery import unsupported_kind
from megatron_monitor.follow.messages import (
    CaughtUp,
    Data,
    Fingerprint,
    Gone,
    Opened,
    Position,
    Readable,
    Restarted,
    RestartReason,
    SourceId,
    Unreadable,
)
from megatron_monitor.follow.os_layer import OpenFile, stat_stamp
from megatron_monitor.follow.patterns import BINARY_CHECK_BYTES, looks_binary, may_be_log

_MIN_READ_BYTES = 1 << 16  # read beyond the known size of a file; a buffer of `read_bytes` would cost 13 us
_MAX_FAILED_READS = 5  # of a rotated file; then its rest is given up, so that the new file is read
_FAILURES_REPORTED = 2  # failures in a row before a source is reported as unreadable: one lost RPC is normal
_IDLE_DIVISOR = 20.0  # a file silent for t seconds is looked at every t / 20: a late look costs 5 % of the silence
_PAUSE_SPREAD = 0.1  # share by which pauses of files differ, so that files which fall silent together spread out
# Seconds:
_ROTATION = 1.0  # for which the old file is still read after a rotation: writers switch one after the other
_ABSENT_SECONDS = 2.0  # of absence before a path is gone: a rotation leaves it absent between rename and create
_RENAMED = 300.0  # of silence for which a renamed file, still open, is read under its old path
_FAILURE_INTERVAL = 30.0  # between two tries at an unreadable file at most
_CONFIRM = 3.0  # between two opens that prove a truncation on a network mount: an NFS client caches attributes for 3 s
_HOLE = 2.0  # for which NULs before text may be filled on a network mount: clients write pages back in any order
_FRESH = 60.0  # age by time stamp below which a file may be written again at any moment
_RECENT_GROWTH = 60.0  # since the last growth, for which a file is looked at in time whatever the limit on looks
_RECHECK = 2.0  # for which the bytes before the offset are compared again: coarse time stamps may hide a change
_RECHECK_LOCAL = 0.02  # the same for local time stamps with fractions of seconds, which tick every 10 ms or faster


class FollowedFile(Struct, eq=False):
    """A path and how far its file was read. Call `poll` at `due_at`. `now` is monotonic, `at` Unix seconds."""

    path: str
    source: SourceId
    context: MountContext
    literal: bool = False  # the path was configured without wildcards: the file is followed whatever it contains
    resume: Fingerprint | None = None
    """Where to read on in the file that an earlier process read, or that was read before the path named nothing."""
    due_at: float = 0.0
    directory: str = ""
    looked_at: bool = False
    failed: bool = False  # quarantined: the monitor's own code failed at this file
    unsupported: str = ""
    """Why the path is not followed: directory, fifo, socket, device, binary or duplicate. Empty: it is followed."""
    has_more: bool = False  # there is more to read at once
    look_soon: bool = False  # look again after the poll interval: something about the file is not decided yet
    changed_at: float = float("-inf")
    """When the file was last seen to change; at first by its time stamp. -inf: it was never seen."""
    recheck_until: float = 0.0
    """Until a look at or after this, the bytes before the offset are compared even if the stamp is equal."""
    has_grown: bool = False  # it changed after it had been read to its end: a process writes it
    content: Content | None = None
    announced: bool = False
    """Opened was emitted: at once, or with the first bytes after those that another path delivered."""
    caught_up: bool = False
    stamp: int | None = None  # `stat_stamp` of the file when it was last read to its end
    stamp_is_final: bool = False  # an equal stamp proves that nothing changed
    truncation_suspected_at: float | None = None
    missing_since: float | None = None  # since when the path names nothing
    gone: bool = False  # Gone was emitted
    _claims: tuple[Identity, ...] = ()
    _binary: Identity | None = None
    _hole_since: float | None = None
    """Since when a run of NULs is waited for: another host may still fill it. None: no wait."""
    _zeros_until: int = 0
    _failures: int = 0  # in a row
    _moved_at: float | None = None  # since when the path names another file than `content`
    _directory_device: int | None = None  # st_dev of the directory that held the file

    def __post_init__(self) -> None:
        self.directory = sys.intern(self.path.rpartition("/")[0] or "/")  # shared by many logs

    @property
    def is_away(self) -> bool:
        """True while the path names nothing."""
        return self.missing_since is not None

    @property
    def unreadable(self) -> bool:
        """True if Unreadable was emitted."""
        return self._failures >= _FAILURES_REPORTED

    def poll(self, now: float, at: float) -> None:
        """Look once. Reads at most `read_bytes` of each file concerned, and adds messages to those of the context."""
        seen: os.stat_result | OSError
        self.looked_at = True
        try:
            seen = self.context.stat(self.path)
            if self.stamp_is_final and stat_stamp(seen) == self.stamp:  # most files at most times
                self.due_at = self._next_look(now)
                return
        except OSError as error:
            seen = error
        self.has_more = self.look_soon = self.stamp_is_final = False
        try:
            self._look(seen, now, at)
        except OSError as error:
            self._count_failure(error, now, at)
        else:
            if self.unreadable:
                self.context.pending.append(Readable(self.source, at))
            self._failures = 0
            self.due_at = now if self.has_more else self._next_look(now)
        finally:
            self._release_claims(None if self.content is None else self.content.identity)

    def leave(self) -> None:
        """Stop following the path."""
        self.context.files.drop(self)
        self.has_more = False
        self._release_claims(None)

    def _look(self, seen: os.stat_result | OSError, now: float, at: float) -> None:
        try:
            if isinstance(seen, FileNotFoundError | NotADirectoryError):
                self._handle_absence(seen, now, at)
            elif isinstance(seen, OSError):
                raise seen
            else:
                self._handle_file(seen, now, at)
        except DuplicateFileError:
            self.unsupported = "duplicate"
            if self.announced and not self.gone:  # the path's file is read under another name
                self._finish(at, None)
                self.resume, self.gone, self.announced = None, False, False
        except FileChangedError:
            self.look_soon = True

    def _count_failure(self, error: OSError, now: float, at: float) -> None:
        settings = self.context.settings
        self._failures += 1
        self.context.count_error(error)
        if error.errno in (errno.ESTALE, errno.EBADF):
            self.context.files.drop(self)
        if self._failures == _FAILURES_REPORTED:
            self.context.pending.append(Unreadable(self.source, error.errno, error.strerror or str(error), at))
        self.due_at = now + min(_FAILURE_INTERVAL, settings.poll_interval * 2.0 ** min(self._failures - 1, 16))

    def _next_look(self, now: float) -> float:
        settings = self.context.settings
        if self.unsupported and not self.look_soon:
            return now + self._pause_within_budget(settings.idle_interval)
        if self.look_soon or now < self.recheck_until:
            return now + settings.poll_interval
        idle = now - (self.changed_at if self.missing_since is None else self.missing_since)
        pause = min(max(idle / _IDLE_DIVISOR, settings.poll_interval), settings.idle_interval)
        return now + (pause if self.has_grown and idle <= _RECENT_GROWTH else self._pause_within_budget(pause))

    def _pause_within_budget(self, pause: float) -> float:
        """Return a pause that keeps within the budget of looks, out of step with the other files."""
        phase = zlib.crc32(self.source.encode()) / 2**32
        return max(pause * (1.0 - _PAUSE_SPREAD * phase), self.context.spread_seconds * (1.0 + _PAUSE_SPREAD * phase))

    # Claims: a file is read under one name.

    def _claim(self, identity: Identity) -> bool:
        """Claim the file for this look, and for as long as it is read. False: another source has it."""
        self._claims = (*self._claims, identity)
        return self.context.registry.claim(identity, self.source)

    def _open_claimed(self, identity: Identity) -> OpenFile:
        """Open the path. Raises DuplicateFileError if another source has the file, FileChangedError if it changed."""
        if not self._claim(identity):
            raise DuplicateFileError
        return self.context.open_as(self.path, identity)

    def _release_claims(self, kept: Identity | None) -> None:
        for identity in self._claims:
            if identity != kept:
                self.context.registry.release(identity, self.source)
        self._claims = (kept,) if kept in self._claims and kept is not None else ()

    # The path names something.

    def _handle_file(self, seen: os.stat_result, now: float, at: float) -> None:
        self.unsupported = unsupported_kind(seen.st_mode)
        if self.unsupported:
            return
        if self.changed_at == float("-inf"):  # a stamp in the future (another host's clock) means nothing
            self.changed_at = now - max(0.0, at - seen.st_mtime)
        if self.content is None:
            self._open(seen, now, at)
        if self.content is None:
            return
        self.missing_since = None
        if self._directory_device is None:
            self._directory_device = self.context.directory_device(self.path, seen.st_dev)
        identity = seen.st_dev, seen.st_ino
        if identity != self.content.identity:
            self._handle_other_file(seen, now, at)
        if self.content is not None and identity == self.content.identity:
            self._moved_at = None
            self._read_same_file(seen, now, at)

    def _open(self, seen: os.stat_result, now: float, at: float) -> None:
        """Open the path: where reading ended, if that is proved for its file or for a file beside it."""
        identity, mark = (seen.st_dev, seen.st_ino), self.resume
        if identity == self._binary:
            self.unsupported = "binary"
            return
        if mark is not None:
            if self._try_resume(seen, mark, at):
                return
            if seen.st_ino == mark.inode and not self._is_confirmed(seen.st_dev, now):
                return
            if self._resume_renamed(mark, at):
                return
        file = self._open_claimed(identity)
        if not self.literal and looks_binary(file.pread(BINARY_CHECK_BYTES, 0)):
            self.unsupported, self._binary = "binary", identity
            return
        self._read_from(self._content_to_read(file, seen), file, seen, at)

    def _try_resume(self, seen: os.stat_result, mark: Fingerprint, at: float) -> bool:
        """Resume in the file that the path names. Returns False if it is not proved to be the file that was read."""
        identity = seen.st_dev, seen.st_ino
        try:
            file = self._open_claimed(identity)
        except DuplicateFileError:
            return False
        proved = verify(file, mark)
        if proved.problem or (seen.st_ino != mark.inode and not is_strong(mark)):
            return False
        if any(former.offset > mark.offset for former in self.context.registry.left_files(mark.inode)):
            return False  # another path read on
        self._read_from(content_from(file, identity, mark, proved), file, seen, at, mark)
        return True

    def _resume_renamed(self, mark: Fingerprint, at: float) -> bool:
        """Resume in the file that was read if it was renamed within its directory, unless another path reads it."""
        renamed = self._find_renamed(mark)
        if renamed is None:
            return False
        file, status, proved = renamed
        identity = status.st_dev, status.st_ino
        if not self._claim(identity):
            return False
        self._read_from(content_from(file, identity, mark, proved), file, status, at, mark)
        return True

    def _find_renamed(self, mark: Fingerprint) -> tuple[OpenFile, os.stat_result, Verification] | None:
        """Open the file of the fingerprint under another name in the directory of the path; None if there is none."""
        context = self.context
        directory, _, name = context.os_layer.realpath(self.path).rpartition("/")
        try:
            entries = list(context.os_layer.scandir(directory or "/"))
        except FileNotFoundError:
            return None
        for entry in entries:
            candidate = entry.inode == mark.inode and entry.name != name and entry.kind == "file"
            if candidate and may_be_log(entry.name, in_tree=False):
                file = context.files.open(f"{directory}/{entry.name}")
                verification = verify(file, mark)
                if not verification.problem:
                    return file, file.stat(), verification
        return None

    def _content_to_read(self, file: OpenFile, seen: os.stat_result) -> Content:
        """Return where to begin in a newly claimed file: at 0, or after the bytes that another path delivered. Raises
        DuplicateFileError if another source is to resume it.
        """
        registry, identity = self.context.registry, (seen.st_dev, seen.st_ino)
        reserved = registry.reserved(seen.st_ino, self.source)
        if reserved is not None and not verify(file, reserved).problem:
            raise DuplicateFileError
        for former in registry.left_files(seen.st_ino):
            if not (proved := verify(file, former)).problem:
                return content_from(file, identity, former, proved)
        return Content(*identity)

    def _read_from(
        self, content: Content, file: OpenFile, status: os.stat_result, at: float, mark: Fingerprint | None = None
    ) -> None:  # fmt: skip
        """Read this file from now on, from `mark` on if given. A file that another path delivered is only announced
        once it has more.
        """
        self.context.registry.unreserve(self.resume, self.source)
        self.context.files.put(self, file)
        was_gone, self.gone = self.gone, False
        self.resume = self.truncation_suspected_at = None
        if not self.announced:
            self.content, resumed = content, isinstance(mark, Position)
            self.announced = resumed or not content.offset
            self.caught_up = not self.announced
            if self.announced:
                self.context.pending.append(self._opened(content, status, resumed=resumed))
                self.content = replace(content, proved=None)  # there may be 100,000, and only the core needs the proof
            return
        if was_gone:
            self.context.pending.append(Readable(self.source, at))
        if mark is not None:
            self.content = content
        else:
            self._switch_to(content, "replaced", "the path named nothing before", at, left=None)

    # The file that is read.

    def _read_same_file(self, seen: os.stat_result, now: float, at: float) -> None:
        """Read what is new in the file that the path still names, or find that it was truncated."""
        content, file = self.content, self.context.files.get(self)
        assert content is not None
        block = self._read(file, seen, now, at) if file is not None else None
        if block is None or block.changed:
            file = self.context.open_as(self.path, content.identity)  # only a fresh open can prove a truncation
            problem = verify(file, content.fingerprint()).problem
            if problem and not self._is_confirmed(content.device, now):
                return
            self.context.files.put(self, file)
            if problem:  # else this client had old attributes or pages, or the file was not open
                self._switch_to(Content(*content.identity), "truncated", problem, at, left=None)
            block = self._read(file, seen, now, at)
        if block.changed:
            self.look_soon = True
            return
        stamp, self.truncation_suspected_at = stat_stamp(seen), None
        if self.stamp not in (None, stamp) and not block.data:
            self._note_change(seen, now, at)
        self.stamp = None if self.has_more else stamp
        self.stamp_is_final = not self.has_more and now >= self.recheck_until and not block.hole
        if self.stamp_is_final and self.announced and self.content is not None:
            self.content = self.content.with_hashed_head()

    def _read(
        self, file: OpenFile, status: os.stat_result, now: float, at: float, *, is_last: bool = True
    ) -> FileBlock:
        """Read the next bytes and emit them. At the end of its last file the source has caught up."""
        content, settings = self.content, self.context.settings
        assert content is not None
        waited = self._hole_since is not None and now - self._hole_since >= _HOLE
        wait_for_holes = not (waited or self.context.is_local(content.device))
        expected = status.st_size - content.offset + _MIN_READ_BYTES
        count = min(settings.read_bytes, max(_MIN_READ_BYTES, expected))
        block = read_block(file, content, count, self._zeros_until, wait_for_holes=wait_for_holes)
        self._zeros_until = block.zeros_until
        if block.changed:
            return block
        self._hole_since = (self._hole_since if self._hole_since is not None else now) if block.hole else None
        self.look_soon = self.look_soon or block.hole
        self.has_more = not block.at_end
        if block.data:
            if not self.announced:
                self.announced = True
                self.context.pending.append(self._opened(content, status))
            self.content = content = content.advance(block.offset, block.data)
            if self.caught_up or at - status.st_mtime < _FRESH:  # a read of an old log is not a change
                self._note_change(status, now, at)
            behind = max(0, status.st_size - content.offset)
            self.context.pending.append(
                Data(self.source, block.offset, block.data, status.st_mtime, at, behind, content)
            )
        if block.at_end and not block.hole and not self.caught_up and is_last:
            self.caught_up = True
            self.context.pending.append(CaughtUp(self.source, at))
        return block

    def _note_change(self, status: os.stat_result, now: float, at: float) -> None:
        recheck = _RECHECK
        if status.st_mtime % 1.0 and self.context.is_local(status.st_dev):  # else the stamps may be whole seconds
            ticked_by = max(status.st_mtime, status.st_ctime) + _RECHECK_LOCAL
            recheck = min(max(0.0, ticked_by - at), recheck)
        self.changed_at, self.recheck_until = now, now + recheck
        self.has_grown = self.has_grown or self.caught_up

    def _is_confirmed(self, device: int, now: float) -> bool:
        """Return True if a truncation is proved. On a network mount the first look is not enough."""
        if self.context.is_local(device):
            return True
        if self.truncation_suspected_at is None:
            self.truncation_suspected_at = now
        self.look_soon = True
        return now - self.truncation_suspected_at >= _CONFIRM

    def _opened(self, content: Content, status: os.stat_result, *, resumed: bool = False) -> Opened:
        return Opened(
            self.source, self.path, content, status.st_size, status.st_mtime, resumed, status.st_uid, self.context.mount
        )

    # The path names another file, or none.

    def _handle_other_file(self, seen: os.stat_result, now: float, at: float) -> None:
        """Read the rest of the old file, then the new one. Raises DuplicateFileError, FileChangedError."""
        if self._moved_at is None:
            self._moved_at = now
        links = self._read_old_file(now, at, is_last=not seen.st_size)
        if self.has_more:
            return
        content = self.content
        assert content is not None
        if seen.st_size == 0 and links:
            self._moved_at = None  # while the new file is empty the writer may still use the old one
            return
        was_read = links is not None
        if was_read and now - self._moved_at < _ROTATION:
            self.look_soon = True
            return
        identity = seen.st_dev, seen.st_ino
        file, mark = self._open_claimed(identity), content.fingerprint()
        same_inode = seen.st_ino == content.inode
        if (same_inode or (not links and is_strong(mark))) and not verify(file, mark).problem:
            # A remount, or a longer copy moved over the old file (rsync): the same text under another number.
            self.content = replace(content, device=identity[0], inode=identity[1])
            self.context.files.put(self, file)
            return
        next_content = self._content_to_read(file, seen)
        self.context.files.put(self, file)
        proof = f"device and inode {identity} instead of {content.identity}"
        self._switch_to(next_content, "rotated" if was_read else "replaced", proof, at, left=mark if links else None)

    def _read_old_file(self, now: float, at: float, *, is_last: bool = True) -> int | None:
        """Read on in the file that the path named. Returns its number of links; None if it cannot be opened."""
        files = self.context.files
        if self.content is None:
            return None
        file = files.get(self)
        was_open = file is not None
        try:
            if file is None:
                renamed = self._find_renamed(self.content.fingerprint())
                if renamed is None:
                    return None
                file = renamed[0]
                files.put(self, file)
            status = file.stat()
            block = self._read(file, status, now, at, is_last=is_last)
        except OSError as error:
            stale = was_open and error.errno == errno.ESTALE
            if not stale and self._failures < _MAX_FAILED_READS:
                raise
            self.context.count_error(error)
            files.drop(self)
            return self._read_old_file(now, at, is_last=is_last) if stale else None  # under another name, perhaps
        if not block.changed:
            return status.st_nlink
        files.drop(self)  # it was truncated before it was renamed
        return None

    def _switch_to(
        self, content: Content, reason: RestartReason, proof: str, at: float, *, left: Fingerprint | None
    ) -> None:
        """Read other content from now on. `left`: the old file if it was read to its end."""
        if left is not None:
            self.context.registry.add_left_file(left)
        self.content, self.caught_up = content, content.offset > 0
        self.stamp, self.has_more, self._hole_since, self._zeros_until = None, True, None, 0
        self._moved_at = self._directory_device = None  # the path may be a link to another directory
        if self.announced and not content.offset:
            self.context.pending.append(Restarted(self.source, reason, proof, content, left, at))
        elif self.announced:  # another path delivered this content
            self.announced = False
            self.context.pending.append(Gone(self.source, at))

    def _handle_absence(self, error: OSError, now: float, at: float) -> None:
        """Handle a path that names nothing. Absence only counts in the directory where the file was."""
        self.unsupported = ""
        if (self.content is None and self.resume is None) or self.gone:  # nothing was read
            self.missing_since = now if self.missing_since is None else self.missing_since
            return
        if not self._is_open_file_deleted() and not self._is_absence_proved():
            if self.context.files.get(self) is not None:
                self._read_old_file(now, at)
            else:
                self._release(is_deleted=False)  # to other names: the directory was renamed, or cannot be seen
            raise error  # the file may still exist
        if self.missing_since is None:
            self.missing_since = now
        if self.content is None and self.resume is not None:
            self._resume_renamed(self.resume, at)
        links = self._read_old_file(now, at)
        if self.has_more:
            return
        self.look_soon = True
        last = max(self.missing_since, self.changed_at) if links else self.missing_since
        if now - last >= (_RENAMED if links else _ABSENT_SECONDS):
            self._finish(at, links)

    def _is_open_file_deleted(self) -> bool:
        file = self.context.files.get(self)
        with contextlib.suppress(OSError):
            return file is not None and file.stat().st_nlink == 0
        return False

    def _is_absence_proved(self) -> bool:
        """Return True if the directory that held the file is there without it. On a local disk a directory counts as
        removed if its file is not open and the nearest existing parent is on the same device; an unmounted one shows
        another device. A server may hide a name for a while.
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

    def _release(self, *, is_deleted: bool) -> None:
        """Let another path read the rest of the file, unless the file is deleted."""
        self.context.registry.unreserve(self.resume, self.source)
        if self.content is not None:
            self.resume, self.content, self.stamp = self.content.fingerprint(), None, None
        if self.resume is not None and not is_deleted:
            self.context.registry.add_left_file(self.resume)

    def _finish(self, at: float, links: int | None) -> None:
        """Report the path as gone. Its file may continue under another name, unless it has no links left."""
        is_known = self.announced or isinstance(self.resume, Position)  # to the loop, or to an earlier process
        self.context.files.drop(self)
        self._release(is_deleted=links == 0)
        self.gone = True
        if is_known:
            self.context.pending.append(Gone(self.source, at))
        self._moved_at = None
