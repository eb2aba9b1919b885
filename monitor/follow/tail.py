"""The file that a source reads now: how far it was read, what is new in it, and whether it still is what was read.

The same file whose bytes before the offset are what was read: go on. Those bytes changed, on a fresh open: it was cut;
on a network mount two opens `confirm_seconds` apart must agree.
"""

import os
from typing import NamedTuple

from msgspec import Struct

from megatron_monitor.follow.content import Block, Content, read_block, verify
from megatron_monitor.follow.context import Context
from megatron_monitor.follow.messages import CaughtUp, Data, Opened, Position, SourceId
from megatron_monitor.follow.os_layer import OpenFile, Stamp, stamp
from megatron_monitor.follow.schedule import Backoff

_FRESH_SECONDS = 60.0  # of age by its time stamp: a file that was written so lately may be written again any moment


class Cut(NamedTuple):
    """The file no longer holds what was read of it. `held`: it was held open meanwhile."""

    proof: str
    held: bool


class Tail(Struct, eq=False):
    """Reads on. Times: `now` is monotonic, `at` Unix seconds."""

    source: SourceId
    path: str
    context: Context
    backoff: Backoff
    content: Content | None = None
    announced: bool = False
    """The loop was told that it is open: at once, or with the first bytes behind what another name delivered."""
    caught_up: bool = False
    more: bool = False
    """There is more to read at once."""
    soon: bool = False
    """To be looked at again soon: something about it is not settled."""
    rest_stamp: Stamp | None = None
    """Its stamp at its end, if nothing can have happened since that the stamp does not show."""
    suspected_at: float | None = None
    """Since when it seems to be cut."""
    read_stamp: Stamp | None = None
    """Its stamp when it was last read to its end."""

    @property
    def file(self) -> OpenFile | None:
        """None if it was given up for others, or never opened."""
        return self.context.files.get(self)

    def put(self, file: OpenFile) -> None:
        """Read on from this one."""
        self.context.files.put(self, file)

    def close(self) -> None:
        """Hold the file open no more."""
        self.context.files.drop(self)

    def begin(
        self, content: Content, file: OpenFile, status: os.stat_result, position: Position | None, proof: str
    ) -> None:
        """The first file under the path. What another name has delivered is announced only when there is more."""
        self.put(file)
        self.content, self.suspected_at = content, None
        self.announced = position is not None or not content.offset
        self.caught_up = not self.announced
        if self.announced:
            self.context.tell(self._opened(content, status, position, proof))

    def turn_to(self, content: Content) -> None:
        """Other content from now on, from its offset."""
        self.content = content
        self.caught_up = content.offset > 0
        self.read_stamp = None
        self.more = True

    def read_on(self, seen: os.stat_result, now: float, at: float) -> Cut | None:
        """The path still names this file: read what is new. Gives the proof if it was cut."""
        content = self.content
        assert content is not None
        changed = stamp(seen) != self.read_stamp
        if not changed and self._at_rest():
            self._remember_stamp(seen, at)
            return None
        block = None
        if (file := self.file) is not None:
            block = self.read(file, seen, now, at)
        if block is None or block.changed:
            cut = self._reopen(now, held=block is not None)
            if cut is not None or self.suspected_at is not None:
                return cut
            assert self.file is not None
            block = self.read(self.file, seen, now, at)
        if block.changed:
            self.soon = True
            return None
        if changed and self.read_stamp is not None and not block.data:
            self._changed(seen, now, at)
        self._remember_stamp(seen, at)
        return None

    def read(self, file: OpenFile, status: os.stat_result, now: float, at: float, *, is_last: bool = True) -> Block:
        """The next bytes, from whichever file; tell what came. With its last file a source has caught up."""
        content, settings = self.content, self.context.settings
        assert content is not None
        if content.mark is not None:
            proved = verify(file, content.mark)
            if proved.problem:
                return Block(content.offset, b"", True, changed=True)
            content.unfold(proved.head, proved.tail)
        waited = content.hole_since is not None and now - content.hole_since >= settings.hole_seconds
        wait_for_holes = not waited and settings.hole_seconds > 0 and not self.context.is_local(content.device)
        expected = status.st_size - content.offset + settings.least_read
        count = min(settings.read_bytes, max(settings.least_read, expected))
        block = read_block(file, content, count, wait_for_holes=wait_for_holes)
        if block.changed:
            return block
        content.compared_at = now
        content.hole_since = (content.hole_since if content.hole_since is not None else now) if block.hole else None
        self.soon = self.soon or block.hole
        self.more = not block.at_end
        if block.data:
            self._deliver(content, block, status, now, at)
        if block.at_end and not block.hole and not self.caught_up and is_last:
            self.caught_up = True
            self.context.tell(CaughtUp(self.source, at))
        return block

    def _deliver(self, content: Content, block: Block, status: os.stat_result, now: float, at: float) -> None:
        """What was read, and before its first bytes that it was opened."""
        if not self.announced:
            self.announced = True
            self.context.tell(self._opened(content, status))
        content.take(block.offset, block.data)
        if self.caught_up or at - status.st_mtime < _FRESH_SECONDS:  # to read an old log is no sign of life in it
            self._changed(status, now, at)
        behind = max(0, status.st_size - content.offset)
        self.context.tell(Data(self.source, block.offset, block.data, status.st_mtime, at, behind))

    def confirmed(self, device: int, now: float) -> bool:
        """Is what looks like a truncation proved by now? On a network mount the first look is not believed."""
        if self.context.is_local(device):
            return True
        if self.suspected_at is None:
            self.suspected_at = now
        self.soon = True
        return now - self.suspected_at >= self.context.settings.confirm_seconds

    def _reopen(self, now: float, *, held: bool) -> Cut | None:
        """A fresh open: only that can prove that the bytes before the offset are not what was read, or are missing.

        None with `suspected_at` set: it seems so, but is not proved yet.
        """
        content = self.content
        assert content is not None
        file = self.context.open_as(self.path, content.identity)
        problem = verify(file, content.fingerprint()).problem
        if problem and not self.confirmed(content.device, now):
            return None
        self.put(file)
        self.suspected_at = None
        # without a problem attributes or pages of this client were old, or the file had been given up
        return Cut(problem, held) if problem else None

    def _remember_stamp(self, seen: os.stat_result, at: float) -> None:
        self.read_stamp = None if self.more else stamp(seen)
        self.rest_stamp = self.read_stamp if self._at_rest() else None
        old = self.rest_stamp is not None and at - seen.st_mtime > self.context.settings.old_seconds
        if old and self.content is not None and self.content.mark is None:
            self.content.fold()

    def _at_rest(self) -> bool:
        """Nothing more can have happened to the file that its size and times do not show."""
        content = self.content
        return (
            content is not None
            and content.compared_at >= self.backoff.recheck_until
            and self.suspected_at is None
            and content.hole_since is None
        )

    def _changed(self, status: os.stat_result, now: float, at: float) -> None:
        recheck = self.context.settings.recheck_seconds
        if status.st_mtime % 1.0 and self.context.is_local(status.st_dev):  # whole seconds: the stamps are no finer
            stamp_ticks_until = max(status.st_mtime, status.st_ctime) + self.context.settings.recheck_local
            recheck = min(max(0.0, stamp_ticks_until - at), recheck)
        self.backoff.changed(now, recheck_seconds=recheck, grown=self.caught_up)

    def _opened(
        self, content: Content, status: os.stat_result, position: Position | None = None, proof: str = ""
    ) -> Opened:
        return Opened(
            self.source, self.path, position, status.st_size, status.st_mtime, position is not None,
            content.offset, content.device, content.inode, content.head, content.tail, proof,
            status.st_uid, self.context.mount,
        )  # fmt: skip
