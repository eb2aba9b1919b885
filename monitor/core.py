"""The core: messages of the follower in, transitions and snapshots out. Time is an argument; nothing here waits.

The daemon, `run --once` and the tests drive the same object. It owns every RunState; nobody else sees one.
"""

from __future__ import annotations

import copy
import logging
import platform
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from monitor import __version__
from monitor.config import Config, run_name
from monitor.detectors import hang
from monitor.detectors.hang import HangSettings
from monitor.follow.marker import Marker
from monitor.follow.messages import (
    CaughtUp,
    Data,
    Gone,
    Message,
    Opened,
    Position,
    Readable,
    Restarted,
    Scanned,
    Unreadable,
)
from monitor.incidents import Transition
from monitor.judgement import Judge
from monitor.known import Run, Saved, SavedRun, SavedSource, Source, forgotten
from monitor.metrics import MonitorCounts, RunSnapshot, Snapshot
from monitor.run import derived
from monitor.run.history import History
from monitor.run.jump import shift
from monitor.run.log_clock import log_clock
from monitor.run.phases import ENDED
from monitor.run.state import RunState
from monitor.run.units import LONGEST_SECONDS
from monitor.shown import count_sources, show
from parsers.engine.scan import Rule
from parsers.events import (
    FailureSeen,
    IterationLogged,
    LineDiscarded,
    LogEvent,
    Malformed,
    ProcessExited,
    ProcessTerminated,
    TracebackSeen,
    WatchdogTimedOut,
)
from parsers.reader import SourceReader

_log = logging.getLogger(__name__)


_SURROUNDING = (FailureSeen, TracebackSeen, ProcessExited, ProcessTerminated, WatchdogTimedOut)
_JUDGE_INTERVAL = 1.0  # seconds between two judgements of a run that nothing came for: budgets are of 60 s and more
_CALM_INTERVAL = 15.0  # the same while no detector has asked for more and no deadline is near: nothing should change
_SETTLED = 1.0  # seconds without backlog after which all files of a run are believed to be read
_FORGET_SAVED = 30 * 86400.0  # a source that could not be seen for a month: its mount is not coming back


class Core:
    """Everything the daemon knows. Methods are called by one thread."""

    def __init__(
        self, config: Config, rules: Sequence[Rule] = (), judge: Judge | None = None, *, past: bool = True
    ) -> None:
        """`past`: whether what the charts draw is kept."""
        self.config = config
        self.rules = tuple(rules)
        self._hang: HangSettings = config.detectors.hang
        self._judge = judge or Judge(config)
        self._past = past
        self._told: list[Transition] = []
        self.runs: dict[str, Run] = {}
        self.sources: dict[str, Source] = {}
        self.counts = MonitorCounts()
        self.counts.set("build_info", 1.0, __version__, platform.python_version())
        self.changed = False
        """Something worth saving happened since the flag was last cleared."""
        self._unclaimed = Saved()
        self.fleeting = False
        """Something happened that the logs may not tell again: what is known is to be saved soon."""
        self._stirred: dict[str, bool] = {}  # runs that are to be judged at the next tick, in the order of their lines
        self._swept_at = float("-inf")  # when all runs were last looked at, for what time alone changes
        self._reading: Counter[str] = Counter()  # run -> its sources that have not been read to their end
        self._events: Counter[str] = Counter()  # by kind, since the counts were last brought up to date
        self._bytes = 0  # the same
        self._read_at: float | None = None
        self._touched: dict[str, Source] = {}  # the same: what was read from
        self._sources_of: dict[str, set[str]] = {}
        self.scanned: set[str] = set()
        """Mounts that were searched to the end at least once."""

    # --- messages ---------------------------------------------------------------------------------------------------

    def handle(self, message: Message, now: float) -> None:
        """Take one message of the follower."""
        self._HANDLERS[type(message)](self, message, now)
        if not isinstance(message, Scanned) or message.forgotten:  # counts of a walk are no reason to save
            self.changed = True

    def _opened(self, message: Opened, _now: float) -> None:
        reader, marker = SourceReader(self.rules), Marker()
        name = run_name(message.path, message.path, self.config.runs)
        saved = self._unclaimed.sources.pop(message.source, None)
        if saved is not None:  # another file under the same path goes on with the same run, as it would live
            self._claim(saved.run, name)
        if message.resumed and saved is not None:
            reader.restore(saved.reader)
        elif message.offset:  # what stands before was delivered under another name
            reader.skip(message.offset)
        marker.feed(message)
        self._let_go(message.source)
        self._reading[name] += 1
        self._sources_of.setdefault(name, set()).add(message.source)
        self.sources[message.source] = Source(
            name=message.source,
            path=message.path,
            run=name,
            reader=reader,
            marker=marker,
            mtime=message.mtime,
            counted=(reader.lines, reader.matched_lines),
        )

    def _let_go(self, name: str) -> None:
        """Nothing is known of this source any more."""
        source = self.sources.pop(name, None)
        if source is not None:
            self._count_lines(source)
            self._finish(source)
            self._sources_of[source.run].discard(name)
            if not self._sources_of[source.run]:
                del self._sources_of[source.run], self._reading[source.run]

    def _finish(self, source: Source) -> None:
        if not source.caught_up:
            source.caught_up = True
            self._reading[source.run] -= 1

    def _claim(self, saved_name: str, name: str) -> None:
        """A source of a saved run goes on: so does the run, under its present name."""
        saved = self._unclaimed.runs.pop(saved_name, None)
        if saved is not None and name not in self.runs:
            saved.state.name = name
            self.runs[name] = Run(saved.state, saved.book, saved.history)

    def _data(self, message: Data, now: float) -> None:
        source = self.sources.get(message.source)
        if source is None:
            return
        reader, data = source.reader, message.data
        gap = message.offset - reader.fed_bytes
        if gap > 0:
            reader.skip(gap)
        source.marker.feed(message)
        entries = reader.feed(data)
        source.behind_bytes, source.mtime = message.behind_bytes, message.mtime
        self._bytes += len(data)
        self._read_at = at = message.at
        # Stamped by another thread: a clock that was set back in between must not put progress into the future.
        if at > now:
            at = now
        if not source.caught_up and message.mtime < at:
            at = message.mtime
        self._fold_all(source, entries, at, now)

    def _restarted(self, message: Restarted, now: float) -> None:
        source = self.sources.get(message.source)
        if source is None:
            return
        if message.reason != "truncated":  # what a rotated file ended with was its last line
            self._fold_all(source, source.reader.flush(), source.mtime, now)
        self._count_lines(source)
        self.counts.add("truncations_total" if message.reason == "truncated" else "rotations_total")
        source.marker.feed(message)
        source.reader = SourceReader(self.rules)
        source.counted = (0, 0)
        self.fleeting = True
        _log.info("source=%s restarted reason=%s proof=%s", source.path, message.reason, message.proof)

    def _caught_up(self, message: CaughtUp, now: float) -> None:
        source = self.sources.get(message.source)
        if source is None or source.caught_up:
            return
        self._finish(source)
        run = self.runs.get(source.run)
        if run is None or not run.state.proven:
            if not source.told_untrained and source.reader.fed_bytes:
                source.told_untrained = True
                _log.info("source=%s no training line in %d lines", source.path, source.reader.lines)
            return
        if self._catching_up(source.run):
            return
        self._stir(run)
        self._weigh_history(run, now)

    def _weigh_history(self, run: Run, now: float) -> None:
        """A log that was dead when first seen is history; one that may still move is watched from now on."""
        if not run.state.live and run.state.progress_at is not None:
            allowed = hang.budget(run.state, self._hang).seconds
            run.history = now - run.state.progress_at > allowed or run.state.phase in ENDED
            run.state.live = not run.history

    def _unreadable(self, message: Unreadable, now: float) -> None:
        source = self.sources.get(message.source)
        name = source.run if source else run_name(message.source, message.source, self.config.runs)
        run = self._run(name, now)
        if run is not None:
            run.state.unreadable[message.source] = message.message
            run.state.proven = True
            self._stir(run)
        if source is not None:
            self._finish(source)  # what cannot be read holds nobody up
        if run is not None:
            self._weigh_loss(run, name)
        _log.warning("source=%s unreadable: %s", message.source, message.message)

    def _readable(self, message: Readable, _now: float) -> None:
        source = self.sources.get(message.source)
        name = source.run if source else run_name(message.source, message.source, self.config.runs)
        run = self.runs.get(name)
        if run is not None:
            run.state.unreadable.pop(message.source, None)
            self._stir(run)
            self._weigh_loss(run, name)

    def _gone(self, message: Gone, now: float) -> None:
        source = self.sources.get(message.source)
        run = self.runs.get(source.run) if source else None
        if source is None or run is None:
            return
        self._fold_all(source, source.reader.flush(), source.mtime, now)
        if run.state.live and run.state.phase not in ENDED:
            run.state.unreadable[message.source] = "the file was deleted"
            self._weigh_loss(run, source.run)
        self._stir(run)
        self.fleeting = True
        self._count_lines(source)
        source.reader = SourceReader(self.rules)
        source.counted = (0, 0)

    def _scanned(self, message: Scanned, _now: float) -> None:
        self.scanned.add(message.mount)
        for name in message.forgotten:
            self._let_go(name)
        self.counts.add("stat_calls_total", by=message.stats)
        for name, count in message.errors.items():
            self.counts.add("io_errors_total", name, by=count)

    _HANDLERS: ClassVar[dict[type, Callable[[Core, Any, float], None]]] = {
        Opened: _opened,
        Data: _data,
        Restarted: _restarted,
        CaughtUp: _caught_up,
        Unreadable: _unreadable,
        Readable: _readable,
        Gone: _gone,
        Scanned: _scanned,
    }

    # --- judgement --------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Transition]:
        """Judge every run that something came for, and once a second look which of the others time alone may change."""
        sweep = not 0.0 <= now - self._swept_at < _JUDGE_INTERVAL
        names = list(self.runs) if sweep else list(self._stirred)
        if sweep:
            self._swept_at = now
        for name in names:
            if self._catching_up(name):
                continue
            stirred = self._stirred.pop(name, False)
            run = self.runs.get(name)
            if run is None:
                continue
            if run.deferred and now - run.backlog_at >= _SETTLED:
                self._fold_deferred(run)
                self._weigh_history(run, now)
            if run.state.proven and (stirred or self._due(run, now)):
                self._judge_run(run, now)
        told, self._told = self._told, []
        return told

    def _due(self, run: Run, now: float) -> bool:
        """Is it time to judge a run that nothing came for?"""
        idle = now - run.judged_at
        return not 0.0 <= idle < _JUDGE_INTERVAL and (not 0.0 <= idle < _CALM_INTERVAL or not self._calm(run, now))

    def _calm(self, run: Run, now: float) -> bool:
        """It trains, nothing is open, and time alone changes nothing yet: what a replay does not judge at all."""
        state, book = run.state, run.book
        settled = state.live and state.phase != "exiting" and now < self._judge.calm_until(run)
        return not book.open and not book.pending and (settled or run.history)

    def _judge_run(self, run: Run, now: float) -> None:
        run.judged_at = now
        before = run.state.hung, run.state.phase
        transitions = self._judge.judge(run, now)
        if transitions or before != (run.state.hung, run.state.phase):
            run.dirty = self.changed = True
        run.dirty = run.dirty or derived.run_state(run.state, run.history) != run.shown_state
        self._told.extend(transitions)
        if self._expired(run, now):
            del self.runs[run.state.name]
            self.changed = True

    def _stir(self, run: Run) -> None:
        """Something came for it: it is to be judged and shown anew."""
        run.dirty = True
        self._stirred[run.state.name] = True

    def _expired(self, run: Run, now: float) -> bool:
        if run.history and run.book.open:
            return False
        over = run.history or run.state.phase in ENDED
        return over and now - run.state.read_at > self.config.run_retention

    # --- what is shown ----------------------------------------------------------------------------------------------

    def snapshot(self, now: float, *, pages: bool = True) -> Snapshot:
        """What HTTP may show until the next one; without `pages` those in it may be older than its samples."""
        shown: list[RunSnapshot] = []
        for name in sorted(self.runs):
            run = self.runs[name]
            if not run.state.proven or (run.shown is None and self._catching_up(name)):
                continue
            shown.append(show(run, now, self._hang, self.config.gpu_peak_tflops, pages=pages))
        count_sources(self.counted(), self.sources, self.runs.values(), self.rules)
        self.counts.set("runs", len(shown))
        return Snapshot(
            at=now,
            runs=tuple(shown),
            monitor=self.counts.frozen(),
            incidents=tuple(incident for run in shown for incident in run.page["incidents"]),
            ready=self.ready,
            loop_turned_at=now,
        )

    @property
    def ready(self) -> bool:
        """Is every source read to its end?"""
        return not any(self._reading.values())

    # --- folding ----------------------------------------------------------------------------------------------------

    def _fold_all(self, source: Source, entries: Sequence[LogEvent], at: float, now: float) -> None:
        self._touched[source.name] = source
        if not entries:
            return
        run = self.runs.get(source.run) or self._run(source.run, now)
        if run is None:
            return
        state = run.state
        if source.name not in state.sources:
            state.sources.append(source.name)
        events, only_steps = self._events, True
        for entry in entries:
            event = entry.event
            events[event.kind] += 1
            if type(event) is not IterationLogged:
                only_steps = False
                if isinstance(event, Malformed):
                    self.counts.add("malformed_lines_total", event.rule)
                elif isinstance(event, LineDiscarded):
                    self.counts.add("lines_total", "too_long")
                elif not source.drives and not source.caught_up and isinstance(event, _SURROUNDING):
                    run.deferred.append((entry, source.name, at))
                    continue
            source.drives = source.drives or event.proves_training
            before = state.progress_at
            told = self._judge.take(run, entry, source.name, at, source.caught_up)
            if told:
                self._told.extend(told)
            if run.history and source.caught_up and state.progress_at != before:
                run.history = False  # it moves: no history any more
        if not source.caught_up:
            run.backlog_at = now
        state.read_at = now
        run.dirty = True
        open_or_new = run.book.open or run.book.pending or not run.judged_at
        if open_or_new or not source.caught_up or not only_steps:
            self._stir(run)  # else it is calm: a detector that is moved by an iteration has judged at once

    def _fold_deferred(self, run: Run) -> None:
        """What surrounds the loop, after the loop: unless it is older than the loop's last line."""
        last = run.state.log_clock_last
        for entry, source, at in run.deferred:
            logged = log_clock(entry.event.logged_at)
            if last is None or logged is None or logged >= last:
                self._judge.take(run, entry, source, at, False)
        run.deferred.clear()
        self._stir(run)

    def counted(self) -> MonitorCounts:
        """The counts, brought up to date: of each line only what costs next to nothing is noted."""
        for source in self._touched.values():
            self._count_lines(source)
        self._touched.clear()
        for kind, count in self._events.items():
            self.counts.add("events_total", kind, by=count)
        self._events.clear()
        if self._read_at is not None:
            self.counts.add("bytes_total", by=self._bytes)
            self.counts.set("last_read_timestamp_seconds", self._read_at)
            self._bytes, self._read_at = 0, None
        return self.counts

    def _count_lines(self, source: Source) -> None:
        lines, matched = source.reader.lines, source.reader.matched_lines
        known_lines, known_matched = source.counted
        source.counted = (lines, matched)
        self.counts.add("lines_total", "matched", by=matched - known_matched)
        self.counts.add("lines_total", "other", by=(lines - known_lines) - (matched - known_matched))

    def _run(self, name: str, now: float) -> Run | None:
        """The run of that name, new or saved; None if there are too many that live."""
        run = self.runs.get(name)
        if run is None:
            if len(self.runs) >= self.config.max_runs and not self._make_room():
                self.counts.add("runs_dropped_total", "refused")
                return None
            self._claim(name, name)  # saved, and a file of it came first that was not there then
            run = self.runs.setdefault(name, Run(RunState(name=name, read_at=now, history=History(kept=self._past))))
        return run

    def _make_room(self) -> bool:
        """Drop the run that has been dead for longest; False if all of them live."""
        dead = [
            (run.state.progress_at or 0.0, name)
            for name, run in self.runs.items()
            if not run.book.open and not self._catching_up(name) and (not run.state.live or run.state.phase in ENDED)
        ]
        if not dead:
            return False
        del self.runs[min(dead)[1]]
        self.counts.add("runs_dropped_total", "dead")
        return True

    def _catching_up(self, name: str) -> bool:
        return self._reading[name] > 0

    def _weigh_loss(self, run: Run, name: str) -> None:
        followed = self._sources_of.get(name, set()) | set(run.state.unreadable)
        run.state.lost = bool(followed) and followed <= set(run.state.unreadable)

    # --- state over a restart ---------------------------------------------------------------------------------------

    def flush(self, now: float) -> None:
        """No more will come: what the sources end with counts."""
        for source in self.sources.values():
            self._fold_all(source, source.reader.flush(), source.mtime, now)
        for run in self.runs.values():
            self._fold_deferred(run)
            self._weigh_history(run, now)

    def clock_jumped(self, seconds: float) -> None:
        """The wall clock was set: what is known moves along, so that no silence grows or shrinks by it."""
        for run in self.runs.values():
            shift(run.state, seconds)
            shift(run.book, seconds)
            run.backlog_at += seconds
            self.changed = True
            self._stir(run)

    def reconfigure(self, config: Config, rules: Sequence[Rule], now: float) -> dict[str, Position]:
        """Begin anew with another configuration and everything that is known; gives the positions to prove."""
        saved = self.save(now)
        self.config, self.rules, self._hang = config, tuple(rules), config.detectors.hang
        self._judge = Judge(config)
        self.sources, self.runs, self.scanned = {}, {}, set()
        self._stirred.clear()
        self._reading.clear()
        self._sources_of.clear()
        self._unclaimed = Saved(saved.sources, saved.runs)
        self.changed = True
        return {name: source.position for name, source in saved.sources.items()}

    def save(self, now: float) -> Saved:
        """Everything a restart needs: aggregates and offsets as they belong together."""
        counts = self.counted().values
        sources = {
            name: source for name, source in self._unclaimed.sources.items() if now - source.saved_at < _FORGET_SAVED
        }
        runs = {name: run for name, run in self._unclaimed.runs.items() if any(s.run == name for s in sources.values())}
        for name, source in self.sources.items():
            reader = source.reader.save()
            sources[name] = SavedSource(source.run, source.marker.position(reader["offset"]), reader, now)
        for name, run in self.runs.items():
            if not run.state.proven:
                continue
            state = run.state
            state.history.flush()
            if run.deferred:  # their lines lie before the saved offsets: they count now or never
                state = copy.deepcopy(state)
                self._fold_deferred(Run(state, copy.deepcopy(run.book), run.history, deferred=list(run.deferred)))
            runs[name] = SavedRun(state, run.book, run.history)
        return Saved(sources, runs, {name: list(series.items()) for name, series in counts.items()})

    def restore(self, saved: Saved) -> dict[str, Position]:
        """Take what was saved; each source and its run are claimed when the follower proves the position.

        Gives the positions to prove.
        """
        self._unclaimed = saved
        if self.config.run_retention >= LONGEST_SECONDS:  # read again what an earlier daemon forgot
            for name in [name for name, source in saved.sources.items() if forgotten(source, saved)]:
                del saved.sources[name]
        for name, series in saved.counts.items():
            if name.endswith("_total"):
                self.counts.values.setdefault(name, {}).update({tuple(labels): value for labels, value in series})
        return {name: source.position for name, source in saved.sources.items()}
