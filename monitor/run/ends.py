"""Failures and ends: which line is the cause, which a follower, and when a run is over.

One attempt has one failure, however many ranks and daemons report it: the first fatal line that is no consequence.
"""

from __future__ import annotations

import re

from monitor.run.launches import LAUNCHER, count_failure, set_phase
from monitor.run.nodes import freeze_node_list, note_collective, note_fault, note_tasks
from monitor.run.phases import ENDED
from monitor.run.records import FailureRecord
from monitor.run.state import RunState
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
# A program that trains, by the name of its file; others of a job make data, parse logs, copy files.
_TRAINERS = re.compile(r"train|tune|sft|gpt|llama|bert|megatron", re.IGNORECASE)
# Who started the processes tells by such an exception that one of them has ended, never why.
_LAUNCHERS = frozenset({"ChildFailedError", "CalledProcessError"})
_SIGNAL = re.compile(r"got signal: (\d{1,2})")
_CANCELLED = "Slurm cancelled"
_RANKS_KEPT = 64
_EXIT_SECONDS = 10.0  # in which processes that are done end: tearing down groups takes seconds
# Python raises these, and a loop may catch them: a batch that does not fit is split or left out, a save is tried again.
# What an aborted process, a driver or another rank tells is final; so is a CUDA error, after which no call succeeds.
_SURVIVABLE = frozenset({"cuda_oom", "disk_full"})
# Programs try imports that they can do without, and some print what they caught.
_IMPORTS = ("ModuleNotFoundError", "ImportError", "importlib.metadata.PackageNotFoundError")
_BARE = frozenset({"unknown", "killed", "stopped"})
"""What tells that a process ended, hardly why."""
_ROOTS = frozenset({"cuda_oom", "host_oom", "ecc", "disk_full", "node_failure"})
"""What may stand behind another rank's NCCL error although its line comes later."""
_CONSEQUENCES = re.compile(
    r"Connection (?:closed|reset) by peer|Connection refused|Broken pipe|NCCL communicator was aborted|gloo/transport"
    r"|recvValue failed|sendBytes failed|Socket (?:Closed|Timeout)|store->(?:get|wait)|DistNetworkError"
)
"""Exceptions of ranks that lost another one."""


def fold_failure(state: RunState, event: FailureSeen, at: float, text: str) -> bool:
    """A line that names a failure."""
    note_fault(state, event)
    record = FailureRecord(
        failure=event.failure,
        message=event.message,
        at=at,
        line=text,
        fatal=event.fatal,
        consequence=event.consequence,
        rank=event.rank,
        # the daemon that writes that the job was cancelled runs on its first node, seldom the one that failed
        node=None if event.failure == "node_failure" and event.message.startswith(_CANCELLED) else event.node,
        logged_at=event.logged_at,
        exit_code=event.exit_code,
        after=state.launch.iterations,
    )
    known = _known(state)
    if _cuts_exit(state, event, at):
        state.launch.cut_at = at
        state.launch.failure = record
        set_phase(state, "exiting", at)
        return False
    if not event.fatal:
        if known is None:
            state.launch.failure = record
        return False
    if event.consequence:
        if known is None or (known.consequence and known.failure in _BARE and record.failure not in _BARE):
            state.launch.failure = record
        _crash(state, at)
        return False
    if known is not None and not known.fatal and (
        _uncaught(state, known) or (known.failure == record.failure and record.exit_code is not None)
    ) and not _more_telling(known, record):  # fmt: skip
        # the word for an end of which a traceback has told the cause
        known.fatal, known.exit_code = True, record.exit_code
        if state.launch.phase != "crashed":
            known.at = at
        _crash(state, at)
        return False
    if known is None or not known.fatal or known.consequence or _more_telling(known, record):
        state.launch.failure = record
    elif known.failure == record.failure == "node_failure" and known.node is None:
        known.node = record.node  # the scheduler's word came first, srun's names the node
    _crash(state, at, survivable=event.failure in _SURVIVABLE and event.exit_code is None and event.pattern is None)
    return False


def _cuts_exit(state: RunState, event: FailureSeen, at: float) -> bool:
    """The training had said that it was done, and its processes were still there as their time was over."""
    done = state.launch.done_at
    if done is None or state.launch.phase not in ("exiting", "finished") or at - done < _EXIT_SECONDS:
        return False
    return event.failure == "time_limit" and event.message.startswith(f"{_CANCELLED} step")


def _known(state: RunState) -> FailureRecord | None:
    """The failure that may be the cause of what is told now: nothing that the launch has gone on from."""
    known = state.launch.failure
    if known is None or state.launch.phase == "crashed":
        return known
    return known if state.launch.iterations - known.after <= (state.launch.log_interval or 1) else None


def _uncaught(state: RunState, known: FailureRecord) -> bool:
    return known.failure in ("python_exception", "stopped") and state.launch.uncaught_after == known.after


def _more_telling(known: FailureRecord, new: FailureRecord) -> bool:
    """What only says that something ended gives way to a line that says why; NCCL's error to what broke it."""
    if known.line == new.line and known.failure == "python_exception":
        return True  # the exception's own line, read for what it means
    if known.failure in _BARE:
        return new.failure not in _BARE and new.failure != "nccl" and (
            new.failure != "python_exception" or (known.failure == "unknown" and new.exit_code is None)
        )  # fmt: skip
    if known.failure == "nccl":
        return new.failure in _ROOTS
    return known.exit_code is not None and known.failure == "python_exception" and new.failure in _ROOTS


def _crash(state: RunState, at: float, *, survivable: bool = False) -> None:
    attempt = state.launch
    if state.launch.phase == "finished" or attempt.cut_at is not None:
        return  # a worker that segfaults after a clean end changes nothing
    attempt.failures += 1
    attempt.opening.clear()  # what is said of a set-up from here on is the next launch's
    freeze_node_list(state)
    survived = attempt.doubtful and state.launch.phase != "crashed"  # evaluation went on after the last one
    if attempt.first_failure_at is None or survived:
        attempt.first_failure_at = at
        ended = attempt.processes_terminated > 0 or attempt.uncaught_after == attempt.iterations
        attempt.doubtful, attempt.proved_at = survivable and not ended, None
    elif not survivable:
        _prove(state, at)
    if state.launch.phase != "crashed":
        set_phase(state, "crashed", at)


def _prove(state: RunState, at: float) -> None:
    """A process has ended: what failed before was not caught."""
    if state.launch.doubtful:
        state.launch.doubtful, state.launch.proved_at = False, at


def fold_watchdog(state: RunState, event: WatchdogTimedOut, at: float, text: str) -> bool:
    """A NCCL watchdog gave up: the collective hung. Ranks are counted, not lines."""
    note_collective(state, event)
    if (
        event.rank is not None
        and event.rank not in state.launch.watchdog_ranks
        and len(state.launch.watchdog_ranks) < _RANKS_KEPT
    ):
        state.launch.watchdog_ranks.append(event.rank)
    if event.node and event.node not in state.launch.watchdog_nodes and len(state.launch.watchdog_nodes) < _RANKS_KEPT:
        state.launch.watchdog_nodes.append(event.node)
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
    """A traceback alone ends nothing: it may be caught, or a bystander's. It names the cause if the end follows.

    One that begins in no function was caught by nobody: its process has ended. Risk left: a handler in the main module
    prints one like it and goes on; the next sign of progress tells.
    """
    script = event.script or ""
    if any(name in script or name in text for name in _BYSTANDERS):
        return False
    message = f"{event.exception}: {event.message}" if event.message else event.exception
    record = FailureRecord(
        "python_exception", message, at, text, fatal=False, rank=event.rank, node=event.node,
        consequence=bool(_CONSEQUENCES.search(message)), after=state.launch.iterations,
    )  # fmt: skip
    known = _known(state)
    if event.exception in _LAUNCHERS:
        return fold_process_exit(state, ProcessExited(rank=event.rank, node=event.node), at, text)
    if event.exception == "SignalException":  # torchrun's agent was told to end
        found = _SIGNAL.search(event.message)
        record.failure, record.fatal = "stopped" if found and found[1] in ("2", "15") else "killed", True
        state.launch.processes_ended += 1
        if known is None or known.consequence or (not known.fatal and not _uncaught(state, known)):
            state.launch.failure = record
        _crash(state, at)
        return False
    if event.exception == "KeyboardInterrupt":
        record.failure = "stopped"
    helper = not _TRAINERS.search(script.rpartition("/")[2]) if script else False
    record.helper = helper
    if helper and state.launch.phase in ("exiting", "finished"):
        if known is None:
            state.launch.failure = record  # if the job's exit code is bad, this is why
        return False
    certain = bool(script) and not helper and not may_be_optional(record, state.launch.iterations)
    if event.top_level:
        state.launch.uncaught_after = state.launch.iterations
        if certain or state.launch.iterations:
            _prove(state, at)
    if known is None or (
        (known.consequence or known.exit_code is not None) and known.failure in (*_BARE, "python_exception", "nccl")
        and not record.consequence and record.failure != "stopped"
    ):  # fmt: skip
        record.fatal = known is not None and known.fatal
        record.exit_code = known.exit_code if known is not None else None
        state.launch.failure = record
    elif not known.fatal and record.failure == "stopped" and not _uncaught(state, known):
        state.launch.failure = record
    if event.top_level:
        _end_by_traceback(state, event, at, certain=certain)
    return False


def may_be_optional(failure: FailureRecord, iterations: int) -> bool:
    """Whether it may be of an import that the training can do without: before the first iteration only."""
    return (
        not iterations
        and not failure.helper
        and failure.failure == "python_exception"
        and failure.message.startswith(_IMPORTS)
    )


def _end_by_traceback(state: RunState, event: TracebackSeen, at: float, *, certain: bool) -> None:
    """The process that printed it is gone. `certain`: it is one of the training."""
    attempt = state.launch
    if state.launch.phase == "finished" or state.launch.failure is None:
        return
    if event.rank is None and event.node is None:
        attempt.alone = True
    state.launch.failure.fatal = True
    before = attempt.first_failure_at, state.launch.phase
    _crash(state, at, survivable=True)
    if before[0] is None or before[1] != "crashed":
        attempt.doubtful = not certain


def fold_process_exit(state: RunState, event: ProcessExited, at: float, text: str) -> bool:
    """A launcher saw a process end."""
    state.launch.processes_ended += 1
    note_tasks(state, event)
    if event.exit_code == 0:
        if state.launch.phase in ENDED:
            return False
        expected = _processes(state)
        over = event.launch or expected is None or state.launch.processes_ended >= expected
        set_phase(state, "finished" if over else "exiting", at)
        return True
    if event.exit_code is None and state.launch.phase in ENDED:
        if state.launch.phase == "crashed":
            _prove(state, at)
        return False
    known = _known(state)
    helpers = known is None or known.consequence or known.failure in _BARE or known.helper
    if state.launch.phase == "exiting" and state.launch.done_at is not None and helpers:
        state.launch.job_failed_at = at
        set_phase(state, "finished", at)
        return True
    if known is None:
        code = "badly" if event.exit_code is None else f"with exit code {event.exit_code}"
        what = "the launch" if event.launch else "a process"
        state.launch.failure = FailureRecord(
            "unknown", f"{what} ended {code}", at, text, node=event.node, after=state.launch.iterations,
            exit_code=event.exit_code,
        )  # fmt: skip
    else:
        known.fatal = True
    _crash(state, at)
    return False


def _processes(state: RunState) -> int | None:
    """Processes whose ends the log will tell: those of the launchers that write to it, else all."""
    each = state.launch.topology.processes_per_node
    launchers = sum(kind.startswith(LAUNCHER) for kind in state.launch.boundaries)
    return launchers * each if launchers and each else state.launch.topology.world_size or each


def fold_process_terminated(state: RunState, _event: ProcessTerminated, at: float, _text: str) -> bool:
    """A launcher ended the other processes: the run is over, whatever the reason was."""
    state.launch.processes_terminated += 1
    _prove(state, at)
    if state.launch.phase not in ENDED and state.launch.failure is not None:
        _crash(state, at)
    return False


def fold_exit(state: RunState, _event: ProgramExited | TrainerSummary, at: float, _text: str) -> bool:
    """The training loop ended by itself."""
    state.launch.done_at = at
    state.launch.opening.clear()
    set_phase(state, "finished", at)
    return True


def believe(state: RunState) -> None:
    """The loop would have gone on by now: what failed was not caught."""
    state.launch.doubtful = False
    if state.launch.phase == "crashed":
        count_failure(state)


def settle(state: RunState, now: float, exiting_seconds: float) -> bool:
    """A run whose iterations are done and whose log is silent has finished, if no process was seen to hang on."""
    attempt = state.launch
    if (
        state.launch.phase != "exiting"
        or state.progress_at is None
        or (attempt.processes_ended and attempt.cut_at is None)
    ):
        return False
    if now - state.progress_at - state.unheard < exiting_seconds:
        return False
    set_phase(state, "finished", now)
    return True
