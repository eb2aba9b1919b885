"""One run under judgement: events in, transitions out. The daemon and `replay` drive the same object.

Time is an argument. A detector that sees each step says itself when its verdict may have changed, so that a million
healthy iterations cost a million small updates and hardly a judgement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from monitor.config import Config
from monitor.detectors import DETECTORS, Detector, crash
from monitor.detectors.verdict import Verdict
from monitor.incidents import IncidentBook, Transition, judge
from monitor.run.ends import believe, settle
from monitor.run.fold import fold
from monitor.run.state import RunState
from parsers.events import Event, LogEvent

_OF_ARCHIVED = ("source_lost",)  # an archived run raises nothing else


@dataclass(slots=True)
class Judged:
    """A run's state, its open incidents, and whether it is archived: ended or stale when opened, never alerted."""

    state: RunState
    book: IncidentBook = field(default_factory=IncidentBook)
    archived: bool = False


class Judge:
    """The detectors with their settings. Holds nothing of any run."""

    def __init__(self, config: Config, *, repeats: bool = True) -> None:
        self._repeat_interval = config.repeat_interval if repeats else math.inf
        self._exiting: float = config.detectors.hang.exiting
        self._crash: crash.CrashSettings = config.detectors.crash
        self._soonest: float = config.detectors.hang.minimum / 2
        self._hold: dict[str, float] = {str(kind): seconds for kind, seconds in config.hold.items()}
        self._detectors: list[tuple[str, Detector, Any]] = [
            (name, detector, getattr(config.detectors, name)) for name, detector in DETECTORS.items()
        ]
        self._on_step = [(d.on_step, settings) for _, d, settings in self._detectors if d.on_step is not None]
        self._deadlines = [(d.deadline, settings) for _, d, settings in self._detectors if d.deadline is not None]
        self._timed = frozenset(name for name, d, _ in self._detectors if d.deadline is not None)
        self._listeners: dict[type[Event], list[tuple[Any, Any]]] = {}
        for _, detector, settings in self._detectors:
            for kind in detector.listens:
                self._listeners.setdefault(kind, []).append((detector.on_event, settings))

    def take(self, run: Judged, entries: Sequence[LogEvent], source: str, at: float, live: bool) -> list[Transition]:
        """The events of one delivery, in their order."""
        return [item for entry in entries for item in self._take(run, entry, source, at, live)]

    def _take(self, run: Judged, entry: LogEvent, source: str, at: float, live: bool) -> list[Transition]:
        """Fold one event and let the detectors see it. Judged at once where a verdict may have changed, so that what
        begins and ends within one reading is told too; not while a backlog is read.
        """
        state = run.state
        before = state.iterations_total
        fold(state, entry, source, at, live)
        stepped = state.iterations_total != before
        attention = False
        if stepped:
            for on_step, settings in self._on_step:
                if on_step(state, settings):
                    attention = True
            if run.book.open and not self._timed.isdisjoint(run.book.open):
                attention = True
        for on_event, settings in self._listeners.get(type(entry.event), ()):
            if on_event(state, entry.event, settings):
                attention = True
        if attention and live and state.live and not run.archived:
            return self.judge(run, at)
        return []

    def judge(self, run: Judged, now: float) -> list[Transition]:
        """Ask every detector, bring the book up to date, and say what changed."""
        settle(run.state, now, self._exiting)
        if run.state.attempt.doubtful:
            due = crash.due(run.state, self._crash)
            if due is not None and now >= due:
                believe(run.state)
        transitions = judge(run.book, run.state, self._verdicts(run, now), now, self._repeat_interval, self._hold)
        hung = run.book.open.get("hang")
        run.state.hung = hung is not None and hung.severity == "critical"
        if transitions:
            _remember_fired(run.state, transitions)
        return transitions

    def calm_until(self, run: Judged) -> float:
        """No deadline lies before this instant: cheap to ask, where `deadline` is asked at every step of a replay.

        A run that has not failed has only the hang's deadlines, and none of them comes before half the least budget.
        """
        state = run.state
        if state.progress_at is None or state.phase == "crashed":
            return -math.inf
        return state.progress_at + self._soonest

    def deadline(self, run: Judged, now: float) -> float | None:
        """The next instant after `now` at which time alone may change a verdict."""
        instants = [deadline(run.state, now, settings) for deadline, settings in self._deadlines]
        return min((at for at in instants if at is not None), default=None)

    def _verdicts(self, run: Judged, now: float) -> list[Verdict]:
        return [
            detector.check(run.state, now, settings)
            for name, detector, settings in self._detectors
            if not run.archived or name in _OF_ARCHIVED
        ]


def _remember_fired(state: RunState, transitions: Iterable[Transition]) -> None:
    """Series that were once 1 stay as 0: they must not vanish between two scrapes."""
    state.fired = sorted({*state.fired, *((item.incident, item.severity) for item in transitions)})
