"""The registry of runs: how one begins, is archived, is lost from sight, and makes room for others."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from megatron_monitor.charts.history import History
from megatron_monitor.config import Config
from megatron_monitor.core.groups import Groups
from megatron_monitor.core.saved import UnclaimedState
from megatron_monitor.detectors import hang
from megatron_monitor.evaluation import MonitoredRun
from megatron_monitor.identity.naming import experiment_name, pid_file_of
from megatron_monitor.log_tail import Excerpt
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.run.dumps import DumpChecks
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.records import Experiment
from megatron_monitor.run.state import RunState
from megatron_monitor.snapshot import RunSnapshot

_NEWS = 60.0  # seconds in which a directory is searched again, whatever it holds
_ZONES = 86400.0  # seconds: more than any two zones differ by, a stamp names none
_COPYING = 100.0  # times as fast as the wall clock: stamps that come so fast are copied, not written
_LEAST_COPIED = 600.0  # seconds of stamps in one delivery from which their pace means anything
_DEAD = 1.0  # seconds for which it is remembered when the first of the dead died
_RESTART = 600.0  # seconds: an upgrade, or the longest pause of a supervisor; a cluster that was down takes longer


def stamped_long_ago(state: RunState, before: float) -> bool:
    """Whether the last progress was before that instant by its own stamp: the file may be new, a copy of an old log."""
    stamp = state.attempt.progress_clock
    return stamp is not None and stamp + _ZONES < before + state.wall_offset


def being_copied(state: RunState, stamp_before: float | None, seconds: float, now: float) -> bool:
    """Whether an old log grows faster than a training could write it. `seconds` since it was read before."""
    attempt = state.attempt
    if stamp_before is None or attempt.progress_clock is None or not stamped_long_ago(state, now):
        return False
    return attempt.progress_clock - stamp_before > max(_LEAST_COPIED, _COPYING * seconds)


@dataclass(slots=True)
class Run(MonitoredRun):
    """A judged run, when it is judged next, and what of it was last shown (view.py)."""

    deferred: list[tuple[LogEvent, str, float]] = field(default_factory=list)
    """(event, source, instant): ends and failures from files that hold no training loop (a job's `.err`), until the
    loop's file is read."""
    taken_early: list[tuple[LogEvent, str, float]] = field(default_factory=list)
    """The same of files that hold a set-up and no steps: taken at once, and again if the loop's file, which is read
    behind them, was written before."""
    backlog_at: float = 0.0
    """When lines of its backlog last came. An instant."""
    next_check: float = float("-inf")
    """When time alone may change what is said of it (watched.py); -inf: something came for it. An instant."""
    actions: list[str] = field(default_factory=list)
    """What remediations would do, do and did, in words (monitor/advice/)."""
    dirty: bool = True
    """What is shown of it is older than its state."""
    shown: RunSnapshot | None = None
    made: int = 0
    """What in `shown` is as new as its samples: 1 the page, 2 charts and advice, too."""
    shown_state: str = ""
    failed: str = ""
    """What the monitor's own code failed by at it: it is put aside (aside.py)."""
    failure_logged: bool = False
    notes: dict[str, Any] = field(default_factory=dict)
    """What extensions remember of it, by their names."""
    looked: DumpChecks = field(default_factory=DumpChecks)
    """At the flight recorder's dumps of its present trouble."""
    away: bool = False
    """The daemon was away, and its files are not all read to their ends again."""
    dated: tuple[float, float | None, int] | None = None
    """Of a saved run, its last progress: the instant, the stamp of its line if it had one, and its iterations. None
    where lines may be missing."""
    shown_at: float = 0.0
    identity: dict[str, Any] = field(default_factory=dict)
    """Its job and its streams, each with the reason (belonging.py)."""
    excerpts: dict[str, Excerpt] = field(default_factory=dict)
    """Of each open incident, by its kind: the lines of the log around the one that it refers to."""

    @property
    def log(self) -> str:
        """The run that its sources are known by: its own name, or that of the first experiment in its log."""
        return self.state.experiment.log or self.state.name


class Runs(dict[str, Run]):
    """By name, at most `max_runs` of them."""

    def __init__(self, config: Config, *, charts: bool) -> None:
        """`charts`: whether what the charts draw is kept."""
        super().__init__()
        self.wall_offset = 0.0
        self._config = config
        self._charts = charts
        self._of_log = Groups()
        self._dead_at, self._first_dead = float("-inf"), 0.0  # when it was looked up which of the dead moved first

    def drop(self, run: Run) -> None:
        """Nothing is left of it."""
        del self[run.state.name]
        self._of_log.remove(run.log, run.state.name)

    @property
    def logs(self) -> Iterable[str]:
        """Those of which there is a run."""
        return self._of_log

    def of_log(self, log: str) -> list[Run]:
        """That of the log's name, and those of its other experiments."""
        return [self[name] for name in self._of_log.of(log)]

    def begin(self, name: str, now: float, experiment: Experiment | None = None) -> Run:
        """A new one; `experiment` is given where it is not the first of its log."""
        state = RunState(name=name, read_at=now, history=History(kept=self._charts))
        state.experiment = experiment or state.experiment
        return self._add(Run(state))

    def claim(self, saved: UnclaimedState, saved_name: str, name: str) -> None:
        """A saved run and the other experiments of its log go on under their present names, unless such are there."""
        for known in saved.take_runs(saved_name):
            state, experiment = known.state, known.state.experiment
            if experiment.log:
                state.experiment = replace(experiment, log=name)
            present = experiment_name(name, experiment.label)
            if present not in self:
                state.name = present
                if state.live and state.coverage.until is None:
                    state.coverage.unconfirmed = state.coverage.unconfirmed or 0.0
                run = self._add(Run(state, known.book, known.historical))
                if state.progress_at is not None:
                    run.dated = state.progress_at, state.attempt.progress_clock, state.iterations_total

    def _add(self, run: Run) -> Run:
        run.state.wall_offset = self.wall_offset
        run.state.pid_file = pid_file_of(run.state.name, run.state.sources, self._config.runs)
        self[run.state.name] = run
        self._of_log.add(run.log, run.state.name)
        return run

    def make_room(self, busy: Callable[[str], bool]) -> Run | None:
        """Drop the run that has been dead for longest and is not `busy`, and give it; None if all of them live."""
        dead = self._dead(busy)
        if not dead:
            return None
        run = self[min(dead)[-1]]
        self.drop(run)
        return run

    def died_since(self, at: float, busy: Callable[[str], bool], now: float) -> bool:
        """Have all of the dead moved since `at`? As far as that was known a second before `now`: an archive asks for
        each of its files.
        """
        if not 0.0 <= now - self._dead_at < _DEAD:
            self._dead_at, self._first_dead = now, min((at for _, at, _ in self._dead(busy)), default=float("-inf"))
        return at < self._first_dead

    def _dead(self, busy: Callable[[str], bool]) -> list[tuple[bool, float, str]]:
        """(whether something is still told of it: it goes last; when it moved last; its name)"""
        return [
            (bool(run.book.open), run.state.progress_at or 0.0, name)
            for name, run in self.items()
            if (run.historical or not busy(run.log))
            and (run.failed or not run.state.live or run.state.attempt.phase in ENDED)
        ]

    def full(self, *, pushed: bool) -> bool:
        """Are there as many as may be? A tenth of the places is reserved for runs of files: none that is `pushed`."""
        reserved = self._config.max_runs // 10 if pushed and len(self._config.runs) > 1 else 0
        return len(self) >= self._config.max_runs - reserved

    def expired(self, run: Run, now: float) -> bool:
        """Whether the run ended, or was archived, longer ago than the retention."""
        if run.historical and run.book.open:
            return False
        over = run.failed or run.historical or run.state.attempt.phase in ENDED
        return bool(over) and now - run.state.read_at > self._config.run_retention

    def archive_or_watch(self, run: Run, now: float, *, new: bool = False) -> None:
        """Its backlog was read: one that has ended or is stale is archived, one that may still move is watched. So is
        one that died just now in a `new` file, between two searches.
        """
        state = run.state
        allowed = hang.budget(state, self._config.detectors.hang).seconds if state.progress_at is not None else 0.0
        old = stamped_long_ago(state, now - allowed)
        if state.live and (run.book.open or not old):  # else its other file, which was read first, has no stamps
            return
        if new and _just_died(run, now):
            run.historical, state.live = False, True
        elif state.progress_at is None:
            run.historical = run.historical or (state.proven and state.attempt.phase in ENDED)
        else:
            run.historical = old or now - state.progress_at > allowed or state.attempt.phase in ENDED
            state.live = not run.historical

    def archive_stale(self, run: Run | None, now: float) -> None:
        """A run of the state file of which nothing can be read: if its budget is over, it ended while nobody looked."""
        if run is None or not run.state.live or run.state.progress_at is None:
            return
        if now - run.state.progress_at > hang.budget(run.state, self._config.detectors.hang).seconds:
            run.historical, run.state.live = True, False


def came_back(run: Run, now: float, *, all_read: bool) -> None:
    """The daemon was away and has read what was written meanwhile, as far as it knows the files yet. They prove the
    silence once they are `all_read`, where that is no progress, or has stamps of its own; not one of long: what held
    the daemon up may have held up the writer.
    """
    state, coverage, since = run.state, run.state.coverage, run.state.coverage.until
    if run.away and since is not None:
        if now - since > _RESTART:
            coverage.unconfirmed = None
        written = None if state.progress_at is None else _stamped_meanwhile(run, state.progress_at)
        if written is not None and 0.0 <= now - written <= _RESTART:
            state.progress_at, coverage.missed_before, coverage.unconfirmed = written, coverage.missed, 0.0
        elif run.dated is not None and state.iterations_total > run.dated[2]:  # whenever it was, it was after that
            state.progress_at = max(since, state.progress_at or since)
            coverage.note_progress(state.progress_at)
        coverage.go_on(now)
        coverage.absent = min(now - since, coverage.unobserved())
    run.away = False
    if all_read:
        coverage.prove()


def _stamped_meanwhile(run: Run, read: float) -> float | None:
    """When progress was written that came while the daemon was away: by its stamp, as far from the instant as stamps
    were before, or by its file's time (`read`), whichever is later: a server's clock may be behind.
    """
    stamp, before = run.state.attempt.progress_clock, run.dated
    if before is None or before[1] is None or stamp is None or stamp <= before[1]:
        return None
    return max(read, stamp + before[0] - before[1])


def _just_died(run: Run, now: float) -> bool:
    """Unless its own clock says that it was long ago: then an old log was copied."""
    state = run.state
    if state.attempt.phase != "crashed" or state.attempt.failure is None or now - state.attempt.failure.at > _NEWS:
        return False
    logged_at, died = state.log_clock_last, state.unix(state.attempt.failure.at)
    return logged_at is None or died is None or abs(died - logged_at) < _ZONES
