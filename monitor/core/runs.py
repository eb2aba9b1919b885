"""The registry of runs: how one begins, is archived, is lost from sight, and makes room for others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from monitor.config import Config
from monitor.core.saved import Saved
from monitor.detectors import hang
from monitor.judgement import Judged
from monitor.metrics import RunSnapshot
from monitor.run.history import History
from monitor.run.phases import ENDED
from monitor.run.state import RunState
from parsers.events import LogEvent

_ZONES = 86400.0  # seconds: more than any two zones differ by, a stamp names none
_COPYING = 100.0  # times as fast as the wall clock: stamps that come so fast are copied, not written
_LEAST_COPIED = 600.0  # seconds of stamps in one delivery from which their pace means anything


def stamped_long_ago(state: RunState, before: float) -> bool:
    """Whether the last progress was before that instant by its own stamp: the file may be new, a copy of an old log."""
    stamp = state.progress_clock
    return stamp is not None and stamp + _ZONES < before + state.wall_offset


def being_copied(state: RunState, stamp_before: float | None, seconds: float, now: float) -> bool:
    """Whether an old log grows faster than a training could write it. `seconds` since it was read before."""
    if stamp_before is None or state.progress_clock is None or not stamped_long_ago(state, now):
        return False
    return state.progress_clock - stamp_before > max(_LEAST_COPIED, _COPYING * seconds)


@dataclass(slots=True)
class Run(Judged):
    """A judged run, when it is judged next (schedule.py), and what of it was last shown (view.py)."""

    deferred: list[tuple[LogEvent, str, float]] = field(default_factory=list)
    """(event, source, instant): ends and failures from files that hold no training loop (a job's `.err`), until the
    loop's file is read."""
    backlog_at: float = 0.0
    """When lines of its backlog last came. An instant."""
    judged_at: float = 0.0
    dirty: bool = True
    """What is shown of it is older than its state."""
    shown: RunSnapshot | None = None
    page_due: bool = False
    """The page and the charts in `shown` are older than its samples."""
    shown_state: str = ""
    shown_at: float = 0.0


class Runs:
    """By name, at most `max_runs` of them."""

    def __init__(self, config: Config, *, charts: bool) -> None:
        """`charts`: whether what the charts draw is kept."""
        self.by_name: dict[str, Run] = {}
        self.wall_offset = 0.0
        self._config = config
        self._charts = charts

    def get(self, name: str) -> Run | None:
        """None if nothing is known of it."""
        return self.by_name.get(name)

    def begin(self, name: str, now: float) -> Run:
        """A new one."""
        return self._add(Run(RunState(name=name, read_at=now, history=History(kept=self._charts))))

    def claim(self, saved: Saved, saved_name: str, name: str) -> None:
        """A saved run goes on under its present name, unless one of that name is there."""
        known = saved.claim_run(saved_name)
        if known is not None and name not in self.by_name:
            known.state.name = name
            self._add(Run(known.state, known.book, known.archived))

    def _add(self, run: Run) -> Run:
        run.state.wall_offset = self.wall_offset
        self.by_name[run.state.name] = run
        return run

    def make_room(self, busy: Callable[[str], bool]) -> str | None:
        """Drop the run that has been dead for longest and is not `busy`; its name, None if all of them live."""
        dead = [
            (run.state.progress_at or 0.0, name)
            for name, run in self.by_name.items()
            if not run.book.open and not busy(name) and (not run.state.live or run.state.phase in ENDED)
        ]
        if not dead:
            return None
        name = min(dead)[1]
        del self.by_name[name]
        return name

    @property
    def full(self) -> bool:
        """Are there as many as may be?"""
        return len(self.by_name) >= self._config.max_runs

    def drop_expired(self, run: Run, now: float) -> bool:
        """Drop a run that ended, or was archived, longer ago than the retention. True if it was."""
        if run.archived and run.book.open:
            return False
        over = run.archived or run.state.phase in ENDED
        if not over or now - run.state.read_at <= self._config.run_retention:
            return False
        del self.by_name[run.state.name]
        return True

    def archive_or_watch(self, run: Run, now: float) -> None:
        """Its backlog was read: one that has ended or is stale is archived, one that may still move is watched."""
        state = run.state
        if not state.live and state.progress_at is not None:
            allowed = hang.budget(state, self._config.detectors.hang).seconds
            stale = now - state.progress_at > allowed or stamped_long_ago(state, now - allowed)
            run.archived = stale or state.phase in ENDED
            state.live = not run.archived

    def note_lost(self, run: Run, sources: set[str]) -> None:
        """Its `sources` are followed: it is lost from sight where none of them can be read."""
        followed = sources | set(run.state.unreadable)
        run.state.lost = bool(followed) and followed <= set(run.state.unreadable)
