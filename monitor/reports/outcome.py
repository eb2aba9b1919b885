"""How a run ended, in the words of a table: OOM, hang, time limit. Pure."""

from collections.abc import Iterable

from megatron_monitor.incidents import Transition
from megatron_monitor.run.state import Attempt, RunState

_NAMES = {"cuda_oom": "OOM", "host_oom": "host OOM", "ecc": "ECC error", "nccl": "NCCL failure"}
_AS_CALLED = ("time_limit", "preempted", "requeued", "node_failure", "killed", "stopped", "disk_full")


def outcome(state: RunState, run_state: str, past: Iterable[Transition]) -> str:
    """Return one or a few words: `ok` for a run that ended by itself, `running` for one that may continue. `past`: the
    incidents of the run, oldest first.
    """
    attempt = state.attempt
    if attempt.watchdog_ranks:
        return "hang"
    if run_state in ("crashed", "stopped"):
        failure = attempt.failure.failure if attempt.failure else "unknown"
        if failure in ("time_limit", "killed", "stopped", "unknown") and hung_at_end(state, past):
            return "hang"
        return failure.replace("_", " ") if failure in _AS_CALLED else _NAMES.get(failure, "crash")
    if run_state == "lost":
        return "incomplete" if state.iterations_total else "never started"
    return {"hung": "hang", "finished": "ok"}.get(run_state, "running")


def remark(state: RunState, outcome_word: str) -> str | None:
    """Return the note about the end. None: nothing went wrong."""
    attempt = state.attempt
    last, total = attempt.latest.iteration, attempt.train_iterations
    where = "before the first iteration" if last is None else f"at iteration {last}" + (f" of {total}" if total else "")
    failure = attempt.failure
    if outcome_word in ("ok", "running"):
        return "no iteration was logged" if outcome_word == "ok" and last is None else None
    if outcome_word == "hang":
        return f"hang {where}{_hang(attempt)}"
    if outcome_word == "incomplete":
        inside = f" while {attempt.phase}" if attempt.phase in ("evaluating", "saving", "loading") else ""
        return f"the log ends {where}{inside} and does not say why"
    if outcome_word == "never started":
        return "no iteration was finished"
    message = f": {failure.message}" if failure and outcome_word == "crash" and failure.message else ""
    message = " ".join(message.split())
    return f"{outcome_word} {where}{message if len(message) <= 120 else message[:117] + '...'}"


def _hang(attempt: Attempt) -> str:
    failure = attempt.failure
    if attempt.watchdog_ranks:
        return f": {failure.message if failure else 'NCCL watchdog'}, {len(attempt.watchdog_ranks)} ranks"
    return f", ended by {failure.failure.replace('_', ' ')}" if failure else f" while {attempt.phase}"


def hung_at_end(state: RunState, past: Iterable[Transition]) -> bool:
    """Return True if the last iteration was followed by a hang, by the incidents of the run."""
    hangs = [one.iteration for one in past if one.incident == "hang" and one.status == "firing"]
    return bool(hangs) and hangs[-1] == state.attempt.latest.iteration
