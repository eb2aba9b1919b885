"""The registry of runs: how a run begins, becomes historical, and is dropped."""

from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from megatron_monitor.charts.history import History
from megatron_monitor.config import Config
from megatron_monitor.core.backlog_evaluation import BacklogEvaluation
from megatron_monitor.core.logs import Log, Logs
from megatron_monitor.core.saved import SavedRun, UnclaimedState
from megatron_monitor.detectors import hang
from megatron_monitor.evaluation import MonitoredRun
from megatron_monitor.identity.naming import experiment_name
from megatron_monitor.log_tail import Excerpt
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.records import Experiment
from megatron_monitor.run.state import RunState
from megatron_monitor.snapshot import RunSnapshot

_SEARCH_SECONDS = 60.0  # longest time between two searches of a directory
_ZONES = 86400.0  # seconds: more than the difference of any two time zones, which stamps do not name
_COPYING = 100.0  # ratio of the stamps' pace to the wall clock that means a copied log
_MIN_COPIED = 600.0  # seconds of stamps in one delivery from which the pace counts
_ENDED_CACHE = 1.0  # seconds for which the oldest end is cached
_RESTART = 600.0  # seconds: an upgrade or the longest pause of a supervisor; a cluster that was down takes longer


def stamped_long_ago(state: RunState, before: float) -> bool:
    """Return True if the stamp of the last progress is older: a new file may be a copy of an old log."""
    stamp = state.attempt.progress_clock
    return stamp is not None and stamp + _ZONES < before + state.wall_offset


def being_copied(state: RunState, stamp_before: float | None, seconds: float, now: float) -> bool:
    """Return True if an old log grows faster than a training writes. `seconds`: time since the last read."""
    attempt = state.attempt
    if stamp_before is None or attempt.progress_clock is None or not stamped_long_ago(state, now):
        return False
    return attempt.progress_clock - stamp_before > max(_MIN_COPIED, _COPYING * seconds)


@dataclass(slots=True, eq=False, kw_only=True)
class Run(MonitoredRun):
    """A run with its next evaluation and what was last shown of it (view.py)."""

    log: Log
    deferred: list[tuple[LogEvent, str, float]] = field(default_factory=list)
    """(event, source, instant): ends and failures from files without a training loop (a job's `.err`), until the
    loop's file is read."""
    backlog_at: float = 0.0
    """Instant at which lines of its backlog last came."""
    next_check: float = float("-inf")
    """Instant of its next evaluation without news (watched.py); -inf: there is news."""
    actions: list[str] = field(default_factory=list)
    """Texts about what remediations would do, do and did (monitor/advice/)."""
    dirty: bool = True
    """True: what is shown is older than its state."""
    shown: RunSnapshot | None = None
    made: int = 0
    """What in `shown` is as new as the samples: 1: the page; 2: also charts and advice."""
    shown_state: str = ""
    failed: str = ""
    """Why an error in the monitor's own code: it is quarantined (quarantine.py)."""
    failure_logged: bool = False
    logged: tuple[int, bool] = (-1, False)
    """What the monitor's log has of it: (number of the attempt, whether that ended)."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Data of extensions, by their names."""
    away: bool = False
    """True: the daemon was stopped, and not all its files are read to their ends again."""
    dated: tuple[float, float | None, int] | None = None
    """For a saved run, its last progress: (instant, stamp of the line if any, iterations). None if lines may be
    missing."""
    shown_at: float = 0.0
    backlog_evaluation: BacklogEvaluation | None = None
    """Finds the incidents of its backlog, until that is read."""
    identity: dict[str, Any] = field(default_factory=dict)
    """Its job and its streams, each with the reason (attribution.py)."""
    excerpts: dict[str, Excerpt] = field(default_factory=dict)
    """Kind of open incident -> the log's lines around the one to which it refers."""

    def saved(self) -> SavedRun:
        """Return its saved form."""
        return SavedRun(self.state, self.book, self.historical, self.expired, self.deferred)


class Runs(dict[str, Run]):
    """Runs by name, at most `max_runs`."""

    def __init__(self, config: Config, logs: Logs, *, charts: bool) -> None:
        """`charts`: keep the data of the charts."""
        super().__init__()
        self.wall_offset = 0.0
        self._config = config
        self._logs, self._charts = logs, charts
        self._ended_at, self._oldest_end = float("-inf"), 0.0  # instant of the cache, oldest progress of ended runs

    def drop(self, run: Run) -> None:
        """Remove a run."""
        del self[run.state.name]
        del run.log.runs[run.state.experiment.label]
        run.log.point()
        self._logs.leave(run.log)

    def begin(self, log: Log, label: str, now: float) -> Run:
        """Add a new run. `label`: that of its experiment; empty for the first of the log."""
        name = experiment_name(log.name, label)
        state = RunState(name=name, read_at=now, history=History(kept=self._charts))
        if label:
            state.experiment = Experiment(log.name, label)
        evaluation = BacklogEvaluation(name, now + self.wall_offset) if self._charts else None
        return self._add(Run(state, log=log, backlog_evaluation=evaluation))

    def claim(self, saved: UnclaimedState, saved_name: str, name: str) -> None:
        """Continue a saved run and the other experiments of its log under their present names, if these are free."""
        for known in saved.take_runs(saved_name):
            state, experiment = known.state, known.state.experiment
            if experiment.log:
                state.experiment = replace(experiment, log=name)
            present = experiment_name(name, experiment.label)
            if present not in self:
                state.name = present
                if state.live and state.coverage.until is None:
                    state.coverage.unconfirmed = state.coverage.unconfirmed or 0.0
                run = Run(
                    state, known.book, known.historical, known.expired, log=self._logs.named(name),
                    deferred=known.deferred,
                )  # fmt: skip
                self._add(run)
                if state.progress_at is not None:
                    run.dated = state.progress_at, state.attempt.progress_clock, state.iterations_total

    def _add(self, run: Run) -> Run:
        run.state.wall_offset = self.wall_offset
        self[run.state.name] = run.log.runs[run.state.experiment.label] = run
        run.log.point()
        return run

    def make_room(self) -> Run | None:
        """Drop and return the ended run with the oldest progress whose log is read; None if all runs are live."""
        ended = self._ended()
        if not ended:
            return None
        run = self[min(ended)[-1]]
        self.drop(run)
        return run

    def all_ended_since(self, at: float, now: float) -> bool:
        """Return True if all ended runs had progress after `at`. The answer is cached for a second, because an archive
        asks for each of its files.
        """
        if not 0.0 <= now - self._ended_at < _ENDED_CACHE:
            self._ended_at, self._oldest_end = now, min((at for _, at, _ in self._ended()), default=float("-inf"))
        return at < self._oldest_end

    def _ended(self) -> list[tuple[bool, float, str]]:
        """Return (has open incidents, instant of the last progress, name) of each ended run."""
        return [
            (bool(run.book.open), run.state.progress_at or 0.0, name)
            for name, run in self.items()
            if (run.historical or not run.log.unread)
            and (run.failed or not run.state.live or run.state.attempt.phase in ENDED)
        ]

    def full(self, *, pushed: bool) -> bool:
        """Return True if no further run fits. A tenth of `max_runs` is reserved for runs that are not `pushed`."""
        reserved = self._config.max_runs // 10 if pushed and len(self._config.runs) > 1 else 0
        return len(self) >= self._config.max_runs - reserved

    def expired(self, run: Run, now: float) -> bool:
        """Return True if the run ended or became historical longer ago than `run_retention`."""
        if run.historical and run.book.open:
            return False
        over = run.failed or run.historical or run.state.attempt.phase in ENDED
        return bool(over) and now - run.state.read_at > self._config.run_retention

    def archive_or_watch(self, run: Run, now: float, *, new: bool = False) -> None:
        """The backlog was read: make an ended or stale run historical, and any other live.

        A run that crashed just now in a `new` file, between two searches, is live too.
        """
        state = run.state
        timeout = 0.0
        if state.progress_at is not None:
            timeout = hang.progress_timeout(state, self._config.detectors.hang).seconds
        old = stamped_long_ago(state, now - timeout)
        if state.live and (run.book.open or not old):  # otherwise the file read first has no stamps
            return
        if new and _crashed_just_now(run, now):
            run.historical, state.live = False, True
        elif state.progress_at is None:
            run.historical = run.historical or (state.proven and state.attempt.phase in ENDED)
        else:
            run.historical = old or now - state.progress_at > timeout or state.attempt.phase in ENDED
            state.live = not run.historical

    def archive_stale(self, run: Run | None, now: float) -> None:
        """Make a saved run without readable files historical if its progress timeout has passed."""
        if run is None or not run.state.live or run.state.progress_at is None:
            return
        if now - run.state.progress_at > hang.progress_timeout(run.state, self._config.detectors.hang).seconds:
            run.historical, run.state.live = True, False


def came_back(run: Run, now: float, *, all_read: bool) -> None:
    """Apply what was written while the daemon was stopped, as far as its files are read.

    Once they are `all_read`, they prove the silence of a short stop. A long stop proves nothing: its cause may have
    stopped the training too.
    """
    state, coverage, since = run.state, run.state.coverage, run.state.coverage.until
    if run.away and since is not None:
        if now - since > _RESTART:
            coverage.unconfirmed = None
        written = None if state.progress_at is None else _stamped_meanwhile(run, state.progress_at)
        if written is not None and 0.0 <= now - written <= _RESTART:
            state.progress_at, coverage.missed_before, coverage.unconfirmed = written, coverage.missed, 0.0
        elif run.dated is not None and state.iterations_total > run.dated[2]:  # the progress came after `since`
            state.progress_at = max(since, state.progress_at or since)
            coverage.note_progress(state.progress_at)
        coverage.go_on(now)
        coverage.absent = min(now - since, coverage.unobserved())
    run.away = False
    if all_read:
        coverage.prove()


def _stamped_meanwhile(run: Run, read: float) -> float | None:
    """Return the instant of progress written while the daemon was stopped: by its stamp or by its file's time (`read`).

    The later of the two counts, because a file server's clock may be behind. None without stamps.
    """
    stamp, before = run.state.attempt.progress_clock, run.dated
    if before is None or before[1] is None or stamp is None or stamp <= before[1]:
        return None
    return max(read, stamp + before[0] - before[1])


def _crashed_just_now(run: Run, now: float) -> bool:
    """Return True for a crash since the last search, unless its own stamp is old: then an old log was copied."""
    state = run.state
    if (
        state.attempt.phase != "crashed"
        or state.attempt.failure is None
        or now - state.attempt.failure.at > _SEARCH_SECONDS
    ):
        return False
    logged_at, died = state.log_clock_last, state.unix(state.attempt.failure.at)
    return logged_at is None or died is None or abs(died - logged_at) < _ZONES
