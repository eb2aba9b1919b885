"""Passes each message of the follower to its source. `handle` confines a failure to this source (quarantine.py)."""

import logging
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from megatron_monitor.core.attribution import Attribution
from megatron_monitor.core.folding import Folding
from megatron_monitor.core.observing import Observing
from megatron_monitor.core.ordered import HOLD, Ordered, share_memory
from megatron_monitor.core.runs import Run
from megatron_monitor.core.saved import SavedSource
from megatron_monitor.core.sources import Source
from megatron_monitor.core.watched import Watched
from megatron_monitor.follow.messages import (
    CaughtUp,
    Data,
    Gone,
    Lines,
    Message,
    Opened,
    Readable,
    Restarted,
    Scanned,
    UnobservedTime,
    Unreadable,
)
from megatron_monitor.identity import StreamIdentity
from megatron_monitor.run.log_clock import log_clock
from megatron_monitor.run.phases import ENDED

_NAMED = 100  # files without a training line that are named in the log
_AHEAD = 86400.0  # seconds: a file server's clock is never so far ahead
_TOGETHER = 0.5  # seconds between lines that count as written at once: agents poll files
_DELAYED = 10.0  # seconds from a line's stamp to its arrival that count as a delay; agents usually need half of that
_log = logging.getLogger(__name__)


class MessageHandler:
    """Handles messages, and records unreadable files and searched mounts."""

    def __init__(self, watched: Watched, folding: Folding, attribution: Attribution) -> None:
        self._watched = watched
        self._attribution = attribution
        self._folding = folding
        self.unreadable: dict[str, str] = {}
        """Unreadable source -> the system's error message."""
        self.scanned: set[str] = set()
        """Mounts that were completely searched at least once."""
        self.observing = Observing(watched)
        self._untrained = 0  # files in which no training line was found
        self._holding: set[str] = set()  # pushed streams with waiting lines, or not settled

    def handle(self, message: Message, now: float) -> None:
        """Handle one message of the follower. An exception quarantines its source only."""
        try:
            match message:
                case Data() | Lines() | Restarted() | CaughtUp() | Gone():
                    self._of_source(message, now)
                case Opened():
                    self._opened(message, now)
                case Scanned():
                    self._scanned(message)
                case Unreadable() | Readable():
                    self._access(message, now)
                case UnobservedTime():
                    self.observing.unobserved(message, now)
        except Exception as error:  # noqa: BLE001 - the boundary of a source
            self._quarantine(getattr(message, "source", ""), error, now)

    def _of_source(self, message: Data | Lines | Restarted | CaughtUp | Gone, now: float) -> None:
        sources = self._watched.sources
        source = sources.get(message.source)
        if source is None and not isinstance(message, CaughtUp):  # a dormant source was already read to its end
            source = sources.awake(message.source)
        if source is None or (source.failed and not isinstance(message, Restarted | Gone)):
            if isinstance(message, Gone) and (saved := self._watched.saved.sources.get(message.source)):
                self._watched.awaited[saved.run] -= 1
                if (log := self._watched.logs.get(saved.run)) is not None and not log.unread:
                    for run in log.runs.values():
                        self._all_read(run, now, new=False)
            return
        if not isinstance(message, CaughtUp) or not source.resumed:  # a restart does not change the parts of old logs
            self._watched.touch(source.log.name)
        match message:
            case Data():
                self._data(source, message, now)
            case Lines():
                source.mtime, source.read_at, source.behind_bytes = now + self._watched.wall_offset, now, 1
                self._folding.take(source, message.entries, now, now)
            case Restarted():
                self._restarted(source, message, now)
            case CaughtUp() if source.ordered is not None and source.ordered.lines:
                source.ordered.settles_at = min(now, source.ordered.lines[-1][3]) + HOLD
            case CaughtUp():
                self._caught_up(source, now)
            case Gone():
                self._gone(source, now)

    def _quarantine(self, name: str, error: Exception, now: float) -> None:
        why, source = self._watched.quarantine.note("source", name, error), self._watched.sources.get(name)
        if source is None:
            return
        source.failed = why
        self._watched.touch(source.log.name)
        self._finish(source, now)
        self._folding.drop(name)
        self.observing.note(source.run, name, source.log, why, now)

    def _opened(self, message: Opened, now: float) -> None:
        saved = self._watched.saved.take_source(message.source)
        before = self._watched.sources.awake(message.source)
        # another file under the same path continues the same run, as in live operation
        known = saved if saved is not None or before is None else before.save(now)
        ordered = Ordered() if self._watched.config.is_pushed(message.path) else None
        member, name = self._attribution.member(message.path, known)
        if saved is not None:
            self._watched.awaited[saved.run] -= 1
            self._watched.runs.claim(self._watched.saved, saved.run, name)
            self._note_gap(name, saved.saved_at, lost=not message.resumed or ordered is not None)
        self._drop(message.source)
        if not message.resumed or saved is None or saved.run != name:
            self._watched.touch(name)
            self._watched.touch(name if saved is None else saved.run)
            self._watched.save_soon |= saved is not None and saved.run != name  # both at once
        if saved is not None and ordered is None and self._stays_dormant(message, saved, member, name, now):
            return
        opened = self._watched.sources.open(message, name, member, known, ordered)
        opened.new = opened.new or (saved is None and bool(self.scanned))
        if opened.resumed:
            opened.read_at = min(now, message.mtime - self._watched.wall_offset)
        if ordered is not None:
            self._holding.add(opened.name)
        self._attribution.opened(opened, now)
        self._folding.opened(opened, now)

    def _stays_dormant(self, message: Opened, saved: SavedSource, member: StreamIdentity, run: str, now: float) -> bool:
        """Make the source dormant if it is an old file, read to its end, without a training. Return True if it is."""
        is_read = message.resumed and message.offset >= message.size
        if message.content is None or not (is_read and member.reported_nothing and saved.reader.reported_nothing):
            return False
        place = replace(saved.position, device=message.content.device, inode=message.content.inode)
        dormant = replace(saved, run=run, member=member, position=place, mount=message.mount, owner=message.owner)
        return self._becomes_dormant(message.source, message.path, dormant, now)

    def _note_gap(self, name: str, since: float, *, lost: bool) -> None:
        """Note that the time since `since` was not observed. `lost`: lines may be missing or not sent yet."""
        log = self._watched.logs.get(name)
        for run in [one for one in log.runs.values() if one.state.live] if log is not None else ():
            run.away, coverage, stopped = True, run.state.coverage, max(since, run.state.progress_at or since)
            coverage.until = stopped if coverage.until is None else min(coverage.until, stopped)
            if lost:
                coverage.unconfirmed = run.dated = None
            self._watched.touch(name)

    def _drop(self, name: str) -> None:
        source = self._watched.sources.awake(name)
        if source is not None:
            self._watched.touch(source.log.name)
            source.count_lines(self._watched.counts)
            self._attribution.dropped(source)
            self._watched.sources.drop(source)
            self._folding.drop(name)

    def _data(self, source: Source, message: Data, now: float) -> None:
        at = min(message.at - self._watched.wall_offset, now)
        source.tail.add(message.data, self._watched.sources.tail_bytes)
        entries = source.feed(message, at)
        self._watched.read_bytes += len(message.data)
        self._watched.last_read = message.at
        if source.ordered is not None:
            self._holding.add(source.name)
            self._release(source, now)
            return
        # Another thread stamped the message by the wall clock. A clock that was set since then must date progress
        # neither in the future nor before the last read. Remaining risk: this read is dated too early by that much.
        if source.caught_up:
            at = source.read_at = max(at, source.read_at)
        else:
            ahead = message.mtime - message.at > _AHEAD  # a wrong clock: the file counts as old until it grows
            at = min(at, (message.at - _AHEAD if ahead else message.mtime) - self._watched.wall_offset)
            source.read_at = at  # when its lines were written
        self._folding.take(source, entries, at, now)

    def settle(self, now: float) -> None:
        """Process lines of pushed streams that have waited long enough for earlier lines."""
        holding = [source for name in self._holding if (source := self._watched.sources.get(name)) is not None]
        share_memory([source.ordered for source in holding if source.ordered is not None])
        for name in list(self._holding):
            source = self._watched.sources.get(name)
            if source is None or source.failed or source.ordered is None:
                self._holding.discard(name)
                continue
            try:
                self._release(source, now)
                if source.ordered.settles_at is not None and now >= source.ordered.settles_at:
                    source.ordered.settles_at = None
                    self._caught_up(source, now)
            except Exception as error:  # noqa: BLE001 - the boundary of a source
                self._quarantine(name, error, now)
            if not source.ordered.lines and source.ordered.settles_at is None:
                self._holding.discard(name)

    def _release(self, source: Source, now: float, *, everything: bool = False) -> None:
        """Process the waiting lines of a pushed stream that are due (`everything`: all), dated by their sender.

        If progress arrives late, the time until its arrival counts as unobserved, not as silence.
        """
        assert source.ordered is not None
        shift, until = self.observing.shift_of(source), float("inf") if everything else now
        due, late = source.ordered.due(until, shift, live=source.caught_up)
        source.reader.skip(late)
        if source.run is not None:  # no series for a run of a name that a sender made up
            for name, many in (("late", source.ordered.late), ("duplicate", source.ordered.again)):
                if many:
                    self._watched.counts.add(f"{name}_lines_total", source.log.name, by=many)
            source.ordered.late = source.ordered.again = 0
        if not due:
            return
        attempt, steps, progress = None, (0, 0), None
        if (before := source.run) is not None:
            attempt, steps, progress = before.state.attempt, _counted(before), before.state.progress_at
        for data, at in self._dated(source, due, now):
            self._folding.take(source, source.reader.feed(data), at, now)
        self._watched.touch(source.log.name)
        run = source.run
        if run is not None and run.state.attempt is attempt and steps[0]:
            self._note_missing(source, run, steps)
        moved_at = run.state.progress_at if run is not None else None
        moved = moved_at is not None and (run is not before or moved_at != progress)
        if run is not None and moved_at is not None and moved and source.caught_up and now - moved_at > _DELAYED:
            run.state.coverage.note_progress(moved_at, now)

    def _note_missing(self, source: Source, run: Run, before: tuple[int, int]) -> None:
        """Count the iterations that are missing since `before`, the result of `_counted`."""
        last, count = _counted(run)
        missing = last - before[0] - (count - before[1])
        if missing > 0:
            source.member.missing += missing
            self._attribution.jobs.changed(source.log)
            _log.warning("run=%s %d iterations before %d did not arrive", run.state.name, missing, last)

    def _dated(self, source: Source, due: Sequence[tuple[bytes, bytes]], now: float) -> Iterator[tuple[bytes, float]]:
        """Yield (lines written together, instant at which they were written)."""
        lines, began, at = list[bytes](), float("-inf"), source.read_at
        offset = self._watched.wall_offset - self.observing.behind_us(source)
        for stamp, line in due:
            written = log_clock(stamp[:-1].decode("ascii", "replace"))
            written = now if written is None else written - offset
            if lines and written - began > _TOGETHER:
                yield b"".join(lines), at
                lines.clear()
            if not lines:
                began = written
            lines.append(line)
            at = source.read_at = max(source.read_at, min(written, now))
        yield b"".join(lines), at

    def _flush(self, source: Source, now: float) -> None:
        """The source ends: its last line counts even without a line end."""
        if source.failed:
            return
        if source.ordered is not None:
            self._release(source, now, everything=True)
        self._folding.take(source, source.reader.flush(), source.mtime - self._watched.wall_offset, now)
        self._folding.decide(source, now, last=True)
        self._folding.release(source, now)

    def _restarted(self, source: Source, message: Restarted, now: float) -> None:
        if message.reason != "truncated":  # the unfinished end of a rotated file was its last line
            self._flush(source, now)
        source.count_lines(self._watched.counts)
        self._watched.counts.add("truncations_total" if message.reason == "truncated" else "rotations_total")
        if source.failed:
            self._watched.quarantine.forget("source", source.name)
            self.observing.note(source.run, source.name, source.log, None, now)
        source.restart(self._watched.rules, message)
        self._watched.save_soon = True
        _log.info("source=%s reason=%s proof=%s restarted", source.name, message.reason, message.proof)

    def _caught_up(self, source: Source, now: float) -> None:
        if source.caught_up:
            return
        self._folding.decide(source, now)
        self._folding.release(source, now)
        self._finish(source, now)
        run = source.log.current
        if run is not None and source.name in run.state.unreadable:  # an earlier process could not read it
            self.observing.note(run, source.name, source.log, None, now)
        if (run is None or not run.state.proven) and not source.resumed and source.reader.fed_bytes:
            self._note_untrained(source.name, source.reader.lines)
        nothing = source.reader.reported_nothing and source.member.reported_nothing and source.ordered is None
        if nothing and self._becomes_dormant(source.name, source.path, source.save(now), now):
            source.count_lines(self._watched.counts)
            self._watched.sources.drop(source)

    def _note_untrained(self, name: str, lines: int) -> None:
        self._untrained += 1
        if self._untrained <= _NAMED:
            _log.info("source=%s no training line in %d lines", name, lines)

    def _becomes_dormant(self, name: str, path: str, saved: SavedSource, now: float) -> bool:
        """Make the source dormant if it is old and the only file of its log. Return True if it is."""
        silent = now + self._watched.wall_offset - saved.position.written
        if silent < self._watched.dormant_seconds or name != path:
            return False
        log = self._watched.logs.get(saved.run)
        if (log is not None and log.runs) or self._watched.saved.of_log(saved.run).sources:
            return False
        return self._watched.sources.put_dormant(name, saved)

    def _access(self, message: Unreadable | Readable, now: float) -> None:
        """Note that a file cannot be read, or can be read again. It may never have been opened."""
        source = self._watched.sources.awake(message.source)
        saved = self._watched.saved.sources.get(message.source)
        if source is not None:
            log = source.log
        else:
            log = self._watched.logs.named(self._attribution.member(message.source, saved)[1])
        if isinstance(message, Unreadable) and not log.runs:  # a saved run; an unreadable file begins no run
            self._watched.runs.claim(self._watched.saved, log.name, log.name)
            self._watched.runs.archive_stale(log.runs.get(""), now)
        run = log.current if source is None else source.run
        self.observing.note(run, message.source, log, getattr(message, "message", None), now)
        self._watched.logs.leave(log)
        if isinstance(message, Readable):
            self.unreadable.pop(message.source, None)
        else:
            if source is not None:
                self._finish(source, now)  # the run does not wait for an unreadable file
            if message.source not in self.unreadable:
                _log.warning("source=%s unreadable: %s", message.source, message.message)
            self.unreadable[message.source] = message.message

    def _finish(self, source: Source, now: float) -> None:
        """The source was read to its end, or cannot be read: its run no longer waits for it."""
        if source.caught_up:
            return
        self._watched.sources.finish(source)
        run = source.log.current
        if run is not None and not source.log.unread:
            self._watched.request(run, save=False)  # changes are saved below
            self._all_read(run, now, new=source.new)

    def _all_read(self, run: Run, now: float, *, new: bool) -> None:
        """The known files of the run were read to their ends."""
        self._watched.archive_or_watch(run, now, new=new)
        self.observing.follow(run, now)

    def _gone(self, source: Source, now: float) -> None:
        self._flush(source, now)
        source.count_lines(self._watched.counts)
        source.restart(self._watched.rules)
        self._finish(source, now)
        run = source.run
        if run is None:
            return
        if run.state.live and run.state.attempt.phase not in ENDED:
            self.observing.note(run, source.name, source.log, "the file was deleted", now)
        self._watched.request(run)
        self._watched.save_soon = True

    def _scanned(self, message: Scanned) -> None:
        self.scanned.add(message.mount)
        for name in message.forgotten:
            source = self._watched.sources.awake(name)
            self._drop(name)
            self.unreadable.pop(name, None)
            if source is not None:
                self._watched.forget_expired(source.log)
        self._watched.counts.add("stat_calls_total", by=message.stats)
        for name, count in message.errors.items():
            self._watched.counts.add("io_errors_total", name, by=count)

    def flush(self, now: float) -> None:
        """All sources end."""
        for source in self._watched.sources.values():
            self._flush(source, now)
        for run in self._watched.runs.values():
            if run is run.log.current:
                self._folding.take_deferred(run, now)


def _counted(run: Run) -> tuple[int, int]:
    """Return (last iteration of the attempt or 0, number of counted iterations)."""
    return run.state.attempt.last_iteration or 0, run.state.attempt.iterations
