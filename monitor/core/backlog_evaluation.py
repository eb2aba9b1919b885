"""Finds the incidents of a run that had ended before it was monitored, while its log is read.

A second state is folded from the same events, on the clock of the lines, as `replay` does. Only the transitions are
kept, and only if the run turns out to be historical. A run of several files has none: their lines are not read in the
order of their times. Neither has a log without times.
"""

import logging
import math
from collections.abc import Sequence

from msgspec.structs import replace

from megatron_monitor.charts.history import History
from megatron_monitor.evaluation import Evaluator, MonitoredRun
from megatron_monitor.incidents import Transition, give_up
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.state import RunState
from megatron_monitor.source_clock import SourceClock, TimedEvent

_log = logging.getLogger(__name__)
_MIN_SILENCE = 60.0  # seconds without a line after which a run has probably ended
_DEADLINE_SECONDS = 10.0  # seconds after the last line until which deadlines count, as in `replay`


class BacklogEvaluation:
    """The evaluation of one run's backlog, on the clock of its lines."""

    def __init__(self, name: str, now: float) -> None:
        """`now`: Unix time."""
        self._now = now
        self._run = MonitoredRun(RunState(name=name, history=History(kept=False)))
        self._run.state.live = True
        self._source = ""
        self._stamper: SourceClock | None = None
        self._failed = False

    def take(self, judge: Evaluator, source: str, entries: Sequence[LogEvent], written: float) -> None:
        """Fold events of the backlog. `written`: Unix time of the file's last write, for stamps without a year."""
        if self._now - written < _MIN_SILENCE:  # it is probably live, and the work would delay its evaluation
            self._failed = True
        if self._stamper is None:
            self._source, self._stamper = source, SourceClock(source, written)
        if source != self._source:
            self._failed = True
        stamper = self._stamper
        self._fold(judge, [timed for entry in entries for timed in stamper.feed(entry)] if not self._failed else [])

    def _fold(self, judge: Evaluator, timed: list[TimedEvent]) -> None:
        run = self._run
        for one in timed:
            one.at = run.clock if one.at == math.inf else max(one.at, run.clock)
        if not timed or self._failed:
            return
        try:
            judge.take(run, timed, self._source, timed[-1].at, True)
        except Exception:  # noqa: BLE001 - the run itself is monitored all the same
            self._failed = True
            _log.exception("run=%r its past incidents are unknown", run.state.name)

    def end(self, judge: Evaluator, zone: float) -> list[Transition]:
        """Return the transitions, oldest first; `zone`: seconds from the log's clock to ours."""
        if self._stamper is not None:
            self._fold(judge, self._stamper.flush())
        if self._failed or self._stamper is None or not self._stamper.scale.dated:
            return []
        run = self._run
        judge.finish(run, run.clock + _DEADLINE_SECONDS)
        if run.state.attempt.phase in ENDED:
            give_up(run.book, run.state, run.clock)
        return [
            replace(one, time=one.time + zone, since=None if one.since is None else one.since + zone)
            for one in run.book.history
        ]
