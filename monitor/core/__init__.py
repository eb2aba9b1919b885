"""The core turns the follower's messages into transitions of incidents and snapshots. Pure: time is an argument.

The daemon, `run --once`, `replay`, `report` and the tests drive the same object. The core owns every RunState. At a
tick it evaluates the rules of the runs that are due. A line passes the first group of modules from top to bottom:

    intake.py       passes each message of the follower to its source
    observing.py    which runs are observed: mounts that do not answer, stale agents, unreadable files
    ordered.py      sorts the lines of a pushed stream
    attribution.py  decides to which run a stream's lines belong; they wait until that is known
    run_streams.py  drops what another stream of the run has already reported
    folding.py      adds the events to the state of their run, or holds them until the run is known
    watched.py      the shared state of these modules, and which run is evaluated next

    sources.py      the followed files: reader, position, read to the end or not
    runs.py         the runs: begin, become historical, get lost, expire, make room
    job_index.py    streams by Slurm job
    logs.py         the sources with one name, and their runs
    quarantine.py   sources and runs at which the monitor's own code failed
    saved.py        what a restart needs

    extension.py    the interface of optional parts (Slurm, remediation)
    outbox.py       pending notifications
    view.py         what HTTP shows of the runs

Instants are seconds of the daemon's steady clock (system/clock.py), which does not jump when the wall clock is set.
Unix time is instant + `wall_offset`. Each message concerns one source and each evaluation one run:
`MessageHandler.handle` and `Watched.of_run` confine a failure to it (quarantine.py).
"""

import logging
import platform
from collections.abc import Mapping
from functools import partial
from typing import Any

from megatron_monitor import __version__
from megatron_monitor.alerts import Alerts
from megatron_monitor.causes import cause_of
from megatron_monitor.config import Config
from megatron_monitor.core.attribution import Attribution
from megatron_monitor.core.extension import Extension
from megatron_monitor.core.folding import Folding
from megatron_monitor.core.intake import MessageHandler
from megatron_monitor.core.logs import Log
from megatron_monitor.core.outbox import Outbox
from megatron_monitor.core.runs import Run
from megatron_monitor.core.saved import MONITOR, LogState, PartitionOffset, Saved, UnclaimedState
from megatron_monitor.core.view import count_sources, show
from megatron_monitor.core.watched import LOOK, Watched
from megatron_monitor.evaluation import Evaluator
from megatron_monitor.follow.messages import Position
from megatron_monitor.incidents import Transition
from megatron_monitor.run.derived import run_state
from megatron_monitor.run.phases import ENDED as PHASES_OF_END
from megatron_monitor.snapshot import EVERYTHING, MonitorCounts, Snapshot, ViewRequest

_log = logging.getLogger(__name__)

_STREAMS = 8  # streams per run whose last lines are shown: those read last
_BACKLOG_SETTLED = 1.0  # seconds without backlog after which all files of a run count as read


class Core(Watched):
    """The state of the daemon. One thread calls the methods; `now` is an instant."""

    def __init__(self, config: Config, judge: Evaluator | None = None, *, charts: bool = True) -> None:
        """`charts`: keep the data of the charts."""
        self.extensions: list[Extension] = []
        """The optional parts of this core."""
        self.alerts = Alerts()
        self.unposted: Mapping[str, int] = {}
        """Notifier -> number of Alertmanagers that did not accept the last post."""
        self.place: PartitionOffset | None = None
        """For a Kafka partition: the offset up to which records were handled."""
        self.read_until = float("inf")
        """The instant until which all logs were read."""
        self.caught_up = False
        """True: the backlog was read, and attempts that begin and end are logged."""
        super().__init__(config, judge or Evaluator(config), charts=charts)
        self.outbox = Outbox(self.counts)
        self.counts.set("build_info", 1.0, __version__, platform.python_version())
        self.counts.add("state_save_failures_total", by=0.0)  # a counter that does not start at 0 has no rate

    def begin(self, config: Config, judge: Evaluator) -> None:
        """Start without followed files and runs."""
        super().begin(config, judge)
        for extension in self.extensions:
            extension.configure(config)
        attribution = Attribution(self)
        self._job_index = attribution.jobs
        self.folding = Folding(self, attribution)
        intake = MessageHandler(self, self.folding, attribution)
        self.handle, self._settle, self.flush = intake.handle, intake.settle, intake.flush
        self.listen = intake.observing.listen
        self.unreadable, self.scanned = intake.unreadable, intake.scanned

    # --- evaluation -------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Transition]:
        """Evaluate the runs that are due. Return all transitions since the last call."""
        events = self.judge.events
        if events.away_since is not None and events.back_at is None:
            events.back_at = now + self.wall_offset
        self._settle(now)
        self.folding.release_overdue(now)
        self.folding.settle(now)
        for run in self.due(now):
            if run.log.unread:
                continue
            run.next_check = now + LOOK
            if run.failed:
                self._log_failure(run, now)
                continue
            for extension in self.extensions:
                extension.before_judgement(run, now)
            if run.deferred and now - run.backlog_at >= _BACKLOG_SETTLED:
                self.folding.take_deferred(run, now)
            if run.state.proven:
                self.of_run(run, partial(self._judge_run, run, now))
        return [self._announced(item, now) for item in self._taken()]

    def pass_until(self, now: float) -> list[Transition]:
        """Return the transitions since the last call, on the clock of a finished log (`Evaluator.wait_for`)."""
        self.folding.release_overdue(now)
        return self._taken()

    def _taken(self) -> list[Transition]:
        transitions, self.transitions = self.transitions, []
        return transitions

    def _judge_run(self, run: Run, now: float) -> list[Transition]:
        before = run.state.attempt.hung, run.state.attempt.phase
        transitions = self.judge.judge(run, now)
        if transitions or before != (run.state.attempt.hung, run.state.attempt.phase):
            run.dirty = True
            self.touch(run.log.name)
        run.next_check = self.next_check(run, now)
        self._log_life(run)
        self.let_go(run, now)
        return transitions

    def _log_life(self, run: Run) -> None:
        """Log that an attempt began or ended, unless it did so in the backlog."""
        state = run.state
        number, ended = life = state.attempt.number, state.attempt.phase in PHASES_OF_END
        if life == run.logged or (self.caught_up and run.historical):
            return
        what = "ended" if ended else "started" if number != run.logged[0] else "goes on: it had not ended"
        if self.caught_up:
            _log.info("run=%s attempt=%d state=%s %s", state.name, number + 1, run_state(state, history=False), what)
        run.logged = life

    def _log_failure(self, run: Run, now: float) -> None:
        """Report a quarantined run once, unless its log is old."""
        if not run.failure_logged:
            run.failure_logged = True
            written = (source.mtime for source in run.log.sources.values())
            silent = now + self.wall_offset - max(written, default=0.0)
            recent = silent < self.config.detectors.hang.first_of("starting")
            if run.state.proven and not run.historical and (run.state.live or recent):
                self.of_run(run, lambda: self.judge.quarantine(run, run.failed, now), failed=True)
        self.let_go(run, now)

    def _announced(self, item: Transition, now: float) -> Transition:
        run = self.runs.get(item.run)
        if run is not None:
            self._keep_excerpt(run, item)
        if run is not None and item.status == "firing":
            for extension in self.extensions:
                item = extension.announce(run, item, now)
        return item

    def _keep_excerpt(self, run: Run, item: Transition) -> None:
        """Keep the lines around an open incident's line."""
        if item.status != "firing":
            run.excerpts.pop(item.incident, None)
        elif item.incident not in run.excerpts and (sources := [*run.log.sources.values()]):
            line = cause_of(item).line
            holding = [source for source in sources if line and source.tail.holds(line)]
            source = max(holding or sources, key=lambda one: one.read_at)
            run.excerpts[item.incident] = source.tail.excerpt(source.path, line)

    def is_read_further(self, run: Run) -> bool:
        """Return True if lines of the run are still unread, or if it is quarantined."""
        own = run.log.sources.values()
        return bool(run.failed) or any(not source.caught_up or source.behind_bytes for source in own)

    # --- what is shown ----------------------------------------------------------------------------------------------

    def stop_runs(self, at: float, *, over: bool) -> None:
        """The daemon stops in order at `at`, Unix seconds: deadlines are no longer shown. `over`: the runs end too."""
        self.stopped, self.over = True, over
        if over:
            self.alerts.end_all(at)
        for run in self.runs.values():
            run.dirty = True

    def snapshot(self, now: float, asked: ViewRequest = EVERYTHING) -> Snapshot:
        """Return what HTTP shows. Pages and charts that are not `asked` for may be older than the samples."""
        self._job_index.bring_up_to_date()
        runs = [
            run
            for _, run in sorted(self.runs.items())
            if run.state.proven and (run.shown is not None or not run.log.unread)
        ]
        views = [(run, show(self, run, now, asked, self._shown_run)) for run in runs]
        known = [(run.expired, view) for run, view in views if view is not None]
        shown = tuple(view for expired, view in known if not expired)
        ended = tuple(view for expired, view in known if expired)
        unreadable = {name for run in self.runs.values() for name in run.state.unreadable} | self.unreadable.keys()
        count_sources(self.counted(), self.sources, unreadable)
        self.counts.set("runs", 0 if self.over else len(shown))
        behind = max(0.0, now - self.read_until)
        self.counts.set("snapshot_age_seconds", behind)
        return Snapshot(
            at=now + self.wall_offset,
            runs=shown,
            monitor=self.counts.frozen(),
            incidents=tuple(incident for run in (*shown, *ended) for incident in run.page["incidents"]),
            ended=ended,
            ready=self.sources.ready,
            behind_seconds=behind,
        )

    def _shown_run(self, run: Run, now: float) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        for extension in self.extensions:
            found |= extension.shown_run(run, now)
        latest = sorted(run.log.sources.values(), key=lambda source: -source.read_at)
        return found | {
            "log": {
                "streams": [{"stream": one.path, "lines": one.tail.lines()} for one in latest[:_STREAMS]],
                "streams_in_all": len(latest),
                "incidents": {kind: excerpt.to_json() for kind, excerpt in run.excerpts.items()},
            }
        }

    def counted(self) -> MonitorCounts:
        """Return the monitor's counts, brought up to date."""
        self.counts.clear("notifications_pending")
        for receiver, many in {**self.outbox.pending(), **self.unposted}.items():
            self.counts.set("notifications_pending", many, receiver)
        for kind, many in self.kinds.items():
            self.counts.add("events_total", kind, by=many)
        self.kinds.clear()
        if self.last_read is not None:
            self.counts.add("bytes_total", by=self.read_bytes)
            self.counts.set("last_read_timestamp_seconds", self.last_read)
            self.read_bytes, self.last_read = 0, None
        for source in self.sources.values():
            source.count_lines(self.counts)
        return self.counts

    # --- state over a restart ---------------------------------------------------------------------------------------

    def reconfigure(self, config: Config, now: float) -> dict[str, Position]:
        """Start again with another configuration and the present state. Return the positions to verify."""
        saved = self.save(now)
        self.saved = UnclaimedState(saved)
        judge = Evaluator(config)
        judge.events = self.judge.events
        self.begin(config, judge)
        self.touch_all()
        return saved.positions

    def touch_all(self) -> None:
        """Mark the whole state as unsaved."""
        self.changed = self.save_soon = True
        self.touched.update(self.saved.logs, self.logs, self.sources.dormant_logs)

    def save(self, now: float) -> Saved:
        """Return what a restart needs: consistent states and offsets."""
        saved = self._of_monitor(now)
        for log in {*self.saved.logs, *self.logs, *self.sources.dormant_logs}:
            if (one := self._of_log(log, now)) is not None:
                saved.sources.update(one.sources)
                saved.runs.update(one.runs)
        return saved

    def parts(self, now: float) -> dict[str, bytes | None]:
        """Return the parts of the state that have changed since the last call; None for a deleted part."""
        self.touched |= self.saved.expire(now)
        found: dict[str, bytes | None] = {MONITOR: self.quarantine.encoded_monitor(self._of_monitor(now))}
        for name in self.touched:
            value = self._of_log(name, now)
            found[name] = None if value is None else self.quarantine.encoded(name, value)
        self.touched.clear()
        return found

    def _of_monitor(self, now: float) -> Saved:
        unclaimed = {name: one.saved_at for name, one in self.saved.sources.items()} | self.sources.unread()
        counts = {name: list(series.items()) for name, series in self.counted().values.items()}
        return Saved(
            counts=counts, wall_offset=self.wall_offset, pending=self.outbox.save(), events=self.judge.events,
            alerts=self.alerts, contact_at=now, unclaimed=unclaimed, place=self.place,
        )  # fmt: skip

    def _of_log(self, log: str, now: float) -> LogState | None:
        """Return a log's state; None if it is empty, or quarantined: then a fixed version reads it from the start."""
        if dormant := self.sources.dormant_of(log):
            for kept in dormant.values():
                kept.saved_at = now
            return LogState(dormant)
        known = self.logs.get(log) or Log(log)
        sources, runs = known.sources.values(), known.runs.values()
        if any(source.failed for source in sources) or any(run.failed for run in runs):
            return None
        found = self.saved.of_log(log)
        try:
            for source in sources:
                found.sources[source.name] = source.save(now)
            for run in runs:
                found.runs[run.state.name] = run.saved()
        except Exception as error:  # noqa: BLE001 - a failure is confined to this log
            self.quarantine.note("state", log, error)
            return None
        return found if found.sources or found.runs else None

    def restore(self, saved: Saved) -> dict[str, Position]:
        """Load a saved state, before anything else, and return the positions to verify.

        Each source and its run are claimed when the follower has verified the position. Instants continue those that
        were saved (`set_clock`).
        """
        positions = saved.positions
        self.saved = UnclaimedState(saved)
        self.set_clock(saved.wall_offset)
        self.awaited.update(one.run for one in saved.sources.values() if one.run in saved.runs)
        self.outbox.restore(saved.pending)
        self.judge.events, self.alerts = saved.events, saved.alerts
        self.judge.events.away_since, self.judge.events.back_at = saved.contact_at + saved.wall_offset, None
        for name, series in saved.counts.items():
            if name.endswith("_total"):
                self.counts.values.setdefault(name, {}).update({tuple(labels): value for labels, value in series})
        return positions
