"""The file that a source reads now: what is new in it, how far it was read, and when it is looked at next."""

import os
import zlib

from msgspec import Struct

from megatron_monitor.follow.content import Content, FileBlock, read_block
from megatron_monitor.follow.context import Context
from megatron_monitor.follow.messages import CaughtUp, Data, Opened, Position, SourceId
from megatron_monitor.follow.os_layer import OpenFile, Stamp

_LEAST_READ = 1 << 16  # bytes asked for beyond what a file is known to hold: to make room for `read_bytes` takes 13 us
_CONFIRM = 3.0  # between two opens that show a truncation on a network mount: an NFS client keeps attributes for 3 s
_HOLE = 2.0  # that NULs before text may take to be filled on a network mount: clients write pages back in any order
_FRESH = 60.0  # of age by its time stamp: a file that was written so lately may be written again any moment
_SILENT = 60.0  # a file that grew so lately is looked at in time whatever the budget of looks
_RECHECK = 2.0  # for which the bytes before the offset are compared again: a tick of old servers' stamps hides changes
_RECHECK_LOCAL = 0.02  # the same after a local time stamp with parts of seconds: these tick every 10 ms or more often
_IDLE_DIVISOR = 20.0  # a file silent for t seconds is looked at every t / 20: a late look costs 5 % of the silence
_SPREAD = 0.1  # share of a pause by which the looks at files that fell silent together differ


class Tail(Struct, eq=False):
    """Reads on. Times: `now` is monotonic, `at` Unix seconds."""

    path: str
    source: SourceId
    """The path's id."""
    context: Context
    due_at: float = 0.0
    """When it is to be looked at."""
    more: bool = False
    """There is more to read at once."""
    soon: bool = False
    """To be looked at again soon: something about it is not settled."""
    changed_at: float = float("-inf")
    """When the file was last seen to change; at first, as long ago as its time stamp says; before that never."""
    recheck_until: float = 0.0
    """Until a look at or after this its bytes are compared although its size and times stay the same."""
    grown: bool = False
    """It was seen to change after it had been read to its end: somebody writes it."""
    content: Content | None = None
    announced: bool = False
    """The loop was told that it is open: at once, or with the first bytes behind what another name delivered."""
    caught_up: bool = False
    stamp: Stamp | None = None
    """Of the file when it was last read to its end."""
    settled: bool = False
    """Nothing can have happened to the file since that the stamp does not show."""
    suspected_at: float | None = None
    """Since when it seems to be cut."""

    def _pause(self, now: float, idle_since: float) -> float:
        """Seconds to the next look at a file, or a name, at which nothing has happened since then."""
        settings = self.context.settings
        if self.soon or now < self.recheck_until:
            return settings.poll_interval
        idle = now - idle_since
        pause = min(max(idle / _IDLE_DIVISOR, settings.poll_interval), settings.idle_interval)
        return pause if self.grown and idle <= _SILENT else self._within_budget(pause)

    def _within_budget(self, pause: float) -> float:
        """A pause that keeps within the budget of looks, out of step with the other files."""
        phase = zlib.crc32(self.source.encode()) / 2**32
        return max(pause * (1.0 - _SPREAD * phase), self.context.spread_seconds * (1.0 + _SPREAD * phase))

    def _within(self, seconds: float) -> float:
        """So long, but one reading to the end waits for nothing."""
        return 0.0 if self.context.settings.once else seconds

    def _read(
        self, file: OpenFile, status: os.stat_result, now: float, at: float, *, is_last: bool = True
    ) -> FileBlock:
        """The next bytes, from whichever file; tell what came. With its last file a source has caught up."""
        content, settings = self.content, self.context.settings
        assert content is not None
        waited = content.hole_since is not None and now - content.hole_since >= _HOLE
        wait_for_holes = not (waited or settings.once or self.context.is_local(content.device))
        expected = status.st_size - content.offset + _LEAST_READ
        count = min(settings.read_bytes, max(_LEAST_READ, expected))
        block = read_block(file, content, count, wait_for_holes=wait_for_holes)
        if block.changed:
            return block
        content.hole_since = (content.hole_since if content.hole_since is not None else now) if block.hole else None
        self.soon = self.soon or block.hole
        self.more = not block.at_end
        if block.data:
            self._deliver(content, block, status, now, at)
        if block.at_end and not block.hole and not self.caught_up and is_last:
            self.caught_up = True
            self.context.emit(CaughtUp(self.source, at))
        return block

    def _deliver(self, content: Content, block: FileBlock, status: os.stat_result, now: float, at: float) -> None:
        """What was read, and before its first bytes that it was opened."""
        if not self.announced:
            self.announced = True
            self.context.emit(self._opened(content, status))
        content.take(block.offset, block.data)
        if self.caught_up or at - status.st_mtime < _FRESH:  # to read an old log is no sign of life in it
            self._note_change(status, now, at)
        behind = max(0, status.st_size - content.offset)
        self.context.emit(Data(self.source, block.offset, block.data, status.st_mtime, at, behind))

    def _note_change(self, status: os.stat_result, now: float, at: float) -> None:
        recheck = _RECHECK
        if status.st_mtime % 1.0 and self.context.is_local(status.st_dev):  # whole seconds: the stamps are no finer
            ticked_by = max(status.st_mtime, status.st_ctime) + _RECHECK_LOCAL
            recheck = min(max(0.0, ticked_by - at), recheck)
        self.changed_at, self.recheck_until = now, now + recheck
        self.grown = self.grown or self.caught_up

    def _confirmed(self, device: int, now: float) -> bool:
        """Is what looks like a truncation proved by now? On a network mount the first look is not believed."""
        if self.context.is_local(device):
            return True
        if self.suspected_at is None:
            self.suspected_at = now
        self.soon = True
        return now - self.suspected_at >= self._within(_CONFIRM)

    def _opened(
        self, content: Content, status: os.stat_result, position: Position | None = None, proof: str = ""
    ) -> Opened:
        return Opened(
            self.source, self.path, position, status.st_size, status.st_mtime, position is not None,
            content.offset, content.device, content.inode, content.head, content.tail, proof,
            status.st_uid, self.context.mount,
        )  # fmt: skip
