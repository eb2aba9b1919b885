"""Judging: at a tick, the runs that are due. Beside the judgement: what Slurm knows of ends, and what is recorded.

Law: lines that wait for others (folding.py) hold no judgement back: a run is judged by what was folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from monitor.core.folding import Folding
from monitor.core.jobs import Jobs
from monitor.core.nodes import Nodes
from monitor.core.runs import Run
from monitor.core.watched import Watched
from monitor.incidents import Transition
from monitor.run import derived
from monitor.run.job import proofs

_BACKLOG_QUIET = 1.0  # seconds without backlog after which all files of a run are believed to be read


class Judging:
    """Keeps nothing of its own."""

    def __init__(self, watched: Watched, folding: Folding, jobs: Jobs, nodes: Nodes) -> None:
        self._watched = watched
        self._folding = folding
        self._jobs = jobs
        self._nodes = nodes

    def tick(self, now: float) -> list[Transition]:
        """Judge the runs that are due; all transitions since the last call."""
        self._fold_ends(now)
        self._folding.release_overdue(now)
        self._folding.settle(now)
        for name in self._watched.schedule.names(self._watched.runs, now):
            run = self._watched.runs.get(name)
            if run is None:
                self._watched.schedule.forget(name)
                continue
            if self._watched.sources.catching_up(run.log):
                continue
            if run.failed:
                self._tell_failed(run, now)
                continue
            if (run.deferred or run.taken_early) and now - run.backlog_at >= _BACKLOG_QUIET:
                self._folding.take_deferred(run, now)
            self._watched.of_run(run, partial(self._judge_run, run, now))
        transitions, self._watched.transitions = self._watched.transitions, []
        return transitions

    def _fold_ends(self, now: float) -> None:
        """How launches ended of which the log says nothing, or less."""
        for name in self._jobs.due(now):
            run = self._watched.runs.get(name)
            if run is not None:
                self._watched.of_run(run, partial(self._take_proofs, run, now))
                self._watched.schedule.request(run)

    def _take_proofs(self, run: Run, now: float) -> Sequence[Transition]:
        return self._watched.judge.take(run, proofs(run.state), "slurm", now, True)

    def _judge_run(self, run: Run, now: float) -> list[Transition]:
        if not self._watched.schedule.take(run, now):
            return []
        before = run.state.launch.hung, run.state.launch.phase
        transitions = self._watched.judge.judge(run, now)
        if transitions or before != (run.state.launch.hung, run.state.launch.phase):
            run.dirty = self._watched.changed = True
        run.dirty = run.dirty or derived.run_state(run.state, run.archived) != run.shown_state
        if self._nodes.record(run):
            self._watched.changed = True
        if self._watched.let_go(run, now):
            self._watched.changed = True
        return transitions

    def _tell_failed(self, run: Run, now: float) -> None:
        """Once, unless it is an old log that nobody waits for."""
        self._watched.schedule.forget(run.state.name)
        if not run.failed_told:
            run.failed_told = True
            written = (self._watched.sources[name].mtime for name in self._watched.sources.of_run(run.log))
            silent = now + self._watched.wall_offset - max(written, default=0.0)
            recent = silent < self._watched.config.detectors.hang.starting
            if run.state.proven and not run.archived and (run.state.live or recent):
                self._watched.of_run(run, lambda: self._watched.judge.put_aside(run, run.failed, now), failed=True)
        self._watched.let_go(run, now)
