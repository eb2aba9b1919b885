"""The core: messages of the follower in, transitions and snapshots out. Time is an argument; nothing here waits.

The daemon, `run --once`, `report`, `top` and the tests drive the same object. It owns every RunState. Beside the fold
and the judgement only the core writes to one: its sources, which of them are unreadable, when it was read, whether it
is live. The rooms:

    sources.py    the followed files: reader, proof of the place, read to the end or not
    runs.py       the runs: begin, archive, lose, expire, make room
    schedule.py   which run is judged when
    view.py       what HTTP shows of them
    outbox.py     the messages that are owed to receivers
    saved.py      what a restart needs
    jobs.py       what Slurm is asked of the runs, and what of it is believed
    nodes.py      the record of the nodes as it is shown
    hands.py      what policies do about incidents
    counters.py   what the monitor counts of its own reading
    aside.py      what the monitor's own code failed at

Instants are seconds of the daemon's steady clock (monitor/clock.py): a wall clock that is set does not move them.
`wall_offset` leads to Unix time; it is added where an instant is shown, and taken from what a message brings.
Each message concerns one source and each judgement one run: `handle` and `_of_run` are where either may fail alone
(aside.py).
"""

from __future__ import annotations

import copy
import logging
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from monitor import __version__
from monitor.config import Config
from monitor.core.aside import Aside, failed_logs
from monitor.core.counters import Counters
from monitor.core.hands import Hands
from monitor.core.hands import Message as Event
from monitor.core.jobs import Jobs
from monitor.core.nodes import NodeView
from monitor.core.outbox import Outbox
from monitor.core.runs import Run, Runs, being_copied, came_back, found_again, not_listened, record_launches
from monitor.core.saved import Saved, SavedSource
from monitor.core.schedule import Schedule
from monitor.core.sources import Source, Sources
from monitor.core.view import count_sources, show_all
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
    Unheard,
    Unreadable,
)
from monitor.incidents import Transition
from monitor.judgement import Judge, Judged
from monitor.metrics import MonitorCounts, Snapshot
from monitor.naming import run_name
from monitor.nodes.record import Ledger
from monitor.reading import own_rules
from monitor.run import derived, dumps
from monitor.run.dumps import DumpsAsked, DumpsRead
from monitor.run.experiments import BOUNDS, HELD_SECONDS, OPENING
from monitor.run.job import proofs
from monitor.run.log_clock import log_clock
from monitor.run.phases import ENDED
from monitor.run.state import Experiment
from monitor.run.units import LONGEST_SECONDS
from monitor.slurm.messages import JobAnswered, JobQuestion
from parsers.events import (
    CollectiveStatus,
    FailureSeen,
    IterationLogged,
    LogEvent,
    ProcessExited,
    ProcessTerminated,
    TracebackSeen,
    WatchdogTimedOut,
)

_log = logging.getLogger(__name__)

_SURROUNDING = (FailureSeen, TracebackSeen, ProcessExited, ProcessTerminated, WatchdogTimedOut, CollectiveStatus)
_BACKLOG_QUIET = 1.0  # seconds without backlog after which all files of a run are believed to be read


class Core:
    """Everything the daemon knows. Methods are called by one thread; `now` is an instant."""

    def __init__(self, config: Config, judge: Judge | None = None, *, charts: bool = True) -> None:
        """`charts`: whether what the charts draw is kept."""
        self._charts = charts
        self._wall_offset = 0.0
        self._saved = Saved()
        self.ledger, self._nodes = Ledger(), NodeView()
        """The launches of all runs, over restarts: the record of the nodes."""
        self._transitions: list[Transition] = []
        self._counters = Counters()
        self.counts = self._counters.counts
        self.outbox = Outbox()
        self.aside = Aside(self.counts)
        self.hands = Hands(config)
        self.counts.set("build_info", 1.0, __version__, platform.python_version())
        self.changed = False
        """Something worth saving happened since the flag was last cleared."""
        self.save_soon = False
        """Something happened that cannot be read from the logs again: what is known is to be saved soon."""
        self._over = False
        self.unreadable: dict[str, str] = {}
        """Source -> what the system said, of all that cannot be read, a training or not."""
        self.scanned: set[str] = set()
        """Mounts that were searched to the end at least once."""
        self._begin(config, judge or Judge(config))

    def _begin(self, config: Config, judge: Judge) -> None:
        self.config, self._rules, self._judge = config, own_rules(config), judge
        self._sources, self._runs = Sources(), Runs(config, charts=self._charts)
        self._runs.wall_offset = self._wall_offset
        self._schedule = Schedule(judge)
        self._jobs = Jobs(config.slurm)
        self.hands.configure(config)
        self._holding: dict[str, float] = {}  # source -> since when set-up lines of it are held
        self._deaf: dict[str, float] = {}  # mount -> since when nobody listens to it
        self.unreadable.clear()
        self._heard_again: dict[str, float] = {}  # mount -> when somebody listened again after the last lapse
        self.scanned.clear()

    @property
    def runs(self) -> dict[str, Run]:
        """By name."""
        return self._runs.by_name

    @property
    def sources(self) -> dict[str, Source]:
        """By name."""
        return self._sources.by_name

    @property
    def ready(self) -> bool:
        """Was every source read to its end?"""
        return self._sources.ready

    @property
    def wall_offset(self) -> float:
        """Unix time less an instant, seconds: set by the shell as it begins and when the wall clock was set."""
        return self._wall_offset

    @wall_offset.setter
    def wall_offset(self, seconds: float) -> None:
        if seconds != self._wall_offset:
            self._wall_offset = self._runs.wall_offset = seconds
            self.changed = True
            for run in self.runs.values():
                run.state.wall_offset = seconds
                self._schedule.request(run)

    # --- messages ---------------------------------------------------------------------------------------------------

    def handle(self, message: Message, now: float) -> None:
        """Take one message of the follower. What fails at it costs its source alone."""
        try:
            self._handle(message, now)
        except Exception as error:  # noqa: BLE001 - the boundary of a source
            self._put_source_aside(message, error, now)

    def _handle(self, message: Message, now: float) -> None:
        match message:
            case Opened():
                self._opened(message)
            case Scanned():
                self._scanned(message)
            case Unreadable() | Readable():
                self._access(message, now)
            case Unheard():
                self._unheard(message, now)
            case _:
                source = self._sources.get(message.source)
                if source is not None and (not source.failed or isinstance(message, Restarted | Gone)):
                    self._of_source(source, message, now)
        if not isinstance(message, Scanned) or message.forgotten:  # counts of a walk are no reason to save
            self.changed = True

    def _of_source(self, source: Source, message: Data | Restarted | CaughtUp | Gone, now: float) -> None:
        match message:
            case Data():
                self._data(source, message, now)
            case Restarted():
                self._restarted(source, message, now)
            case CaughtUp():
                self._caught_up(source, now)
            case Gone():
                self._gone(source, now)

    def _put_source_aside(self, message: Message, error: Exception, now: float) -> None:
        name = "" if isinstance(message, Scanned | Unheard) else message.source
        why, source = self.aside.note("source", name, error), self._sources.get(name)
        if source is None:
            return
        source.failed = why
        self._finish(source, now)
        self._holding.pop(name, None)
        self._note_unreadable(source, why, now)

    def _note_unreadable(self, source: Source, why: str, now: float) -> None:
        """A run that is there hears of it; no run begins."""
        run = self._runs.get(self._sources.current(source.run, source))
        if run is not None:
            run.state.unreadable[source.name] = why
            self._runs.note_lost(run, self._sources.of_run(source.run), now)
            self._schedule.request(run)

    def _note_readable(self, source: Source, now: float) -> None:
        run = self._runs.get(self._sources.current(source.run, source))
        if run is not None and run.state.unreadable.pop(source.name, None) is not None:
            self._runs.note_lost(run, self._sources.of_run(source.run), now)
            self._schedule.request(run)

    def _of_run(self, run: Run, do: Callable[[], Sequence[Transition]], *, failed: bool = False) -> None:
        """What is done with a run (`failed`: with one that was put aside); its transitions are kept. What fails at it
        costs the run alone.
        """
        if bool(run.failed) is not failed:
            return
        try:
            self._transitions += do()
        except Exception as error:  # noqa: BLE001 - the boundary of a run
            why = self.aside.note("run", run.state.name, error)
            run.failed = f"not watched until the monitor is restarted: {why}; the traceback stands in the monitor's log"
            run.state.lost = True
            self._schedule.request(run)

    def _tell_failed(self, run: Run, now: float) -> None:
        """Once, unless it is an old log that nobody waits for."""
        self._schedule.forget(run.state.name)
        if not run.failed_told:
            run.failed_told = True
            written = (self.sources[name].mtime for name in self._sources.of_run(run.log))
            recent = now + self._wall_offset - max(written, default=0.0) < self.config.detectors.hang.starting
            if run.state.proven and not run.archived and (run.state.live or recent):
                self._of_run(run, lambda: self._judge.put_aside(run, run.failed, now), failed=True)
        self._runs.drop_expired(run, now)

    def _opened(self, message: Opened) -> None:
        name = run_name(message.path, message.path, self.config.runs)
        saved = self._saved.claim_source(message.source)
        if saved is not None:  # another file under the same path goes on with the same run, as it would live
            self._runs.claim(self._saved, saved.run, name)
        before = self._sources.get(message.source)
        known = saved.experiments if saved is not None else before.experiments if before is not None else None
        self._drop_source(message.source)
        reader = saved.reader if saved is not None and message.resumed else None
        for run in self.runs.values():
            if saved is not None and run.log == name:
                run.away_since = saved.saved_at
        opened = self._sources.open(message, name, self._rules, reader, known)
        opened.new = bool(self.scanned) and saved is None

    def _drop_source(self, name: str) -> None:
        source = self._sources.get(name)
        if source is not None:
            self._counters.add_lines(source)
            self._sources.drop(source)
            self._holding.pop(name, None)

    def _data(self, source: Source, message: Data, now: float) -> None:
        entries = source.feed(message)
        self._counters.add_bytes(len(message.data), message.at)
        # Stamped by another thread off the wall clock: one that was set in between must put progress neither into the
        # future nor before the last reading. Risk left: this one reading is dated up to that much too early.
        at = min(message.at - self._wall_offset, now)
        if source.caught_up:
            at = source.read_at = max(at, source.read_at, self._heard_again.get(source.mount, at))
        else:
            at = min(at, message.mtime - self._wall_offset)
        self._fold(source, entries, at, now)

    def _flush(self, source: Source, now: float) -> None:
        """No more will come: what it ends with, without a line end, counts."""
        if source.failed:
            return
        self._fold(source, source.reader.flush(), source.mtime - self._wall_offset, now)
        self._release(source, now)

    def _restarted(self, source: Source, message: Restarted, now: float) -> None:
        if message.reason != "truncated":  # what a rotated file ended with was its last line
            self._flush(source, now)
        self._counters.add_lines(source)
        self.counts.add("truncations_total" if message.reason == "truncated" else "rotations_total")
        if source.failed:
            self.aside.forget("source", source.name)
            self._note_readable(source, now)
        source.restart(self._rules, message)
        self.save_soon = True
        _log.info("source=%s restarted reason=%s proof=%s", source.path, message.reason, message.proof)

    def _caught_up(self, source: Source, now: float) -> None:
        if source.caught_up:
            return
        self._release(source, now)
        self._finish(source, now)
        run = self._runs.get(self._sources.current(source.run))
        untrained = run is None or not run.state.proven
        if untrained and not source.untrained_logged and source.reader.fed_bytes:
            source.untrained_logged = True
            _log.info("source=%s no training line in %d lines", source.path, source.reader.lines)

    def _archive_or_watch(self, run: Run, now: float, *, new: bool) -> None:
        def do() -> tuple[()]:
            came_back(run, now)
            self._runs.archive_or_watch(run, now, new=new)
            return ()

        self._of_run(run, do)

    def _access(self, message: Unreadable | Readable, now: float) -> None:
        """A file cannot be read, or can be again; it need not have been opened before."""
        source = self._sources.get(message.source)
        log = source.run if source else run_name(message.source, message.source, self.config.runs)
        name = self._sources.current(log, source)
        if isinstance(message, Readable):
            run = self._runs.get(name)
            if run is not None:
                run.state.unreadable.pop(message.source, None)
            self.unreadable.pop(message.source, None)
        else:
            if self._runs.get(log) is None:  # a run that is known from before; no other begins by what nobody can read
                self._runs.claim(self._saved, log, log)
                self._runs.archive_stale(self._runs.get(log), now)
            run = self._runs.get(name)
            if run is not None:
                run.state.unreadable[message.source] = message.message
            if source is not None:
                self._finish(source, now)  # the run does not wait for what cannot be read
            if message.source not in self.unreadable:
                _log.warning("source=%s unreadable: %s", message.source, message.message)
            self.unreadable[message.source] = message.message
        if run is not None:
            self._schedule.request(run)
            self._runs.note_lost(run, self._sources.of_run(log), now)

    def _finish(self, source: Source, now: float) -> None:
        """It was read to its end, or cannot be read: its run is known as far as it ever will be."""
        if source.caught_up:
            return
        self._sources.finish(source)
        run = self._runs.get(self._sources.current(source.run))
        if run is not None and run.state.proven and not self._sources.catching_up(source.run):
            self._schedule.request(run)
            self._archive_or_watch(run, now, new=source.new)

    def _gone(self, source: Source, now: float) -> None:
        self._flush(source, now)
        run = self._runs.get(self._sources.current(source.run, source))
        if run is None:
            return
        if run.state.live and run.state.phase not in ENDED:
            run.state.unreadable[source.name] = "the file was deleted"
            self._runs.note_lost(run, self._sources.of_run(source.run), now)
        self._schedule.request(run)
        self.save_soon = True
        self._counters.add_lines(source)
        source.restart(self._rules)

    # --- who listens ------------------------------------------------------------------------------------------------

    def listen(self, deaf: Mapping[str, float]) -> None:
        """Since these instants nobody listens to these mounts, and to all others somebody does. What has been read was
        handled before.
        """
        if deaf.keys() == self._deaf.keys():
            return
        runs = self._sources.of_mounts(deaf.keys() ^ self._deaf.keys())
        self._deaf = dict(deaf)
        for run in self.runs.values():
            if run.log in runs:
                run.state.deaf_since = min((deaf[mount] for mount in runs[run.log] if mount in deaf), default=None)
                self._schedule.request(run)

    def _unheard(self, message: Unheard, now: float) -> None:
        """Nobody listened for a while, and what was written meanwhile comes now: that time is no silence of a run."""
        self._heard_again[message.mount] = now
        runs = self._sources.of_mounts((message.mount,))
        for run in self.runs.values():
            if run.log in runs:
                not_listened(run.state, message.seconds, now)
        self.counts.add("unheard_seconds_total", message.mount, by=message.seconds)
        _log.warning("mount=%s nobody listened for %.1f s: that time is no silence", message.mount, message.seconds)

    def _scanned(self, message: Scanned) -> None:
        self.scanned.add(message.mount)
        for name in message.forgotten:
            self._drop_source(name)
            self.unreadable.pop(name, None)
        self.counts.add("stat_calls_total", by=message.stats)
        for name, count in message.errors.items():
            self.counts.add("io_errors_total", name, by=count)

    # --- folding ----------------------------------------------------------------------------------------------------

    def _fold(self, source: Source, entries: Sequence[LogEvent], at: float, now: float) -> None:
        """Take the events of one delivery, which were written (read, while they come live) at `at`."""
        if not entries:
            return
        kinds = Counter(entry.event.kind for entry in entries)
        self._counters.add_events(kinds, entries)
        if source.experiments.held or not BOUNDS.isdisjoint(kinds):
            self._fold_by_experiment(source, entries, at, now)
        else:
            self._fold_into(self._run_of(source, now), source, entries, at, now)

    def _fold_by_experiment(self, source: Source, entries: Sequence[LogEvent], at: float, now: float) -> None:
        """The same where set-up lines are among them: each after what stands before it, for that tells whose it is."""
        experiments, ready = source.experiments, list[LogEvent]()
        for entry in entries:
            if not experiments.held and entry.event.kind not in BOUNDS:
                ready.append(entry)
                continue
            run = self._run_of(source, now)
            self._fold_into(run, source, ready, at, now)
            ready.clear()
            number = experiments.number
            due = experiments.take(entry, at, run.state if run is not None else None)
            self._sources.note_experiment(source)
            if experiments.number != number:
                self._begin_experiment(source, run, due[0][1], now)
            for event, written in due:
                self._fold_into(self._run_of(source, now), source, (event,), written, now)
        self._fold_into(self._run_of(source, now), source, ready, at, now)
        if experiments.held:
            self._holding.setdefault(source.name, now)
        else:
            self._holding.pop(source.name, None)

    def _release(self, source: Source, now: float) -> None:
        """What is held of the source belongs to the run that it last wrote of."""
        self._holding.pop(source.name, None)
        for entry, at in source.experiments.release():
            self._fold_into(self._run_of(source, now), source, (entry,), at, now)

    def _holders(self) -> list[Source]:
        """The sources of which lines are held."""
        sources = map(self._sources.get, self._holding)
        return [source for source in sources if source is not None and source.experiments.held]

    def _begin_experiment(self, source: Source, before: Run | None, at: float, now: float) -> None:
        """The source writes of another experiment from now on; the run `before` is over."""
        run = self._run_of(source, now)
        if run is None or run is before or self._sources.current(source.run) != run.state.name:
            return  # a rank's own file that comes behind
        run.archived = False  # a sweep may come back to one
        if before is None:
            return
        run.deferred, before.deferred, run.backlog_at = before.deferred + run.deferred, [], before.backlog_at
        self._of_run(before, lambda: self._judge.retire(before, at))
        self._schedule.request(before)
        self.save_soon = True

    def _run_of(self, source: Source, now: float) -> Run | None:
        """The run that the source's lines belong to now; None if there are too many."""
        name = self._sources.current(source.run, source)
        return self._runs.get(name) or self._run(name, now, source)

    def _fold_into(self, run: Run | None, source: Source, entries: Sequence[LogEvent], at: float, now: float) -> None:
        if run is None or not entries or run.failed:
            return
        state = run.state
        if source.name not in state.sources:
            state.sources.append(source.name)
        if not source.caught_up:
            run.backlog_at = now
            entries = _taken_now(run, source, entries, at)
        if state.lost:
            found_again(run, now)
        before, stamped, read_at = state.progress_at, state.progress_clock, state.read_at
        self._of_run(run, lambda: self._judge.take(run, entries, source.name, at, source.caught_up))
        if run.archived and source.caught_up and state.progress_at != before:
            run.archived = being_copied(state, stamped, now - read_at, now)  # else it moves
        state.read_at = now
        run.dirty = True
        if (
            run.book.open
            or run.book.pending
            or not run.judged_at
            or not source.caught_up
            or any(type(entry.event) is not IterationLogged for entry in entries)
        ):
            self._schedule.request(run)  # else it only trains: a detector that an iteration changes has judged at once

    def _fold_deferred(self, run: Run, now: float) -> None:
        """What surrounds the loop, after the loop: unless it is older than the loop's last line."""
        self._of_run(run, lambda: self._take_deferred(run))
        self._schedule.request(run)
        new = all(source.new for source in self._sources.by_name.values() if source.run == run.state.name)
        self._archive_or_watch(run, now, new=new)

    def _take_deferred(self, run: Run) -> tuple[()]:
        last = run.state.log_clock_last
        for entry, source, at in run.deferred:
            logged = log_clock(entry.event.logged_at)
            if last is None or logged is None or logged >= last:
                self._judge.take(run, (entry,), source, at, False)
        run.deferred.clear()
        return ()

    def _run(self, name: str, now: float, source: Source | None = None) -> Run | None:
        """The run of that name, new or saved; None if there are too many that live. `source` tells the log that it is
        one of the experiments of.
        """
        run = self._runs.get(name)
        if run is None:
            if self._runs.full:
                dropped = self._runs.make_room(self._sources.catching_up)
                self.counts.add("runs_dropped_total", "refused" if dropped is None else "dead")
                if dropped is None:
                    return None
            experiment = None
            if source is None or name == source.run:
                self._runs.claim(self._saved, name, name)  # saved, and a file of it came first that was not there then
            else:
                own = self._sources.latest(source)
                experiment = Experiment(source.run, own.number, own.label)
            run = self._runs.get(name) or self._runs.begin(name, now, experiment)
        return run

    def flush(self, now: float) -> None:
        """No more will come from any source."""
        for source in self.sources.values():
            self._flush(source, now)
        for name, run in self.runs.items():
            if name == self._sources.current(run.log):
                self._fold_deferred(run, now)

    # --- Slurm ------------------------------------------------------------------------------------------------------

    def questions(self, now: float, own: str | None = None) -> list[JobQuestion]:
        """What Slurm is to be asked now; `own`: the job that the daemon itself runs in."""
        return self._jobs.questions(self.runs, self.sources, now, own)

    def answered(self, message: JobAnswered, now: float) -> None:
        """Take an answer of Slurm."""
        run = self._runs.get(message.question.run)
        if run is not None:
            self.counts.add("slurm_calls_total", self._jobs.take(run, message, self.sources, now))
            self._schedule.request(run)

    # --- the flight recorder ----------------------------------------------------------------------------------------

    def dumps_to_read(self, now: float) -> list[DumpsAsked]:
        """Whose dumps are to be looked at now."""
        if not self.config.flight_recorder:
            return []
        hanging = [run for run in self.runs.values() if run.state.live and not run.archived]
        asked = (dumps.ask(run.state, run.looked, self.config.flight_recorder, now) for run in hanging)
        return [one for one in asked if one is not None]

    def dumps_read(self, message: DumpsRead) -> None:
        """Take what the dumps of a run tell."""
        run = self._runs.get(message.asked.run)
        if run is not None and dumps.take(run.state, run.looked, message):
            run.dirty = self.changed = True
            self._schedule.request(run)

    def _fold_ends(self, now: float) -> None:
        """How launches ended of which the log says nothing, or less."""
        for name in self._jobs.due(now):
            if (run := self._runs.get(name)) is not None:
                self._of_run(run, lambda run=run: self._judge.take(run, proofs(run.state), "slurm", now, True))  # type: ignore[misc]
                self._schedule.request(run)

    # --- judgement --------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Transition]:
        """Judge the runs that are due; all transitions since the last call."""
        self._fold_ends(now)
        for source in self._holders():
            if not 0.0 <= now - self._holding[source.name] < HELD_SECONDS:
                self._release(source, now)
        waiting = {self._sources.current(source.run, source) for source in self._holders()}
        for name in self._schedule.names(self._runs, now):
            run = self._runs.get(name)
            if run is None:
                self._schedule.forget(name)
                continue
            if self._sources.catching_up(run.log) or name in waiting:
                continue
            if run.failed:
                self._tell_failed(run, now)
                continue
            if run.deferred and now - run.backlog_at >= _BACKLOG_QUIET:
                self._fold_deferred(run, now)
            self._of_run(run, lambda run=run: self._judge_run(run, now))  # type: ignore[misc]
        transitions, self._transitions = self._transitions, []
        return [self._announced(item, now) for item in transitions]

    def _announced(self, item: Transition, now: float) -> Transition:
        run = self._runs.get(item.run)
        return item if run is None else self.hands.announce(run, item, now)

    def act(self, now: float) -> list[Event]:
        """What policies have to say now; what they do is in `hands.orders` once it is saved."""
        return self.hands.turn(self.runs, self._is_read_further, now)

    def _is_read_further(self, run: Run) -> bool:
        """Is something of the run still to be read, or can it not be judged?"""
        own = (self.sources[name] for name in self._sources.of_run(run.log))
        return bool(run.failed) or any(not source.caught_up or source.behind_bytes for source in own)

    def _judge_run(self, run: Run, now: float) -> list[Transition]:
        if not self._schedule.take(run, now):
            return []
        before = run.state.hung, run.state.phase
        transitions = self._judge.judge(run, now)
        if transitions or before != (run.state.hung, run.state.phase):
            run.dirty = self.changed = True
        run.dirty = run.dirty or derived.run_state(run.state, run.archived) != run.shown_state
        if record_launches(run, self.ledger):
            self.changed = self._nodes.stale = True
        if self._runs.drop_expired(run, now):
            self.changed = True
        return transitions

    # --- what is shown ----------------------------------------------------------------------------------------------

    def end_runs(self) -> None:
        """The runs end with the daemon: from now on they are shown without deadlines and open incidents."""
        self._over = True
        for run in self.runs.values():
            run.dirty = True

    def snapshot(self, now: float, *, pages: bool = True) -> Snapshot:
        """What HTTP may show until the next one; without `pages` those in it may be older than its samples."""
        runs = [
            run
            for _, run in sorted(self.runs.items())
            if run.state.proven and (run.shown is not None or not self._sources.catching_up(run.log))
        ]
        shown = show_all(runs, now, self.config, self.aside, pages=pages, over=self._over)
        unreadable = {name for run in self.runs.values() for name in run.state.unreadable} | self.unreadable.keys()
        count_sources(self.counted(), self.sources, unreadable, self._rules.patterns)
        self.counts.set("runs", len(shown))
        at = now + self._wall_offset
        nodes = self._nodes.shown(self.ledger, now)
        self.counts.values["megatron_suspect_node"] = dict(nodes.suspects)
        return Snapshot(
            at=at,
            nodes=nodes.rows,
            nodes_in_all=nodes.in_all,
            launches=len(self.ledger.launches),
            runs=shown,
            monitor=self.counts.frozen(),
            incidents=tuple(incident for run in shown for incident in run.page["incidents"]),
            ready=self.ready,
            loop_turned_at=at,
        )

    def counted(self) -> MonitorCounts:
        """The counts, brought up to date."""
        for (receiver, outcome), many in self.outbox.take_outcomes().items():
            self.counts.add("notifications_total", receiver, outcome, by=many)
        self.counts.clear("notifications_owed")
        for receiver, many in self.outbox.owed().items():
            self.counts.set("notifications_owed", many, receiver)
        return self._counters.up_to_date(self.sources.values())

    # --- state over a restart ---------------------------------------------------------------------------------------

    def reconfigure(self, config: Config, now: float) -> dict[str, Position]:
        """Begin anew with another configuration and everything that is known; gives the positions to prove."""
        self._saved = self.save(now)
        self._begin(config, Judge(config))
        self.changed = True
        return self._saved.positions

    def save(self, now: float) -> Saved:
        """Everything a restart needs: aggregates and offsets as they belong together."""
        failed = failed_logs(self.runs, self.sources)
        saved = self._saved.unclaimed(now)
        saved.wall_offset, saved.ledger = self._wall_offset, self.ledger
        saved.owed = self.outbox.save()
        saved.hands = self.hands.record
        saved.counts = {name: list(series.items()) for name, series in self.counted().values.items()}
        for name, source in self.sources.items():
            with self.aside.saving(source.run, failed):
                reader = source.reader.save()
                position, known = source.marker.position(reader["offset"]), source.experiments.known()
                saved.sources[name] = SavedSource(source.run, position, reader, now, known)
        held: dict[str, list[Source]] = {}
        for source in self._holders():
            held.setdefault(self._sources.current(source.run, source), []).append(source)
        for name, run in self.runs.items():
            if run.state.proven and run.log not in failed:
                with self.aside.saving(run.log, failed):
                    saved.runs[name] = self._saved_run(run, held.get(name, ()))
        return saved.without(failed)

    def _saved_run(self, run: Run, holding: Sequence[Source]) -> Judged:
        run.state.history.flush()
        if not run.deferred and not holding:
            return Judged(run.state, run.book, run.archived)
        # Their lines lie before the saved offsets: in what is saved they count now or never.
        run = Run(copy.deepcopy(run.state), copy.deepcopy(run.book), run.archived, deferred=list(run.deferred))
        for source in holding:
            for entry, at in source.experiments.held:
                self._judge.take(run, (entry,), source.name, at, source.caught_up)
        self._take_deferred(run)
        return Judged(run.state, run.book, run.archived)

    def restore(self, saved: Saved) -> dict[str, Position]:
        """Take what was saved; each source and its run are claimed when the follower proves the position.

        Gives the positions to prove. Before anything else; `now` goes on from the saved instants (`wall_offset`).
        """
        self._saved, self.ledger = saved, saved.ledger
        self.wall_offset = saved.wall_offset
        self.outbox.restore(saved.owed)
        self.hands.restore(saved.hands)
        if self.config.run_retention >= LONGEST_SECONDS:  # read again what an earlier daemon forgot
            saved.forget_expired_runs()
        for name, series in saved.counts.items():
            if name.endswith("_total"):
                self.counts.values.setdefault(name, {}).update({tuple(labels): value for labels, value in series})
        return saved.positions


def _taken_now(run: Run, source: Source, entries: Sequence[LogEvent], at: float) -> Sequence[LogEvent]:
    """What of a backlog is folded at once. Ends and failures that stand in a file before any line of the training loop
    are deferred: its file may be read later, and its lines come first. What libraries say of the layout and of
    themselves stands in either of a job's two files.
    """
    if source.has_steps:
        return entries
    taken: list[LogEvent] = []
    for entry in entries:
        if not source.has_steps and isinstance(entry.event, _SURROUNDING):
            run.deferred.append((entry, source.name, at))
        else:
            source.has_steps = source.has_steps or (entry.event.proves_training and type(entry.event) not in OPENING)
            taken.append(entry)
    return taken
