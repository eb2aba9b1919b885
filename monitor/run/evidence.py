"""What the log tells of an attempt's end: an event becomes a row of evidence, kept in the attempt until a step passes
it.

A step that comes within one usual interval may have been on its way when something failed: another rank's line, a
buffer. It does not prove that the attempt lives, the next one does. Nothing here decides how an attempt ended:
ending.py.
"""

import math
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from msgspec.structs import fields, replace

from megatron_monitor.parsers.events import (
    Event,
    FailureSeen,
    ProcessExited,
    ProcessTerminated,
    ProgramExited,
    TracebackSeen,
    TrainerSummary,
    WatchdogTimedOut,
)
from megatron_monitor.run.attempts import LAUNCHER, is_written_before
from megatron_monitor.run.ending import MOMENT, Evidence, ending, strength
from megatron_monitor.run.nodes import freeze_node_list, note_collective, note_tasks
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.records import EventContext
from megatron_monitor.run.restarts import count_failure, enter
from megatron_monitor.run.state import Attempt, RunState

_ACROSS = 3.0  # seconds that another host's lines are seen late (acregmin of an NFS client): less than a crash waits
_KEPT = 64  # rows of an attempt; as many of ranks whose watchdogs gave up
_SKIPPED_FIELDS = {"at", "message", "line", "logged_at", "after", "count", "stream"}
_WHAT = attrgetter(*(each.name for each in fields(Evidence) if each.name not in _SKIPPED_FIELDS))
"""What a row says, whatever its words."""


def _of_failure(event: FailureSeen, at: float, text: str, after: int) -> Iterator[Evidence]:
    cancelled = event.notice in ("job_cancelled", "step_cancelled")
    yield Evidence(
        "failure", at, event.failure, event.message, text, event.fatal, event.consequence, event.rank,
        # the daemon that writes that the job was cancelled runs on its first node, seldom the one that failed
        None if cancelled and event.failure == "node_failure" else event.node,
        event.logged_at, event.exit_code, event.by, event.notice,
        pattern=event.pattern is not None, raised=event.raised, after=after,
    )  # fmt: skip


def _of_watchdog(event: WatchdogTimedOut, at: float, text: str, after: int) -> Iterator[Evidence]:
    """A NCCL watchdog gave up: the collective hung. Ranks are counted, not lines."""
    waited = f" after {event.waited_seconds:.0f} s" if event.waited_seconds else ""
    message = f"NCCL watchdog: {event.operation or 'a collective'} timed out{waited}"
    yield Evidence(
        "watchdog", at, "nccl", message, text, True, rank=event.rank, node=event.node, logged_at=event.logged_at,
        after=after,
    )  # fmt: skip


def _of_traceback(event: TracebackSeen, at: float, text: str, after: int) -> Iterator[Evidence]:
    """One alone ends nothing: it may be caught, or a bystander's. It names the cause if the end follows.

    One that begins in no function was caught by nobody: its process has ended. Risk left: a handler in the main module
    prints one like it and goes on; the next steps tell.
    """
    message = f"{event.exception}: {event.message}" if event.message else event.exception
    origin: dict[str, Any] = {"rank": event.rank, "node": event.node, "logged_at": event.logged_at, "after": after}
    if event.role == "bystander":
        return
    if event.role == "launcher":
        ended = Evidence("exit", at, "unknown", "a process ended badly", text, attempt=True, **origin)
        if event.signal is None:
            yield ended
            return
        failure = event.failure or "killed"  # torchrun's agent was told to end
        yield Evidence("failure", at, failure, message, text, True, by="launcher", **origin)
        yield ended
        return
    helper = event.role == "helper"
    yield Evidence(
        "traceback", at, event.failure or "python_exception", message, text, bool(event.top_level), event.lost_peer,
        helper=helper or (event.role is None and bool(event.top_level)),
        optional=event.optional and not after and not helper, **origin,
    )  # fmt: skip


def _of_exit(event: ProcessExited, at: float, text: str, after: int) -> Iterator[Evidence]:
    """A launcher saw a process end."""
    code = "badly" if event.exit_code is None else f"with exit code {event.exit_code}"
    message = f"{'the attempt' if event.attempt else 'a process'} ended {code}"
    yield Evidence(
        "exit", at, "unknown", message, text, exit_code=event.exit_code, node=event.node, attempt=event.attempt,
        output_follows=event.output_follows, after=after,
    )  # fmt: skip


def _of_termination(event: ProcessTerminated, at: float, text: str, after: int) -> Iterator[Evidence]:
    """A launcher ended the other processes, or the program takes its leave: the run is over, whatever the reason."""
    yield Evidence("left" if event.by_itself else "terminated", at, line=text, after=after)


def _of_end(event: ProgramExited | TrainerSummary, at: float, text: str, after: int) -> Iterator[Evidence]:
    """The training loop ended by itself, or as a signal asked it to: another rank may have died before."""
    asked = isinstance(event, ProgramExited) and event.reason == "signal"
    yield Evidence("orderly" if asked else "finished", at, line=text, after=after)


_Rows = Callable[[Any, float, str, int], Iterator[Evidence]]
_OF: dict[type[Event], _Rows] = {
    FailureSeen: _of_failure,
    WatchdogTimedOut: _of_watchdog,
    TracebackSeen: _of_traceback,
    ProcessExited: _of_exit,
    ProcessTerminated: _of_termination,
    ProgramExited: _of_end,
    TrainerSummary: _of_end,
}
EVENTS = frozenset(_OF)
"""What is evidence of an end."""


def fold_evidence(state: RunState, event: Event, context: EventContext) -> bool:
    """An event of `EVENTS`. Whether it was progress: of a training that ends as it should."""
    attempt = state.attempt
    if isinstance(event, WatchdogTimedOut):
        note_collective(state, event)
    elif isinstance(event, ProcessExited):
        note_tasks(state, event)
    before, failed = attempt.phase, attempt.ending.job_failed_at
    rows = list(_OF[type(event)](event, context.at, context.entry.text, attempt.iterations))
    if (not state.proven or attempt.foreign) and isinstance(event, ProcessExited) and event.tasks == "0":
        rows = [replace(row, helper=True) for row in rows]  # a step of one task may have prepared the job
    weigh(state, context.at, anew=True in [keep(attempt, replace(row, stream=context.source)) for row in rows])
    if isinstance(event, ProgramExited | TrainerSummary):
        attempt.setup_events.clear()
        return attempt.phase == "finished"
    if isinstance(event, ProcessExited):
        well = event.exit_code == 0 and before not in ENDED and attempt.phase != "crashed"
        return well or attempt.ending.job_failed_at != failed
    return False


def fold_done(state: RunState, at: float, stream: str = "") -> None:
    """The training loop says that it is done."""
    keep(state.attempt, Evidence("done", at, after=state.attempt.iterations, stream=stream))
    weigh(state, at)


def fold_left(state: RunState, context: EventContext) -> None:
    """The attempt's process has left, for another one of its stream begins."""
    keep(
        state.attempt, Evidence("left", context.at, attempt=True, after=state.attempt.iterations, stream=context.source)
    )
    weigh(state, context.at)
    state.proven, state.live = True, state.live or context.live


def goes_on(state: RunState, context: EventContext) -> bool:
    """Whether a line of the set-up says that the attempt lives, whatever failed: other ranks' lines of the same moment
    do not, nor does one that may have been written before.
    """
    found = state.attempt.ending
    if found.since is None:
        return True
    if (found.certain and context.at - found.since <= MOMENT) or is_written_before(state.attempt, context):
        return False
    state.attempt.forget()
    return True


def keep(attempt: Attempt, row: Evidence) -> bool:
    """One row more. Of equal ones the earliest stands for all; of too many the one that says least goes. Whether the
    ending may be another one now: of what is no end it does not matter how often it was told.
    """
    rows, what = attempt.evidence, _WHAT(row)
    for place, known in enumerate(rows):
        if _WHAT(known) == what:
            first = known if known.at <= row.at else row
            rows[place] = replace(first, count=known.count + row.count)
            return first is row or row.sort == "exit"
    rows.append(row)
    alike = [known for known in rows if (known.sort == "watchdog") == (row.sort == "watchdog") and known.failure]
    if len(alike) > _KEPT:
        rows.remove(min(alike, key=lambda known: (strength(known), -known.at)))
    return True


def weigh(state: RunState, at: float, *, anew: bool = True) -> None:
    """Work out the ending anew, where the evidence has changed, and what follows of it."""
    attempt = state.attempt
    before = attempt.ending.state
    if anew:
        attempt.ending = ending(attempt.evidence, all_done=attempt.training_done, processes=_processes(attempt))
    found = attempt.ending
    if found.state == "crashed":
        attempt.setup_events.clear()  # what is said of a set-up from here on is the next attempt's
        freeze_node_list(attempt)
    if found.state in ENDED or (found.state == "exiting" and before != "exiting"):
        enter(state, found.state, at)


def _processes(attempt: Attempt) -> int | None:
    """Processes whose ends the log will tell: those of the launchers that write to it, else all."""
    each = attempt.topology.processes_per_node
    launchers = sum(kind.startswith(LAUNCHER) for kind in attempt.boundaries)
    return launchers * each if launchers and each else attempt.topology.world_size or each


def confirm(state: RunState, at: float) -> None:
    """The loop would have gone on by now: what failed was not caught."""
    if state.attempt.phase != "crashed":
        return
    if not state.attempt.ending.certain:
        keep(state.attempt, Evidence("silence", at))
        weigh(state, at)
    count_failure(state)


def settle(state: RunState, now: float, exiting_seconds: float) -> bool:
    """A run whose iterations are done and whose log is silent has finished, if no process was seen to hang on."""
    attempt = state.attempt
    if attempt.phase != "exiting" or state.progress_at is None:
        return False
    if attempt.ending.ended and attempt.ending.killed_at is None:
        return False
    if now - state.progress_at - state.coverage.unobserved(now) < exiting_seconds:
        return False
    keep(attempt, Evidence("silence", now))
    weigh(state, now)
    enter(state, "finished", now)
    return True


def pass_by(attempt: Attempt, at: float, stream: str = "", *, step: bool) -> None:
    """The loop has moved, as `stream` tells: what was told before did not end it, unless the line may have been on its
    way since then. `step`: of these one may have been, where it comes within the usual interval, and all that stand in
    another file, which is read behind it; what else moves may be behind the end.
    """
    if any(row.output_follows for row in attempt.evidence):
        return
    if not attempt.evidence:
        attempt.collectives.clear()
        return
    usual = attempt.pace.predicted()
    expected = math.inf if usual is None else usual * (attempt.log_interval or 1)
    attempt.evidence = [
        replace(row, passed_at=at)
        for row in attempt.evidence
        if _stands(row, at - row.at, expected, elsewhere=row.stream != stream, step=step)
    ]
    if not attempt.evidence:
        attempt.collectives.clear()
    attempt.ending = ending(attempt.evidence, all_done=attempt.training_done, processes=_processes(attempt))


def _stands(row: Evidence, ago: float, expected: float, *, elsewhere: bool, step: bool) -> bool:
    """Whether it may still speak of an end although the loop has moved since then."""
    if row.sort == "silence" or (elsewhere and ago <= _ACROSS):
        return row.sort != "silence"
    return (ago <= expected or (row.sort == "done" and not step)) and not (step and row.passed_at is not None)
