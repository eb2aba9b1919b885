"""Checkpoint failed: a save began and was not completed.

Three ways: an exception while saving; the loop went on and nobody said that the save succeeded; the run ended inside.
An asynchronous save may succeed many iterations later. A program whose success was never seen, and that is not known
to report it, is not suspected. Resolved by the next save that completes.
"""

from collections.abc import Sequence

from msgspec import Struct, field

from megatron_monitor.detectors.base import CLEAR, Detector, Severity, Verdict
from megatron_monitor.parsers import events
from megatron_monitor.parsers.dialects import dialect_of
from megatron_monitor.parsers.events import Event
from megatron_monitor.run.derived import at_risk_seconds
from megatron_monitor.run.state import Launch, RunState
from megatron_monitor.run.steps.step import Step
from megatron_monitor.units import Factor, Seconds

_LISTENS = (
    events.CheckpointSaveStarted, events.CheckpointSaveScheduled, events.CheckpointSaved, events.CheckpointFileWritten,
    events.FailureSeen, events.TracebackSeen, events.MilestoneReached,
)  # fmt: skip
_OF_THE_SAVE = frozenset({"disk_full", "python_exception", "unknown"})
"""Failures that a save itself can meet; others come from outside."""
_PENDING = 8  # saves under way that are kept


class CheckpointFailedSettings(Struct, frozen=True):
    """Thresholds, each with its reason."""

    iterations: int = 5
    """Iteration lines after which a save that holds the loop up must have ended: ranks' lines come out of order."""
    minimum: Seconds = 60.0
    """And so much training time: another rank's file is read a little later."""
    asynchronous_factor: Factor = 4.0
    """Over the longest asynchronous save seen, in iterations: it shares the file system with everybody."""


class Save(Struct):
    """A save under way."""

    iteration: int | None
    attempt: int
    lines: int = 0
    seconds: float = 0.0
    scheduled: bool = False


class Failed(Struct):
    """A save that failed, and those before it that did."""

    at: float
    """When the first one did."""
    iteration: int = 0
    """Of the last one, 0 where unknown."""
    reason: str = ""
    in_a_row: int = 0
    exception: bool = False


class Memory(Struct):
    """Saves under way, and the last one that failed."""

    pending: list[Save] = field(default_factory=list)
    completed: int = 0
    longest_async: int | None = None
    file_open: bool = False
    failed: Failed | None = None


def on_event(state: RunState, memory: Memory, event: Event, _settings: CheckpointFailedSettings) -> bool:
    """Saves begin, are handed over, end, or meet an exception."""
    if isinstance(event, events.CheckpointSaveStarted):
        _begun(state.launch, memory, event.iteration)
    elif isinstance(event, events.CheckpointSaveScheduled):
        save = _find(memory, event.iteration)
        if save is not None:
            save.scheduled = True
    elif isinstance(event, events.CheckpointFileWritten):
        memory.file_open = not event.finished
    elif isinstance(event, events.CheckpointSaved):
        return _completed(state, memory, event.iteration)
    elif isinstance(event, events.MilestoneReached):
        return event.milestone == "training_done" and _loop_done(state, memory)
    # An exception may be a save's. If the run ends with it, `check` sees the save that is open.
    elif isinstance(event, events.FailureSeen):
        of_a_save = event.failure in _OF_THE_SAVE and event.fatal and not event.consequence
        return of_a_save and _broken(state, memory, event.message, disk=event.failure == "disk_full")
    elif isinstance(event, events.TracebackSeen) and event.role != "bystander":
        message = f"{event.exception}: {event.message}" if event.message else event.exception
        return _broken(state, memory, message, disk=False)
    return False


def _begun(launch: Launch, memory: Memory, iteration: int | None) -> None:
    known = any(save.iteration == iteration and save.attempt == launch.number for save in memory.pending)
    # a loop that is farther was not held up: the line is late
    if not known and (iteration is None or (launch.last_iteration or 0) <= iteration):
        memory.pending.append(Save(iteration, launch.number))
        del memory.pending[:-_PENDING]


def _find(memory: Memory, iteration: int | None) -> Save | None:
    """The newest save of this iteration, else one that did not say of which it is."""
    saves = memory.pending[::-1]
    exact = next((save for save in saves if iteration in (None, save.iteration)), None)
    return exact or next((save for save in saves if save.iteration is None), None)


def _completed(state: RunState, memory: Memory, iteration: int | None) -> bool:
    save = _find(memory, iteration)
    if save is not None:
        memory.pending.remove(save)
        if save.scheduled:
            memory.longest_async = max(save.lines, memory.longest_async or 0)
    memory.completed += 1
    memory.file_open = False
    done = iteration if iteration is not None else state.past.checkpoints.last_iteration
    mended = memory.failed is not None and (done is None or done >= memory.failed.iteration)
    if mended:
        memory.failed = None
    if done is not None:  # a save before it that never told of its end is of no matter any more
        memory.pending = [other for other in memory.pending if (other.iteration or 0) > done]
    return mended


def _loop_done(state: RunState, memory: Memory) -> bool:
    """The save that held the loop up has ended with it."""
    others = [save for save in memory.pending if save.scheduled or save.attempt != state.launch.number]
    if len(others) == len(memory.pending):
        return False
    memory.pending = others
    return _completed(state, memory, state.past.checkpoints.last_iteration)


def _broken(state: RunState, memory: Memory, message: str, *, disk: bool) -> bool:
    """An exception counts while the loop is held up by a save, or where it names the disk while files are written."""
    held = next((save for save in reversed(memory.pending) if not save.scheduled and not save.lines), None)
    if held is None and not (disk and (memory.file_open or memory.pending)):
        return False
    if held is None and memory.failed is not None and memory.failed.exception:
        return False
    save = held or (memory.pending[-1] if memory.pending else None)
    if save is not None:
        memory.pending.remove(save)
    iteration = save.iteration if save is not None else state.launch.latest.iteration
    _fail(memory, iteration, message.strip()[:300], state.updated_at).exception = True
    return True


def _fail(memory: Memory, iteration: int | None, reason: str, at: float) -> Failed:
    memory.failed = failed = memory.failed or Failed(at)
    failed.iteration, failed.reason = iteration or 0, reason
    failed.in_a_row += 1
    return failed


def update(state: RunState, memory: Memory, steps: Sequence[Step], settings: CheckpointFailedSettings) -> bool:
    """The loop goes on: what was being saved must be complete within a while."""
    changed = False
    for step in steps:
        if not memory.pending:
            break  # no step begins a save
        if step.counted:
            changed |= _wait(state, memory, step, settings)
    return changed


def _wait(state: RunState, memory: Memory, step: Step, settings: CheckpointFailedSettings) -> bool:
    changed = False
    for save in list(memory.pending):
        if save.attempt == state.launch.number and state.launch.driver == "trainer" and not save.scheduled:
            changed = _loop_done(state, memory) or changed  # it prints no end, and its loop waits for it
            break
        if save.attempt != state.launch.number:
            why = "the launch ended while it was being saved: it may be partial"
        else:
            save.lines += 1
            save.seconds += (step.printed_seconds or 0.0) * step.interval
            if not _overdue(state, memory, save, settings):
                continue
            why = f"no line reported success within {save.lines} iteration lines"
        memory.pending.remove(save)
        _fail(memory, save.iteration, why, step.at)
        changed = True
    return changed


def _overdue(state: RunState, memory: Memory, save: Save, settings: CheckpointFailedSettings) -> bool:
    """Whether a save has been under way for too many iteration lines; never where success was never seen."""
    if save.scheduled:
        known = memory.longest_async
        return known is not None and save.lines > settings.asynchronous_factor * max(known, settings.iterations)
    reports = memory.completed > 0 or dialect_of(state.launch.dialect).reports_saves
    return reports and save.lines > settings.iterations and save.seconds >= settings.minimum


def check(state: RunState, memory: Memory, _now: float, _settings: CheckpointFailedSettings) -> Verdict:
    """Fires until a later save completes. An end inside a save is seen as soon as the run is known to have ended."""
    failed, since = memory.failed, memory.failed.at if memory.failed else None
    if failed is None and (cut := _ended_inside(state.launch, memory)) is not None:
        failed = Failed(state.updated_at, cut, "the run ended inside: it may be partial", 1)
    if failed is None:
        return CLEAR
    complete = state.past.checkpoints.last_iteration
    severity: Severity = "critical" if failed.exception or failed.in_a_row > 1 else "warning"
    risk = at_risk_seconds(state) or 0.0
    lost = f", {risk:.0f} s of training at risk" if risk else ""
    last = f"the last complete one is iteration {complete}" if complete is not None else "none was completed before"
    summary = f"the checkpoint of iteration {failed.iteration or '?'} failed: {failed.reason}; {last}{lost}"
    evidence = {
        "failed_iteration": failed.iteration or None,
        "reason": failed.reason,
        "failed_in_a_row": failed.in_a_row,
        "last_complete_iteration": complete,
        "at_risk_seconds": round(risk, 1),
    }
    return Verdict("firing", severity, summary, evidence, onset=failed.iteration or None, since=since)


def _ended_inside(launch: Launch, memory: Memory) -> int | None:
    """The iteration, 0 where unknown, of a save that the run's end has cut off; None if none was."""
    saves = [save for save in memory.pending if save.attempt == launch.number] if launch.phase == "crashed" else []
    # a program that never reported success: its saves never complete in the log
    cut = saves and (memory.completed or not all(save.lines for save in saves))
    return saves[-1].iteration or 0 if cut else None


DETECTOR = Detector(CheckpointFailedSettings, check, Memory, update, on_event, _LISTENS)
