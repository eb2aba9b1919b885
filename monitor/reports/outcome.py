"""How a run ended, in the words of a table: OOM, hang, time limit. Pure.

`Tally` keeps what a report needs of a run's events beyond its state. archive.py calls its `look` after each folded
event. The daemon does not use it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from megatron_monitor.parsers.events import LogEvent, TrainerSummary
from megatron_monitor.run.state import RunState
from megatron_monitor.source_clock import SilenceMeter

_NAMES = {"cuda_oom": "OOM", "host_oom": "host OOM", "ecc": "ECC error", "nccl": "NCCL failure"}
_AS_CALLED = ("time_limit", "preempted", "requeued", "node_failure", "killed", "stopped", "disk_full")
# iterations of silence before an end that make it a hang, at least a minute, as in the rule `hang`
_SILENT_ITERATIONS = 3.0
_SILENT_AT_LEAST = 60.0  # seconds


@dataclass(slots=True)
class Tally:
    """Facts of one run."""

    silences: dict[str, SilenceMeter] = field(default_factory=dict)
    """Stream -> its progress by the log's own clock."""
    summary_rate: float | None = None
    """Samples per second in the Trainer's final dict."""

    def look(self, entries: Sequence[LogEvent], source: str) -> None:
        """Process folded events of a stream."""
        silence = self.silences.setdefault(source, SilenceMeter(source))
        for entry in entries:
            silence.see(entry)
            event = entry.event
            if isinstance(event, TrainerSummary) and event.samples_per_second:
                self.summary_rate = event.samples_per_second


def outcome(state: RunState, run_state: str, tally: Tally) -> str:
    """Return one or a few words: `ok` for a run that ended by itself, `running` for one that may continue."""
    attempt = state.attempt
    if attempt.watchdog_ranks:
        return "hang"
    silence = silent_before_end(state, tally)
    if run_state in ("crashed", "stopped"):
        failure = attempt.failure.failure if attempt.failure else "unknown"
        if silence is not None and failure in ("time_limit", "killed", "stopped", "unknown"):
            return "hang"
        return failure.replace("_", " ") if failure in _AS_CALLED else _NAMES.get(failure, "crash")
    if run_state == "lost":
        return "incomplete" if state.iterations_total else "never started"
    return {"hung": "hang", "finished": "ok"}.get(run_state, "running")


def remark(state: RunState, outcome_word: str, tally: Tally) -> str | None:
    """Return the note about the end. None: nothing went wrong."""
    attempt = state.attempt
    last, total = attempt.latest.iteration, attempt.train_iterations
    where = "before the first iteration" if last is None else f"at iteration {last}" + (f" of {total}" if total else "")
    failure = attempt.failure
    if outcome_word in ("ok", "running"):
        return "no iteration was logged" if outcome_word == "ok" and last is None else None
    if outcome_word == "hang":
        return f"hang {where}{_hang(state, tally)}"
    if outcome_word == "incomplete":
        inside = f" while {attempt.phase}" if attempt.phase in ("evaluating", "saving", "loading") else ""
        return f"the log ends {where}{inside} and does not say why"
    if outcome_word == "never started":
        return "no iteration was finished"
    message = f": {failure.message}" if failure and outcome_word == "crash" and failure.message else ""
    message = " ".join(message.split())
    return f"{outcome_word} {where}{message if len(message) <= 120 else message[:117] + '...'}"


def _hang(state: RunState, tally: Tally) -> str:
    attempt, failure, silence = state.attempt, state.attempt.failure, silent_before_end(state, tally)
    if attempt.watchdog_ranks:
        return f": {failure.message if failure else 'NCCL watchdog'}, {len(attempt.watchdog_ranks)} ranks"
    ended = f", ended by {failure.failure.replace('_', ' ')}" if failure and silence else ""
    return f": {silence:.0f} s of silence{ended}" if silence else f" while {attempt.phase}"


def silent_before_end(state: RunState, tally: Tally) -> float | None:
    """Return the seconds from the last iteration to the end by the log's own clock, if they are too long for a healthy
    run.
    """
    if state.attempt.failure is None:
        return None
    for source in tally.silences.values():
        source.close()
    moved = [source.progress_at for source in tally.silences.values() if source.progress_at is not None]
    last = [source.last_at for source in tally.silences.values() if source.last_at is not None]
    silence = max(last) - max(moved) if moved and last else 0.0
    expected = _expected(state)
    return silence if expected is not None and silence > max(_SILENT_AT_LEAST, _SILENT_ITERATIONS * expected) else None


def _expected(state: RunState) -> float | None:
    """Return the seconds to the next line. None: it evaluates for an unknown time."""
    attempt = state.attempt
    pace = attempt.pace.predicted() or attempt.latest.seconds_per_iteration or 0.0
    expected = pace * (attempt.log_interval or 1)
    if "evaluating" not in (phase for _, phase in state.phase_history[-2:]):
        return expected
    return expected + pace * attempt.topology.eval_iters if attempt.topology.eval_iters else None
