"""Failures and ends: which line is the cause, which a follower, and when a run is over.

One attempt has one failure, however many ranks and daemons report it: the first fatal line that is no consequence.
"""

from __future__ import annotations

from monitor.run.attempts import count_failure, set_phase
from monitor.run.phases import ENDED
from monitor.run.state import FailureRecord, RunState
from parsers.events import (
    FailureSeen,
    ProcessExited,
    ProcessTerminated,
    ProgramExited,
    TracebackSeen,
    TrainerSummary,
    WatchdogTimedOut,
)

# Programs beside the training whose tracebacks say nothing of it.
_BYSTANDERS = ("wandb", "tensorboard", "nvidia-smi", "aim", "mlflow", "comet")
_RANKS_KEPT = 64
# Python raises these, and a loop may catch them: a batch that does not fit is split or left out, a save is tried again.
# What an aborted process, a driver or another rank tells is final; so is a CUDA error, after which no call succeeds.
_SURVIVABLE = frozenset({"cuda_oom", "disk_full"})


def fold_failure(state: RunState, event: FailureSeen, at: float, text: str) -> bool:
    """A line that names a failure."""
    record = FailureRecord(
        failure=event.failure,
        message=event.message,
        at=at,
        line=text,
        fatal=event.fatal,
        consequence=event.consequence,
        rank=event.rank,
        node=event.node,
        logged_at=event.logged_at,
        exit_code=event.exit_code,
    )
    if not event.fatal:
        if state.failure is None:
            state.failure = record
        return False
    if event.consequence:
        if state.failure is None:
            state.failure = record
        _crash(state, at)
        return False
    known = state.failure
    if known is not None and not known.fatal and known.failure == record.failure and record.exit_code is not None:
        # the launcher's word for what a traceback has told better
        known.fatal, known.exit_code, known.at = True, record.exit_code, at
        _crash(state, at)
        return False
    if known is None or not known.fatal or known.consequence or _more_telling(known, record):
        state.failure = record
    _crash(state, at, survivable=event.failure in _SURVIVABLE and event.exit_code is None and event.pattern is None)
    return False


def _more_telling(known: FailureRecord, new: FailureRecord) -> bool:
    """`unknown` and a bare signal give way to a line that says why."""
    return known.failure in ("unknown", "killed") and new.failure not in ("unknown", "killed", "python_exception")


def _crash(state: RunState, at: float, *, survivable: bool = False) -> None:
    if state.phase == "finished":
        return  # a worker that segfaults after a clean end changes nothing
    attempt = state.attempt
    attempt.failures += 1
    survived = attempt.doubtful and state.phase != "crashed"  # evaluation went on after the last one
    if attempt.first_failure_at is None or survived:
        attempt.first_failure_at = at
        ended = attempt.processes_terminated > 0 or attempt.uncaught_after == attempt.iterations
        attempt.doubtful, attempt.proved_at = survivable and not ended, None
    elif not survivable:
        _prove(state, at)
    if state.phase != "crashed":
        set_phase(state, "crashed", at)


def _prove(state: RunState, at: float) -> None:
    """A process has ended: what failed before was not caught."""
    if state.attempt.doubtful:
        state.attempt.doubtful, state.attempt.proved_at = False, at


def fold_watchdog(state: RunState, event: WatchdogTimedOut, at: float, text: str) -> bool:
    """A NCCL watchdog gave up: the collective hung. Ranks are counted, not lines."""
    if event.rank is not None and event.rank not in state.watchdog_ranks and len(state.watchdog_ranks) < _RANKS_KEPT:
        state.watchdog_ranks.append(event.rank)
    if event.node and event.node not in state.watchdog_nodes and len(state.watchdog_nodes) < _RANKS_KEPT:
        state.watchdog_nodes.append(event.node)
    waited = f" after {event.waited_seconds:.0f} s" if event.waited_seconds else ""
    failure = FailureSeen(
        failure="nccl",
        message=f"NCCL watchdog: {event.operation or 'a collective'} timed out{waited}",
        rank=event.rank,
        node=event.node,
        logged_at=event.logged_at,
    )
    return fold_failure(state, failure, at, text)


def fold_traceback(state: RunState, event: TracebackSeen, at: float, text: str) -> bool:
    """A traceback alone ends nothing: it may be caught, or a bystander's. It names the cause if the end follows."""
    if any(name in (event.script or "") or name in text for name in _BYSTANDERS):
        return False
    if event.top_level:
        state.attempt.uncaught_after = state.attempt.iterations
        _prove(state, at)
    if state.failure is None:
        message = f"{event.exception}: {event.message}" if event.message else event.exception
        state.failure = FailureRecord(
            "python_exception", message, at, text, fatal=False, rank=event.rank, node=event.node
        )
    return False


def fold_process_exit(state: RunState, event: ProcessExited, at: float, text: str) -> bool:
    """A launcher saw a process end."""
    state.attempt.processes_ended += 1
    if event.exit_code == 0:
        if state.phase in ENDED:
            return False
        expected = state.topology.world_size or state.topology.processes_per_node
        over = expected is None or state.attempt.processes_ended >= expected
        set_phase(state, "finished" if over else "exiting", at)
        return True
    if event.exit_code is None and state.phase in ENDED:
        return False
    if state.failure is None:
        state.failure = FailureRecord(
            "unknown", f"a process ended with exit code {event.exit_code}", at, text, node=event.node
        )
    _crash(state, at)
    return False


def fold_process_terminated(state: RunState, _event: ProcessTerminated, at: float, _text: str) -> bool:
    """A launcher ended the other processes: the run is over, whatever the reason was."""
    state.attempt.processes_terminated += 1
    _prove(state, at)
    if state.phase not in ENDED and state.failure is not None:
        _crash(state, at)
    return False


def fold_exit(state: RunState, _event: ProgramExited | TrainerSummary, at: float, _text: str) -> bool:
    """The training loop ended by itself."""
    set_phase(state, "finished", at)
    return True


def believe(state: RunState) -> None:
    """The loop would have gone on by now: what failed was not caught."""
    state.attempt.doubtful = False
    if state.phase == "crashed":
        count_failure(state)


def settle(state: RunState, now: float, exiting_seconds: float) -> bool:
    """A run whose iterations are done and whose log is silent has finished, if no process was seen to hang on."""
    if state.phase != "exiting" or state.attempt.processes_ended or state.progress_at is None:
        return False
    if now - state.progress_at < exiting_seconds:
        return False
    set_phase(state, "finished", now)
    return True
