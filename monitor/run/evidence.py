"""Turns events about an attempt's end into evidence, which the attempt keeps until a later step refutes it.

A step within one usual interval after a failure may have been delayed, as another rank's line or by a buffer. It does
not prove that the attempt continues; the next step does. ending.py decides how an attempt ended.

Lines of a backlog are read at one instant. Their evidence is as far apart as the log's own clock shows.
"""

import math
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Literal

from msgspec.structs import fields, replace

from megatron_monitor.parsers import events
from megatron_monitor.parsers.events import Event
from megatron_monitor.run.attempts import LAUNCHER, is_written_before
from megatron_monitor.run.ending import MOMENT, Evidence, Sort, ending, strength
from megatron_monitor.run.nodes import freeze_node_list, note_collective, note_tasks
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.records import EventContext
from megatron_monitor.run.restarts import count_failure, enter
from megatron_monitor.run.state import Attempt, RunState

_HOST_DELAY = (
    3.0  # seconds by which lines of another host are late (acregmin of an NFS client): less than a crash waits
)
_READ_DELAY = 1.0  # seconds by which a line is read later than it was written
_MAX_EVIDENCE = 64  # evidence of an attempt, and as much again of watchdogs
_SKIPPED_FIELDS = {"at", "message", "line", "logged_at", "after", "count", "stream", "clock"}
_WHAT = attrgetter(*(each.name for each in fields(Evidence) if each.name not in _SKIPPED_FIELDS))
"""The facts of a piece of evidence without its texts: equal facts are kept once."""


def _of_failure(event: events.FailureSeen, at: float, text: str, after: int) -> Iterator[Evidence]:
    cancelled = event.notice in ("job_cancelled", "step_cancelled")
    yield Evidence(
        "failure", at, event.failure, event.message, text, event.fatal and not (event.optional and after),
        event.consequence, event.rank,
        # the daemon that reports the cancelled job runs on its first node, which is seldom the failed one
        None if cancelled and event.failure == "node_failure" else event.node,
        event.logged_at, event.exit_code, event.by, event.notice,
        pattern=event.pattern is not None, raised=event.raised, optional=bool(event.optional) and not after,
        after=after,
    )  # fmt: skip


def _of_watchdog(event: events.WatchdogTimedOut, at: float, text: str, after: int) -> Iterator[Evidence]:
    """Yield the evidence of a NCCL watchdog time-out: a collective hung."""
    waited = f" after {event.waited_seconds:.0f} s" if event.waited_seconds else ""
    message = f"NCCL watchdog: {event.operation or 'a collective'} timed out{waited}"
    yield Evidence(
        "watchdog", at, "nccl", message, text, True, rank=event.rank, node=event.node, logged_at=event.logged_at,
        after=after,
    )  # fmt: skip


def _of_traceback(event: events.TracebackSeen, at: float, text: str, after: int) -> Iterator[Evidence]:
    """Yield the evidence of a traceback. It is the cause if an end follows; by itself it may have been caught.

    A traceback that begins outside any function was not caught: its process has ended. Remaining risk: a handler in the
    main module prints such a traceback and continues; later steps show that.
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
        failure = event.failure or "killed"  # torchrun's agent received a signal
        yield Evidence("failure", at, failure, message, text, True, by="launcher", **origin)
        yield ended
        return
    helper = event.role == "helper"
    yield Evidence(
        "traceback", at, event.failure or "python_exception", message, text, bool(event.top_level), event.lost_peer,
        helper=helper or (event.role is None and bool(event.top_level)),
        optional=event.optional and not after and not helper, **origin,
    )  # fmt: skip


def _of_exit(event: events.ProcessExited, at: float, text: str, after: int) -> Iterator[Evidence]:
    """Yield the evidence of a process end that a launcher reports."""
    code = "badly" if event.exit_code is None else f"with exit code {event.exit_code}"
    message = f"{'the attempt' if event.ends_attempt else 'a process'} ended {code}"
    yield Evidence(
        "exit", at, "unknown", message, text, exit_code=event.exit_code, node=event.node, attempt=event.ends_attempt,
        output_follows=event.output_follows, after=after,
    )  # fmt: skip


def _of_end(event: Event, at: float, text: str, after: int) -> Iterator[Evidence]:
    """Yield the evidence of a training loop that ended by itself or as a signal requested, of a launcher that
    terminates the other processes, or of a process that is leaving.
    """
    sort: Sort = "finished"
    if isinstance(event, events.ProcessTerminated):
        sort = "left" if event.by_itself else "terminated"
    elif isinstance(event, events.ProgramExited) and event.reason == "signal":
        sort = "orderly"
    yield Evidence(sort, at, line=text, after=after)


_Rows = Callable[[Any, float, str, int], Iterator[Evidence]]
_OF: dict[type[Event], _Rows] = {
    events.FailureSeen: _of_failure,
    events.WatchdogTimedOut: _of_watchdog,
    events.TracebackSeen: _of_traceback,
    events.ProcessExited: _of_exit,
    events.ProcessTerminated: _of_end,
    events.ProgramExited: _of_end,
    events.TrainerSummary: _of_end,
}
EVENTS = frozenset(_OF)
"""Events that are evidence of an end."""


def fold_evidence(state: RunState, event: Event, context: EventContext) -> bool:
    """Apply an event of `EVENTS`. Return True if it is progress of a training that ends as planned."""
    attempt = state.attempt
    if isinstance(event, events.WatchdogTimedOut):
        note_collective(state, event)
    elif isinstance(event, events.ProcessExited):
        note_tasks(state, event)
    before, failed = attempt.phase, attempt.ending.job_failed_at
    rows = list(_OF[type(event)](event, context.at, context.entry.text, attempt.iterations))
    if (not state.proven or attempt.foreign) and isinstance(event, events.ProcessExited) and event.tasks == "0":
        rows = [replace(row, helper=True) for row in rows]  # a step of one task may have prepared the job
    _add(state, context, rows)
    if isinstance(event, events.ProgramExited | events.TrainerSummary):
        attempt.setup_events.clear()
        return attempt.phase == "finished"
    if isinstance(event, events.ProcessExited):
        well = event.exit_code == 0 and before not in ENDED and attempt.phase != "crashed"
        return well or attempt.ending.job_failed_at != failed
    return False


def fold_own_end(state: RunState, sort: Literal["done", "left"], context: EventContext) -> None:
    """Apply that the training loop is done, or that its process has left: another one begins in its stream."""
    attempt, left = state.attempt, sort == "left"
    _add(state, context, [Evidence(sort, context.at, attempt=left, after=attempt.iterations)])


def _add(state: RunState, context: EventContext, rows: list[Evidence]) -> None:
    clock = _date_back(state, context)
    kept = [keep(state.attempt, replace(row, stream=context.source, clock=clock)) for row in rows]
    conclude(state, context.at, changed=True in kept)


def _written_at(state: RunState, context: EventContext) -> float | None:
    """Return when the line was written, on the log's clock: its stamp, or the last one and the iterations since."""
    attempt, stamped = state.attempt, state.attempt.stamped_at
    if context.clock is not None or state.log_clock_last is None:
        return context.clock
    since = 0 if stamped is None or not attempt.iterations else state.iterations_total - stamped
    return state.log_clock_last + since * attempt.seconds / max(1, attempt.iterations)


def _date_back(state: RunState, context: EventContext) -> float | None:
    """Return when the line was written, on the log's clock. Lines that were read at once have one instant: the earlier
    evidence of the stream is dated back from this line by the difference of their times.
    """
    clock, attempt = _written_at(state, context), state.attempt
    if clock is not None and not context.live:
        for place, row in enumerate(attempt.evidence):
            if row.clock is not None and row.stream == context.source:
                attempt.evidence[place] = replace(row, at=min(row.at, context.at - max(0.0, clock - row.clock)))
    return clock


def proves_life(state: RunState, context: EventContext) -> bool:
    """Return True if a line of the set-up shows that the attempt continues after a failure.

    A line of another rank within the same moment does not show that, nor a line that may have been written before.
    """
    found = state.attempt.ending
    if found.since is None:
        return True
    if (found.certain and context.at - found.since <= MOMENT) or is_written_before(state.attempt, context):
        return False
    state.attempt.forget()
    return True


def keep(attempt: Attempt, row: Evidence) -> bool:
    """Add a piece of evidence. Of equal ones the earliest is kept; of too many the weakest is dropped.

    Return True if the ending may change.
    """
    rows, what = attempt.evidence, _WHAT(row)
    for place, known in enumerate(rows):
        if _WHAT(known) == what:
            first = known if known.at <= row.at else row
            rows[place] = replace(first, count=known.count + row.count)
            return first is row or row.sort == "exit"
    rows.append(row)
    alike = [known for known in rows if (known.sort == "watchdog") == (row.sort == "watchdog") and known.failure]
    if len(alike) > _MAX_EVIDENCE:
        rows.remove(min(alike, key=lambda known: (strength(known), -known.at)))
    return True


def conclude(state: RunState, at: float, *, changed: bool = True) -> None:
    """Recompute the ending if the evidence has changed (`changed`), and enter its phase."""
    attempt = state.attempt
    before = attempt.ending.state
    if changed:
        attempt.ending = ending(attempt.evidence, all_done=attempt.training_done, processes=_processes(attempt))
    found = attempt.ending
    if found.state == "crashed":
        attempt.setup_events.clear()  # later set-up events belong to the next attempt
        freeze_node_list(attempt)
    if found.state in ENDED or (found.state == "exiting" and before != "exiting"):
        enter(state, found.state, at)


def _processes(attempt: Attempt) -> int | None:
    """Return the number of processes with a reported end: those of the launchers in the log, or else all."""
    each = attempt.topology.processes_per_node
    launchers = sum(kind.startswith(LAUNCHER) for kind in attempt.boundaries)
    return launchers * each if launchers and each else attempt.topology.world_size or each


def confirm(state: RunState, at: float) -> None:
    """Confirm a crash: by now the loop would have continued, so the failure was not caught."""
    if state.attempt.phase != "crashed":
        return
    if not state.attempt.ending.certain:
        keep(state.attempt, Evidence("silence", at))
        conclude(state, at)
    count_failure(state)


def settle(state: RunState, now: float, exiting_seconds: float) -> bool:
    """Finish a run with completed iterations and a silent log, unless its processes hang at exit. Return True if so."""
    attempt = state.attempt
    if attempt.phase != "exiting" or state.progress_at is None:
        return False
    if attempt.ending.partial:
        return False
    if now - state.progress_at - state.coverage.unobserved(now) < exiting_seconds:
        return False
    keep(attempt, Evidence("silence", now))
    conclude(state, now)
    enter(state, "finished", now)
    return True


def pass_by(state: RunState, context: EventContext, *, step: bool) -> None:
    """Drop evidence that progress refutes.

    `step`: the progress is a step. One step within the usual interval may have been delayed, and so may all steps in
    another file that is read later. Other progress may come after the end.
    """
    attempt, at, stream = state.attempt, context.at, context.source
    if not attempt.evidence:
        attempt.collectives.clear()
        return
    _date_back(state, context)
    if any(row.output_follows for row in attempt.evidence):
        return
    expected = math.inf if attempt.expected_gap is None else attempt.expected_gap + _READ_DELAY
    attempt.evidence = [
        replace(row, passed_at=at)
        for row in attempt.evidence
        if _still_holds(row, at - row.at, expected, elsewhere=row.stream != stream, step=step)
    ]
    if not attempt.evidence:
        attempt.collectives.clear()
    attempt.ending = ending(attempt.evidence, all_done=attempt.training_done, processes=_processes(attempt))


def _still_holds(row: Evidence, ago: float, expected: float, *, elsewhere: bool, step: bool) -> bool:
    """Return True if the evidence may still indicate an end after later progress."""
    if row.sort == "silence" or (elsewhere and ago <= _HOST_DELAY):
        return row.sort != "silence"
    return (ago <= expected or (row.sort == "done" and not step)) and not (step and row.passed_at is not None)
