"""The shared state of the core's modules: followed files, runs, when runs are evaluated, transitions. Base of Core."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from megatron_monitor.config import Config
from megatron_monitor.core.logs import Log, Logs
from megatron_monitor.core.quarantine import Quarantine
from megatron_monitor.core.runs import Run, Runs, came_back
from megatron_monitor.core.saved import LogState, UnclaimedState
from megatron_monitor.core.sources import Source, Sources
from megatron_monitor.evaluation import Evaluator
from megatron_monitor.identity.naming import experiment_name
from megatron_monitor.incidents import Transition, give_up
from megatron_monitor.reading import own_rules
from megatron_monitor.snapshot import MonitorCounts

_MAX_EVALUATION_INTERVAL = 15.0  # seconds between two evaluations of a healthy run
LOOK = 1.0
"""Seconds between two evaluations of other runs: progress timeouts are at least 60 s."""
_EXPIRED_POINTS = 64  # points of a chart of an expired run
_NAMED = 100  # refused runs named in the log
_log = logging.getLogger(__name__)


class Watched:
    """The state, used by the loop's thread only. Times are instants of the core."""

    def __init__(self, config: Config, judge: Evaluator, *, charts: bool) -> None:
        """`charts`: keep the data of the charts."""
        self._charts = charts
        self.wall_offset = 0.0
        """Unix time minus instant, seconds (`set_clock`)."""
        self.counts = MonitorCounts()
        """The monitor's own counters."""
        self.quarantine = Quarantine(self.counts)
        self.transitions: list[Transition] = []
        """Transitions since the last tick."""
        self.changed = False
        """True: something worth saving happened since the flag was cleared."""
        self.touched: set[str] = set()
        """The parts of the state that changed since they were saved; the part of a log has its name."""
        self.save_soon = False
        """True: save at once, because a notification is pending or a file was rotated."""
        self.read_bytes = 0
        """Bytes that were read and are not counted yet (`counted`)."""
        self.last_read: float | None = None
        """Unix time of the last read."""
        self.kinds = Counter[str]()
        """Kind of event -> how many were read since they were counted (`counted`)."""
        self.dormant_seconds = float("inf")
        """Age in seconds after which a file without a training becomes dormant."""
        self.saved = UnclaimedState(LogState())
        """The part of the saved state that no source has claimed yet."""
        self.stopped = self.over = False
        """True: the daemon stops in order, so runs have no deadline; its runs end with it."""
        self.awaited = Counter[str]()
        """Name of a log -> number of its saved sources that are neither opened again nor found missing."""
        self.begin(config, judge)

    def begin(self, config: Config, judge: Evaluator) -> None:
        """Start without followed files and runs."""
        self.config, self.rules, self.judge = config, own_rules(config), judge
        self.evaluator_of_backlog = Evaluator(config, repeats=False)
        self.logs = Logs()
        self.sources, self.runs = Sources(self.rules, self.logs), Runs(config, self.logs, charts=self._charts)
        self.runs.wall_offset = self.wall_offset
        self._refused: set[str] = set()

    def touch(self, part: str) -> None:
        """Mark the part of a log, or another part of the state, as unsaved."""
        self.touched.add(part)
        self.changed = True

    def request(self, run: Run, *, save: bool = True) -> None:
        """The run has news: evaluate it at the next tick, show it again and, with `save`, save it."""
        run.dirty, run.next_check = True, float("-inf")
        if save:
            self.touched.add(run.log.name)

    def due(self, now: float) -> list[Run]:
        """Return the runs to evaluate now: they have news, or a deadline of theirs has come."""
        latest = now + _MAX_EVALUATION_INTERVAL
        return [
            run
            for run in self.runs.values()
            if run.next_check == float("-inf") or not (run.expired or now < run.next_check <= latest)
        ]

    def next_check(self, run: Run, now: float) -> float:
        """Return when the run must be evaluated again without news: after 15 s without an open incident or a near
        deadline, otherwise after 1 s.
        """
        waits = run.book.open or run.deferred
        if run.historical and not waits:
            return now + _MAX_EVALUATION_INTERVAL
        if waits or not run.state.live or run.state.attempt.phase == "exiting":
            return now + LOOK
        return min(now + _MAX_EVALUATION_INTERVAL, max(now + LOOK, self.judge.idle_until(run)))

    def _make_room(self, name: str, source: Source, now: float) -> bool:
        """Make room for a new run by dropping the ended run with the oldest progress.

        Return False if all runs are live, or if the new run ended before all the others.
        """
        if not source.caught_up and self.runs.all_ended_since(source.mtime - self.wall_offset, now):
            self._put_out([source])
            return False
        if (dropped := self.runs.make_room()) is not None:
            self._close(dropped, "it had ended, and max_runs required its place", now)
            self.touch(dropped.log.name)
            self._put_out([*dropped.log.sources.values()])
            return True
        self.counts.add("runs_dropped_total", "refused")
        if name not in self._refused and len(self._refused) < _NAMED:
            self._refused.add(name)
            _log.warning("run=%r is not monitored: max_runs=%d other runs are live", name, self.config.max_runs)
        return False

    def _put_out(self, sources: Sequence[Source]) -> None:
        """Mark the sources of a dropped run."""
        self.counts.add("runs_dropped_total", "dead", by=not all(one.put_out for one in sources))
        for one in sources:
            one.put_out = True

    def let_go(self, run: Run, now: float) -> None:
        """End the series of the run if it has expired. It is dropped if none of its files is left."""
        expired = self.runs.expired(run, now)
        if expired and not run.expired:
            self._close(run, "it ended longer ago than run_retention", now)
            run.state.history.thin(_EXPIRED_POINTS)
            self.request(run)
            self.touch(run.log.name)
        run.expired = expired
        self.forget_expired(run.log)

    def forget_expired(self, log: Log) -> None:
        """Drop the expired runs of a log without files."""
        for run in [] if log.sources or self.awaited[log.name] > 0 else [*log.runs.values()]:
            if run.expired:
                self.runs.drop(run)
                self.touch(log.name)

    def _close(self, run: Run, why: str, now: float) -> None:
        """End the open incidents of a run that is dropped."""
        self.of_run(run, lambda: give_up(run.book, run.state, now, why), failed=bool(run.failed))

    def set_clock(self, seconds: float) -> None:
        """Set Unix time minus instant: at the start, and when the wall clock was set."""
        if seconds != self.wall_offset:
            self.wall_offset = self.runs.wall_offset = seconds
            self.changed = True
            for run in self.runs.values():
                run.state.wall_offset = seconds
                self.request(run)

    def of_run(self, run: Run, do: Callable[[], Sequence[Transition]], *, failed: bool = False) -> None:
        """Call `do` for a run and keep its transitions. An exception quarantines this run only. `failed`: the run is
        quarantined already.
        """
        if bool(run.failed) is not failed:
            return
        try:
            self.transitions += do()
        except Exception as error:  # noqa: BLE001 - a failure is confined to this run
            why = self.quarantine.note("run", run.state.name, error)
            run.failed = f"not monitored until the monitor is restarted: {why}; the traceback is in the monitor's log"
            run.state.lost = True
            self.request(run)

    def archive_or_watch(self, run: Run, now: float, *, new: bool) -> None:
        """The known files of a run were read to their ends: decide whether the run is historical or live."""

        def do() -> tuple[()]:
            before = run.historical, run.state.live
            came_back(run, now, all_read=self.awaited[run.log.name] <= 0)
            self.runs.archive_or_watch(run, now, new=new)
            evaluation, run.backlog_evaluation = run.backlog_evaluation, None
            if evaluation is not None and run.historical:
                run.book.history += evaluation.end(self.evaluator_of_backlog, run.state.history.zone)
            if run.state.live or before != (run.historical, run.state.live):
                self.touch(run.log.name)
            return ()

        self.of_run(run, do)

    def run_of(self, source: Source, now: float) -> Run | None:
        """Return the run of the source's present lines, new or saved; None if there are too many live runs."""
        if source.run is not None:
            return source.run
        log, label = source.log, source.log.label_of(source)
        name = experiment_name(log.name, label)
        if self.runs.full(pushed=source.ordered is not None) and not self._make_room(name, source, now):
            return None
        if not label:
            self.runs.claim(self.saved, name, name)  # a saved run, of which a new file came first
        return log.runs.get(label) or self.runs.begin(log, label, now)
