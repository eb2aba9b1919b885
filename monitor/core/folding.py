"""Adds the events of a source to the state of their run, or holds them until the run is known.

Two kinds of events wait. Set-up lines wait for the arguments, which show which experiment of the log they begin. Ends
and failures in a separate file wait until the file with the training loop is read.
"""

from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from megatron_monitor.core import run_streams
from megatron_monitor.core.attribution import Attribution
from megatron_monitor.core.run_streams import Due
from megatron_monitor.core.runs import Run, being_copied
from megatron_monitor.core.sources import Source
from megatron_monitor.core.watched import Watched
from megatron_monitor.parsers.events import (
    ArgumentsDumped,
    CollectiveStatus,
    FailureSeen,
    IterationLogged,
    LineDiscarded,
    LogEvent,
    Malformed,
    ProcessExited,
    ProcessTerminated,
    ThroughputReported,
    TimersReported,
    TracebackSeen,
    TrainerLogged,
    WatchdogTimedOut,
)
from megatron_monitor.run.attempts import counted_in
from megatron_monitor.run.experiments import BOUNDS, HELD_SECONDS, SETUP_EVENTS, begun
from megatron_monitor.run.fold import fold
from megatron_monitor.run.log_clock import log_clock
from megatron_monitor.run.phases import ENDED, SETUP
from megatron_monitor.run.restarts import precede
from megatron_monitor.run.steps.step import STEP_EVENTS

_BLOCK_ENDS = 5.0  # seconds without new bytes after which a block of lines counts as complete
_LONG_BEFORE = 600.0  # seconds by which a file must precede the loop's last line to count as older
_PROMPT = 1.0  # maximum delay in seconds for which the arrival of a line is its time
_UNTIMED = frozenset({IterationLogged, TrainerLogged})  # steps whose arrival is their time if the line has none
_OF_TRAINING = STEP_EVENTS | {TimersReported, ThroughputReported}
_BEHIND_AN_END = SETUP | STEP_EVENTS  # a file that goes on with these is not one of errors alone
_EVENT, _KIND = attrgetter("event"), attrgetter("event.kind")
_FAULTS = frozenset({Malformed.kind, LineDiscarded.kind})
_SURROUNDING = (FailureSeen, TracebackSeen, ProcessExited, ProcessTerminated, WatchdogTimedOut, CollectiveStatus)


class Folding:
    """The sources with held set-up lines, and since when."""

    def __init__(self, watched: Watched, attribution: Attribution) -> None:
        self._watched = watched
        self._attribution = attribution
        self._holding: dict[str, float] = {}  # source -> instant since which set-up lines are held
        self._held_back: set[str] = set()  # sources that end with a possibly complete block of lines

    def opened(self, source: Source, now: float) -> None:
        """Register what waits in a stream that is followed from now on, saved by an earlier process."""
        if source.reader.holds_back:
            self._held_back.add(source.name)
        if source.experiments.held:
            self._holding[source.name] = now

    def take(self, source: Source, entries: Sequence[LogEvent], at: float, now: float) -> None:
        """Take the events of one delivery. `at`: instant of writing, or of reading if they are live."""
        if entries:
            kinds = [*map(_KIND, entries)]
            self._watched.kinds.update(kinds)
            if not _FAULTS.isdisjoint(kinds):
                self._count_faults(entries)
            self._take_due(source, self._attribution.take(source, entries, kinds, at, now), now)
            if source.member.printed:
                self._attribution.folded(source)
        if source.reader.holds_back:  # it ends with a block of lines
            self._held_back.add(source.name)
        elif self._held_back:
            self._held_back.discard(source.name)

    def _count_faults(self, entries: Sequence[LogEvent]) -> None:
        for entry in entries:
            if isinstance(entry.event, Malformed):
                self._watched.counts.add("malformed_lines_total", entry.event.rule)
            elif isinstance(entry.event, LineDiscarded):
                self._watched.counts.add("lines_total", "too_long")

    def _take_due(self, source: Source, due: Due, now: float) -> None:
        run = source.run
        if run is not None and source.name not in run.state.sources and run_streams.replica_of(source) is not None:
            self._note_source(run, source)  # also if it adds nothing
        for entries, at in due:
            bounds = not BOUNDS.isdisjoint(map(_KIND, entries))
            if source.experiments.held or (bounds and not run_streams.joins_attempt(source)):
                self._take_by_experiment(source, entries, at, now)
            else:
                self._fold_into(source.run or self._watched.run_of(source, now), source, entries, at, now)

    def decide(self, source: Source, now: float, *, last: bool = False) -> None:
        """Decide the run of waiting lines after the source was read to its end. `last`: no more will come."""
        self._settle(source, now)
        self._take_due(source, self._attribution.look(source, now, read=True, last=last), now)
        self._take_due(source, run_streams.ended(source), now)
        run, older_state = source.run, source.older_state
        if run is not None and older_state is not None:
            precede(run.state, older_state, source.mtime - self._watched.wall_offset)
            run.dirty, source.older_state = True, None

    def _take_by_experiment(self, source: Source, entries: Sequence[LogEvent], at: float, now: float) -> None:
        """Take events that include set-up lines, one by one, because earlier lines decide the experiment.

        A set-up line that is repeated among the iterations of an attempt decides nothing and is folded with them.
        """
        experiments, ready = source.experiments, list[LogEvent]()
        for entry in entries:
            if not experiments.held and entry.event.kind not in BOUNDS:
                ready.append(entry)
                continue
            run = self._watched.run_of(source, now)
            is_reported = run is not None and begun(run.state.attempt) and not isinstance(entry.event, ArgumentsDumped)
            if not is_reported:
                self._fold_into(run, source, ready, at, now)
                ready.clear()
            number = experiments.number
            due = experiments.take(entry, at, run.state if run is not None else None)
            source.log.note_experiment(source)
            if experiments.number != number:
                self._begin_experiment(source, run, due[0][1], now)
            if is_reported and all(written == at for _, written in due):
                ready += [event for event, _ in due]
                continue
            self._fold_into(run, source, ready, at, now)
            ready.clear()
            for event, written in due:
                self._fold_into(self._watched.run_of(source, now), source, (event,), written, now)
        self._fold_into(self._watched.run_of(source, now), source, ready, at, now)
        if experiments.held:
            self._holding.setdefault(source.name, now)
        else:
            self._holding.pop(source.name, None)

    def release(self, source: Source, now: float) -> None:
        """Fold the held lines of the source into the run of its last lines."""
        self._holding.pop(source.name, None)
        for entry, at in source.experiments.release():
            self._fold_into(self._watched.run_of(source, now), source, (entry,), at, now)

    def holders(self) -> list[Source]:
        """Return the sources with held lines."""
        sources = map(self._watched.sources.get, self._holding)
        return [source for source in sources if source is not None and source.experiments.held]

    def _begin_experiment(self, source: Source, before: Run | None, at: float, now: float) -> None:
        """The source begins another experiment: the run `before` is over."""
        run = self._watched.run_of(source, now)
        if run is None or run is before or run is not source.log.current:
            return  # a per-rank file that is late
        run.historical = False  # a sweep may return to an experiment
        if before is None:
            return
        run.deferred, before.deferred, run.backlog_at = before.deferred + run.deferred, [], before.backlog_at
        self._watched.of_run(before, lambda: self._watched.judge.retire(before, at))
        self._watched.request(before)
        self._watched.save_soon = True

    def _fold_into(self, run: Run | None, source: Source, entries: Sequence[LogEvent], at: float, now: float) -> None:
        if run is None or not entries or run.failed:
            return
        self._watched.touch(run.log.name)
        if source.name not in run.state.sources:
            self._note_source(run, source)
        if source.older_state is not None:
            for entry in entries:
                fold(source.older_state, entry, source.name, at, False)
            return
        if not source.caught_up:
            run.backlog_at = now
            if run.backlog_evaluation is not None:
                run.backlog_evaluation.take(self._watched.evaluator_of_backlog, source.name, entries, source.mtime)
            entries = _taken_now(run, source, entries, at)
        self._judge(run, source, entries, at, now)
        run.dirty = True
        trains = source.caught_up and _OF_TRAINING.issuperset(map(type, map(_EVENT, entries)))
        if run.book.open or not trains:
            self._watched.request(run)  # otherwise the rules were evaluated at once

    def _judge(self, run: Run, source: Source, entries: Sequence[LogEvent], at: float, now: float) -> None:
        """Fold the events into the run. A historical run becomes live again if it progresses or crashes live."""
        state = run.state
        state.arrived = at if _is_arrival(source, entries, now - at) else None
        before, stamped, read_at = state.progress_at, state.attempt.progress_clock, state.read_at
        dead = state.attempt.phase in ENDED
        if run.expired:
            run.expired, run.historical = False, run.historical or dead  # its end was reported before
            state.live = state.live and not run.historical
        self._watched.of_run(run, partial(self._watched.judge.take, run, entries, source.name, at, source.caught_up))
        state.arrived = None
        dies = not dead and state.attempt.phase == "crashed" and counted_in(state, source.name)
        if run.historical and source.caught_up and (state.progress_at != before or dies):
            run.historical = being_copied(state, stamped, now - read_at, now)
            state.live = state.live or (dies and not run.historical)
            self._watched.request(run)  # a historical run is evaluated less often
        state.read_at = now

    def _note_source(self, run: Run, source: Source) -> None:
        run.state.sources.setdefault(source.name)
        self._attribution.jobs.changed(source.log)

    def take_deferred(self, run: Run, now: float) -> None:
        """Fold the deferred ends and failures after the loop, except those older than the loop's last line."""
        self._watched.of_run(run, lambda: self._take_held_back(run))
        self._watched.request(run)
        new = all(source.new for source in run.log.sources.values())
        self._watched.archive_or_watch(run, now, new=new)

    def _take_held_back(self, run: Run) -> tuple[()]:
        last, moved_at = run.state.attempt.progress_clock, run.state.progress_at or 0.0
        for entry, source, at in run.deferred:
            logged = log_clock(entry.event.logged_at)
            older = at < moved_at - _LONG_BEFORE if last is None or logged is None else logged < last
            if len(run.log.sources) == 1 or not older:  # a single file is in order
                self._watched.judge.take(run, (entry,), source, at, False)
        run.deferred.clear()
        return ()

    def release_overdue(self, now: float) -> None:
        """Fold lines that have waited too long for arguments, or for the decision about their run."""
        for source, due in self._attribution.overdue(now):
            self._watched.touch(source.log.name)
            self._take_due(source, due, now)
        for source in self.holders():
            if not 0.0 <= now - self._holding[source.name] < HELD_SECONDS:
                self.release(source, now)

    def settle(self, now: float) -> None:
        """Take the block at the end of a file once the file has not grown for a while."""
        for name in list(self._held_back):
            source = self._watched.sources.get(name)
            if source is None or source.failed:
                self._held_back.discard(name)
            elif source.caught_up:
                self._settle(source, now)

    def _settle(self, source: Source, now: float) -> None:
        if source.name in self._held_back and not source.behind_bytes and now - source.read_at >= _BLOCK_ENDS:
            self._held_back.discard(source.name)
            self.take(source, source.reader.settle(), source.read_at, now)

    def drop(self, name: str) -> None:
        """Forget the held lines of that source."""
        self._holding.pop(name, None)


def _is_arrival(source: Source, entries: Sequence[LogEvent], delay: float) -> bool:
    """Return True if the instant is that of a step: the times of several steps that were read at once are unknown."""
    prompt = source.caught_up and (source.ordered or (not source.behind_bytes and delay < _PROMPT))
    return bool(prompt) and sum(map(_UNTIMED.__contains__, map(type, map(_EVENT, entries)))) == 1


def _taken_now(run: Run, source: Source, entries: Sequence[LogEvent], at: float) -> Sequence[LogEvent]:
    """Return the events of a backlog that are folded at once.

    Ends and failures before any line of the training loop are deferred, because the loop's file may be read later. If a
    step or a set-up follows in the same file, they came before it and are folded.
    """
    if source.has_steps and source.member.steps and not run.deferred:
        return entries
    taken: list[LogEvent] = []
    for entry in entries:
        surrounds, held = isinstance(entry.event, _SURROUNDING), (entry, source.name, at)
        if run.deferred and type(entry.event) in _BEHIND_AN_END:
            taken += _own_deferred(run, source.name, entry.line)
        if surrounds and not (source.has_steps and source.member.steps):
            run.deferred.append(held)
            continue
        source.has_steps = source.has_steps or (entry.event.proves_training and type(entry.event) not in SETUP_EVENTS)
        taken.append(entry)
    return taken


def _own_deferred(run: Run, source: str, line: int) -> list[LogEvent]:
    """Remove and return the deferred events of that source before that line."""
    own = [held for held in run.deferred if held[1] == source and held[0].line < line]
    run.deferred = [held for held in run.deferred if held not in own]
    return [entry for entry, _, _ in own]
