"""How a run ended, in the words that people put into a table: OOM, hang, time limit. Pure.

`Tallies` keeps what a report needs of a run's events beyond what its state keeps; monitor/once.py calls `look` after
each event that was folded. The daemon keeps nothing of this.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from monitor.run.log_clock import log_clock
from monitor.run.state import RunState
from parsers.events import ArgumentsDumped, EngineStepLogged, IterationLogged, LogEvent, TrainerLogged, TrainerSummary

_WORDS = {
    "cuda_oom": "OOM",
    "host_oom": "host OOM",
    "time_limit": "time limit",
    "preempted": "preempted",
    "node_failure": "node failure",
    "killed": "killed",
    "stopped": "stopped",
    "disk_full": "disk full",
    "ecc": "ECC error",
    "nccl": "NCCL failure",
}
_SILENT = (
    3.0  # so many iterations of silence before an end make it a hang, and a minute at least: as in the hang detector
)
_SILENT_AT_LEAST = 60.0  # seconds


@dataclass(slots=True)
class Tally:
    """Of one run."""

    last_iteration_clock: float | None = None
    """When the last iteration was written by the log's own clock, Unix seconds; None where it prints no times."""
    summary_rate: float | None = None
    """Samples per second by the Trainer's last word."""
    arguments: dict[str, str] = field(default_factory=dict)
    """The last arguments dump."""


class Tallies:
    """By run name."""

    def __init__(self) -> None:
        self.of: dict[str, Tally] = {}

    def look(self, state: RunState, entry: LogEvent, _at: float) -> None:
        """See an event that was just folded."""
        event = entry.event
        if isinstance(event, IterationLogged | EngineStepLogged | TrainerLogged):
            if event.logged_at is not None:
                self._tally(state).last_iteration_clock = log_clock(event.logged_at)
        elif isinstance(event, ArgumentsDumped):
            self._tally(state).arguments.update(event.values)
        elif isinstance(event, TrainerSummary) and event.samples_per_second:
            self._tally(state).summary_rate = event.samples_per_second

    def _tally(self, state: RunState) -> Tally:
        return self.of.setdefault(state.name, Tally())


def outcome(state: RunState, run_state: str, tally: Tally | None) -> str:
    """One or a few words; `ok` for a run that ended by itself, `running` for one that may go on."""
    if state.watchdog_ranks:
        return "hang"
    silence = silent_before_end(state, tally)
    if run_state == "crashed":
        failure = state.failure.failure if state.failure else "unknown"
        if silence is not None and failure in ("time_limit", "killed", "stopped", "unknown"):
            return "hang"
        return _WORDS.get(failure, "crash")
    if run_state == "hung":
        return "hang"
    if run_state == "finished":
        return "ok"
    if run_state == "lost":
        return "incomplete" if state.iterations_total else "never started"
    return "running"


def remark(state: RunState, outcome_word: str, tally: Tally | None) -> str | None:
    """The note on the end; None where nothing went wrong."""
    last, total = state.latest.iteration, state.train_iterations
    where = "before the first iteration" if last is None else f"at iteration {last}" + (f" of {total}" if total else "")
    failure = state.failure
    if outcome_word in ("ok", "running"):
        return "no iteration was logged" if outcome_word == "ok" and last is None else None
    if outcome_word == "hang":
        if state.watchdog_ranks:
            count = len(state.watchdog_ranks)
            return f"hang {where}: {failure.message if failure else 'NCCL watchdog'}, {count} ranks"
        silence = silent_before_end(state, tally)
        ended = f", ended by {failure.failure.replace('_', ' ')}" if failure and silence else ""
        return f"hang {where}" + (f": {silence:.0f} s of silence{ended}" if silence else f" while {state.phase}")
    if outcome_word == "incomplete":
        inside = f" while {state.phase}" if state.phase in ("evaluating", "saving", "loading") else ""
        return f"the log ends {where}{inside} and does not say why"
    if outcome_word == "never started":
        return "no iteration was finished"
    message = f": {failure.message}" if failure and outcome_word == "crash" and failure.message else ""
    return f"{outcome_word} {where}{_shortened(message)}"


def silent_before_end(state: RunState, tally: Tally | None) -> float | None:
    """Seconds from the last iteration to the end by the log's own clock, where too long for a healthy run."""
    failure = state.failure
    if failure is None or tally is None or tally.last_iteration_clock is None or state.log_clock_last is None:
        return None
    pace = state.pace.predicted() or state.latest.seconds_per_iteration or 0.0
    silence = state.log_clock_last - tally.last_iteration_clock
    allowed = max(_SILENT_AT_LEAST, _SILENT * pace * (state.log_interval or 1))
    if state.phase_history and "evaluating" in (phase for _, phase in state.phase_history[-2:]):
        return None  # it evaluated or saved: nobody knows how long that may take
    return silence if silence > allowed else None


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 120 else text[:117] + "..."
