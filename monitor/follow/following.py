"""What a source does with one content: read on, drain, leave, begin another. The decisions are in `source`."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from typing import TypeAlias

from monitor.follow.context import Context
from monitor.follow.identity import Content
from monitor.follow.messages import CaughtUp, Data, Gone, Message, Position, Restarted, RestartReason, source_id
from monitor.follow.opening import Begun, opened
from monitor.follow.pacing import Pacing
from monitor.follow.reading import Taken, take

_TRIES_AT_OLD = 5  # failed reads of a rotated file before its rest is given up: the new one must not wait for ever
Told: TypeAlias = Generator[Message, None, None]
_FRESH_SECONDS = 60.0  # of age by its time stamp: a file that was written so lately may be written again any moment


class Following:
    """The state of one path. Times: `now` is monotonic, `at` Unix seconds."""

    def __init__(self, path: str, context: Context, resume: Position | None) -> None:
        self.path = path
        self.source = source_id(path)
        self.directory = os.path.dirname(path)
        self.more = False
        """There is more to read at once."""
        self.gone_since: float | None = None
        self._context = context
        self._settings = context.settings
        self._resume = resume
        self._content: Content | None = None
        self._announced = False
        self._caught_up = False
        self._failures = 0
        self._pacing = Pacing(context.settings, context.phase())
        self._stamp: tuple[int, int, int] | None = None
        self._home: int | None = None
        self._soon = False
        self._suspected_at: float | None = None
        self._moved_at: float | None = None
        self._lent_since: float | None = None
        self._hole_since: float | None = None
        self._scanned = 0
        self._compared_at = float("-inf")

    def _start(self, begun: Begun, proof: str) -> Told:
        """The first content under this path."""
        assert begun.content is not None
        assert begun.status is not None
        self._context.descriptors.put(self, begun.descriptor)
        self._content, self._resume, self._suspected_at, self.gone_since = begun.content, None, None, None
        self._announced, self._caught_up = not begun.quiet, begun.quiet
        self._context.registry.settle(self.source)
        if self._announced:
            yield opened(self.source, self.path, begun.content, begun.status, begun.position, proof)

    def _take(self, descriptor: int, status: os.stat_result, now: float, at: float) -> Generator[Message, None, Taken]:
        """Read on; tell what came."""
        content = self._content
        assert content is not None
        waited = self._hole_since is not None and now - self._hole_since >= self._settings.hole_patience
        patient = not waited and self._settings.hole_patience > 0 and not self._context.is_local(content.device)
        expected = status.st_size - content.offset + self._settings.least_read
        taken = take(
            self._context.os_layer,
            descriptor,
            content,
            min(self._settings.read_bytes, max(self._settings.least_read, expected)),
            patient=patient,
            scanned=self._scanned,
        )
        if taken.changed:
            return taken
        self._compared_at = now
        self._scanned = taken.scanned
        self._hole_since = (self._hole_since if self._hole_since is not None else now) if taken.hole else None
        self._soon = self._soon or taken.hole
        self.more = not taken.at_end
        if taken.data:
            if not self._announced:
                self._announced = True
                yield opened(self.source, self.path, content, status, None)
            content.take(taken.offset, taken.data)
            if self._caught_up or at - status.st_mtime < _FRESH_SECONDS:  # to read an old log is no sign of life in it
                self._changed(status, now, at)
            behind = max(0, status.st_size - content.offset)
            yield Data(self.source, taken.offset, taken.data, status.st_mtime, at, behind)
        if taken.at_end and not taken.hole and not self._caught_up:
            self._caught_up = True
            yield CaughtUp(self.source, at)
        return taken

    def _changed(self, status: os.stat_result, now: float, at: float) -> None:
        settle = self._settings.settle_seconds
        if status.st_mtime % 1.0 and self._context.is_local(status.st_dev):  # whole seconds: the stamps are no finer
            local = self._settings.settle_local
            settle = min(max(0.0, max(status.st_mtime, status.st_ctime) + local - at), settle)
        self._pacing.changed(now, settle_seconds=settle, grown=self._caught_up)

    def _drain(self, now: float, at: float) -> Generator[Message, None, int | None]:
        """Read the old file on. Gives the names it still has, or None if it cannot be had (any more)."""
        content = self._content
        if content is None:
            return None
        descriptor = self._context.descriptors.get(self)
        try:
            if descriptor is None:
                found = self._context.find_renamed(self.path, content.former())
                if found is None:
                    return None
                descriptor = found[0]
                self._context.descriptors.put(self, descriptor)
            status = self._context.os_layer.fstat(descriptor)
            taken = yield from self._take(descriptor, status, now, at)
        except OSError as error:
            if error.errno != errno.ESTALE and self._failures < _TRIES_AT_OLD:
                raise
            self._context.count_error(error)
            self._context.descriptors.close(self)
            return None
        if taken.changed:  # cut after it was renamed: what is left of it is no longer what was read
            self._context.descriptors.close(self)
            return None
        return status.st_nlink

    def _turn(self, reason: RestartReason, proof: str, content: Content, at: float, *, links: int | None) -> Told:
        """The source goes on with other content. `links`: names of the old file, which was read to its end."""
        old = self._content
        assert old is not None
        left = old.former() if links else None
        if content.identity != old.identity:
            self._context.registry.release(old.identity, self.source)
        if left is not None:
            self._context.registry.remember(left)
        self._content = content
        self._caught_up = quiet = content.offset > 0
        self._stamp = self._home = self._moved_at = self._hole_since = None
        self._scanned = 0
        self.more = True
        if self._announced and not quiet:
            yield Restarted(self.source, reason, proof, *content.identity, former=left, at=at)
        elif self._announced:  # another name delivered what stands here now: nothing of this source's own
            self._announced = False
            yield Gone(self.source, at)

    def _end(self, now: float, at: float, links: int | None) -> Told:
        """The path is gone, and what it held has been read. A file with no name left cannot come back."""
        self._context.descriptors.close(self)
        self._context.registry.settle(self.source)
        if self._content is not None:
            self._context.registry.release(self._content.identity, self.source)
            if links != 0:
                self._context.registry.remember(self._content.former())
        self.gone_since = now
        if self._announced or self._resume is not None:
            yield Gone(self.source, at)
        self._moved_at = self._stamp = None

    def _confirmed(self, device: int, now: float) -> bool:
        """Is what looks like a truncation proved by now? On a network mount the first look is not believed."""
        if self._context.is_local(device):
            return True
        if self._suspected_at is None:
            self._suspected_at = now
        self._soon = True
        return now - self._suspected_at >= self._settings.confirm_seconds

    def _links(self) -> int | None:
        """Names that the open file still has: 0 proves that it was deleted. None if it is not open or will not say."""
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
