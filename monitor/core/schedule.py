"""Which run is judged when.

A run that something came for is judged at the next tick, unless its backlog is still read. The others are looked at
once a second, for what time alone may change: budgets are of 60 s and more. Of these a run that only trains is judged
every 15 s: no detector has asked for more, no incident is open, and no deadline is near.
"""

from megatron_monitor.core.runs import Run, Runs
from megatron_monitor.judgement import Judge

_INTERVAL = 1.0  # seconds between two looks at all runs
_CALM_INTERVAL = 15.0  # seconds between two judgements of a run that only trains


class Schedule:
    """The runs that are due at a tick. Instants are those of the core."""

    def __init__(self, judge: Judge, touched: set[str]) -> None:
        """`touched`: the logs that are to be saved."""
        self._judge = judge
        self._touched = touched
        self._dirty: dict[str, bool] = {}  # names of the runs that something came for, in the order of their lines
        self._swept_at = float("-inf")

    def request(self, run: Run, *, save: bool = True) -> None:
        """Something came for it: it is to be judged at the next tick, shown anew and, if that was news, saved."""
        run.dirty = self._dirty[run.state.name] = True
        if save:
            self._touched.add(run.log)

    def names(self, runs: Runs, now: float) -> list[str]:
        """The runs to be looked at now: all of them once a second, else those that something came for."""
        if 0.0 <= now - self._swept_at < _INTERVAL:
            return list(self._dirty)
        self._swept_at = now
        return list(runs)

    def take(self, run: Run, now: float) -> bool:
        """Is it to be judged now? Then it is taken to have been."""
        requested = self._dirty.pop(run.state.name, False)
        if not run.state.proven or not (requested or self._is_due(run, now)):
            return False
        run.judged_at = now
        return True

    def forget(self, name: str) -> None:
        """There is no run of that name."""
        self._dirty.pop(name, None)

    def _is_due(self, run: Run, now: float) -> bool:
        idle = now - run.judged_at
        return not 0.0 <= idle < _INTERVAL and (not 0.0 <= idle < _CALM_INTERVAL or not self._is_calm(run, now))

    def _is_calm(self, run: Run, now: float) -> bool:
        """It only trains, or is archived: time alone changes nothing yet. A replay does not judge it at all then."""
        if run.book.open or run.book.pending:
            return False
        return run.archived or (
            run.state.live and run.state.launch.phase != "exiting" and now < self._judge.calm_until(run)
        )
