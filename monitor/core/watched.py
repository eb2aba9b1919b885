"""What the rooms of the core work on together: the followed files, the runs, when they are judged, what happened. The
core is this, and the rooms.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from megatron_monitor.config import Config
from megatron_monitor.core.ended import EndedRuns
from megatron_monitor.core.quarantine import Quarantine
from megatron_monitor.core.runs import Run, Runs, came_back
from megatron_monitor.core.saved import ENDED, LogState, UnclaimedState
from megatron_monitor.core.sources import Source, Sources
from megatron_monitor.core.view import show
from megatron_monitor.evaluation import Evaluator
from megatron_monitor.incidents import Transition
from megatron_monitor.reading import own_rules
from megatron_monitor.run.records import Experiment
from megatron_monitor.snapshot import MonitorCounts

_IDLE = 15.0  # seconds between two judgements of a run that only trains
LOOK = 1.0
"""Seconds between those of the others: budgets are of 60 s and more."""
_NAMED = 100  # runs that are refused and named in the log
_log = logging.getLogger(__name__)


class Watched:
    """One of each, for the loop's thread alone. Instants are those of the core."""

    def __init__(self, config: Config, judge: Evaluator, *, charts: bool) -> None:
        """`charts`: whether what the charts draw is kept."""
        self._charts = charts
        self._wall_offset = 0.0
        self.counts = MonitorCounts()
        """What the monitor counts of itself."""
        self.quarantine = Quarantine(self.counts)
        self.transitions: list[Transition] = []
        """Those since the last tick."""
        self.changed = False
        """Something worth saving happened since the flag was last cleared."""
        self.touched: set[str] = {ENDED}
        """The parts of the state that are not as they were saved last: those of logs by their names."""
        self.ended = EndedRuns()
        self.save_soon = False
        """Something happened that must not be lost: a message is owed, or a file was rotated."""
        self.dormant_seconds = float("inf")
        """A file that was written so long ago, and is no training, is dormant."""
        self.saved = UnclaimedState(LogState())
        """What of the state file no source has claimed yet."""
        self.awaited = Counter[str]()
        """By run, how many of its sources were read before the daemon began, and were neither opened nor found gone."""
        self.begin(config, judge)

    def begin(self, config: Config, judge: Evaluator) -> None:
        """Nothing is followed, and nothing is known of any run."""
        self.config, self.rules, self.judge = config, own_rules(config), judge
        self.sources, self.runs = Sources(self.rules), Runs(config, charts=self._charts)
        self.runs.wall_offset = self.wall_offset
        self._refused: set[str] = set()

    def touch(self, part: str) -> None:
        """The log of that name, or another part of the state, is to be saved."""
        self.touched.add(part)
        self.changed = True

    def request(self, run: Run, *, save: bool = True) -> None:
        """Something came for it: it is to be judged at the next tick, shown anew and, if that was news, saved."""
        run.dirty, run.next_check = True, float("-inf")
        if save:
            self.touched.add(run.log)

    def due(self, now: float) -> list[Run]:
        """The runs to be judged now: something came for them, or time alone may change what is said of them."""
        return [run for run in self.runs.values() if not now < run.next_check <= now + _IDLE]

    def next_check(self, run: Run, now: float) -> float:
        """When time alone may change what is said of it: detectors ask for no more than every 15 s where no incident is
        open and no deadline is near.
        """
        waits = run.book.open or run.book.pending or run.deferred or run.taken_early
        if run.historical and not waits:
            return now + _IDLE
        if waits or not run.state.live or run.state.attempt.phase == "exiting":
            return now + LOOK
        return min(now + _IDLE, max(now + LOOK, self.judge.idle_until(run)))

    def _make_room(self, name: str, source: Source, now: float) -> bool:
        """For the run of that name: the dead that moved first leaves. False: all that are there live, or it is dead
        itself, and was before all of them.
        """
        busy = self.sources.catching_up
        if not source.caught_up and self.runs.died_since(source.mtime - self.wall_offset, busy, now):
            self._put_out([source])
            return False
        if (dropped := self.runs.make_room(busy)) is not None:
            self._close(dropped, "it had ended, and another run needs its place", now)
            self.touch(dropped.log)
            self._put_out(self.sources.of_run(dropped.log))
            return True
        self.counts.add("runs_dropped_total", "refused")
        if name not in self._refused and len(self._refused) < _NAMED:
            self._refused.add(name)
            _log.warning("run=%r is not watched: max_runs=%d others live", name, self.config.max_runs)
        return False

    def _put_out(self, sources: Sequence[Source]) -> None:
        """The dead run of these sources makes room."""
        self.counts.add("runs_dropped_total", "dead", by=not all(one.put_out for one in sources))
        for one in sources:
            one.put_out = True

    def let_go(self, run: Run, now: float) -> None:
        """Drop the run if it has expired; the page keeps what it showed."""
        if self.runs.expired(run, now):
            self._keep_page(run, now)
            self._close(run, "it ended longer ago than run_retention", now)
            self.runs.drop(run)
            self.touch(run.log)

    def _close(self, run: Run, why: str, now: float) -> None:
        """The run is dropped: what is open of it is open no more."""
        self.of_run(run, lambda: self.judge.give_up(run, why, now), failed=bool(run.failed))

    def _keep_page(self, run: Run, now: float) -> None:
        shown = run.shown
        if run.state.proven and not run.failed:
            shown = show(run, now, self.config, self.quarantine)
        if shown is not None:
            self.ended.keep(shown)
            self.touch(ENDED)

    @property
    def wall_offset(self) -> float:
        """Unix time less an instant, seconds: set by the shell as it begins and when the wall clock was set."""
        return self._wall_offset

    @wall_offset.setter
    def wall_offset(self, seconds: float) -> None:
        if seconds != self._wall_offset:
            self._wall_offset = self.runs.wall_offset = seconds
            self.changed = True
            for run in self.runs.values():
                run.state.wall_offset = seconds
                self.request(run)

    def of_run(self, run: Run, do: Callable[[], Sequence[Transition]], *, failed: bool = False) -> None:
        """What is done with a run (`failed`: with one that was put aside); its transitions are kept. What fails at it
        costs the run alone.
        """
        if bool(run.failed) is not failed:
            return
        try:
            self.transitions += do()
        except Exception as error:  # noqa: BLE001 - the boundary of a run
            why = self.quarantine.note("run", run.state.name, error)
            run.failed = f"not watched until the monitor is restarted: {why}; the traceback stands in the monitor's log"
            run.state.lost = True
            self.request(run)

    def archive_or_watch(self, run: Run, now: float, *, new: bool) -> None:
        """Its files were read to their ends, as far as they are known."""

        def do() -> tuple[()]:
            before = run.historical, run.state.live
            came_back(run, now, all_read=self.awaited[run.log] <= 0)
            self.runs.archive_or_watch(run, now, new=new)
            if run.state.live or before != (run.historical, run.state.live):
                self.touch(run.log)
            return ()

        self.of_run(run, do)

    def current(self, source: Source) -> Run | None:
        """The run that the source's lines belong to now, if it has begun."""
        return self.runs.get(self.sources.current(source.run, source))

    def run_of(self, source: Source, now: float) -> Run | None:
        """The run that the source's lines belong to now, new or saved; None if too many live that are watched."""
        name = self.sources.current(source.run, source)
        run = self.runs.get(name)
        if run is not None:
            return run
        if self.runs.full(pushed=source.ordered is not None) and not self._make_room(name, source, now):
            return None
        experiment = None
        if name == source.run:
            self.runs.claim(self.saved, name, name)  # saved, and a file of it came first that was not there then
        else:
            experiment = Experiment(source.run, self.sources.latest(source).label)
        return self.runs.get(name) or self.runs.begin(name, now, experiment)
