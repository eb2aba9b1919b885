"""The rule `checkpoint_failed`: a save began and was not completed, and the training continues.

A save failed if the loop continued after an exception in it, if no line reported success, or if the attempt ended in it
and no line shows why. A save that ends its attempt is the cause of the crash, or was interrupted by it: the crash is
the only incident then, and names the save. An asynchronous save may succeed many iterations later. A program that never
reported a success and is not known to report them is not suspected. The next complete save resolves the incident.
"""

import math
from collections.abc import Sequence

from msgspec import Struct, field

from megatron_monitor.detectors.base import CLEAR, Finding, Rule, RuleSettings, Severity
from megatron_monitor.parsers import events
from megatron_monitor.parsers.events import Event
from megatron_monitor.parsers.programs import program_of
from megatron_monitor.run.derived import unsaved_progress_seconds
from megatron_monitor.run.state import Attempt, RunState
from megatron_monitor.run.steps.step import Step

_OF_THE_SAVE = frozenset({"disk_full", "python_exception", "unknown"})
"""Failures that a save itself can cause. Other failures come from outside."""
_PENDING = 8  # saves in progress that are remembered


# Iteration lines after which a save that blocks the loop must have ended: ranks' lines arrive out of order.
_ITERATIONS = 5
_MINIMUM = 60.0  # and seconds of training, because another rank's file is read a little later
# Seconds after an exception in a save without a step and without an end: other ranks may wait for this one. An attempt
# that it ends has crashed by then (crash.py).
_CAUGHT = 300.0
# Times the longest asynchronous save seen, in iterations: all jobs share the file system.
_ASYNCHRONOUS_FACTOR = 4.0


class PendingSave(Struct):
    """A save in progress."""

    iteration: int | None
    attempt: int
    lines: int = 0
    seconds: float = 0.0
    scheduled: bool = False
    exception: str = ""
    """Its exception. The save has failed if the loop continues."""
    raised_at: float = 0.0


class FailedSave(Struct):
    """The last failed save and the first of the failures before it."""

    at: float
    """Instant of the first failure."""
    iteration: int = 0
    """Iteration of the last failed save. 0: unknown."""
    reason: str = ""
    in_a_row: int = 0
    exception: bool = False


class CheckpointFailed(Rule):
    """The saves in progress and the last failed one."""

    name = "checkpoint_failed"
    is_timed = True
    listens = (
        events.CheckpointSaveStarted, events.CheckpointSaveScheduled, events.CheckpointSaved,
        events.CheckpointFileWritten,
        events.FailureSeen, events.TracebackSeen, events.MilestoneReached,
    )  # fmt: skip

    pending: list[PendingSave] = field(default_factory=list)
    completed: int = 0
    longest_async: int | None = None
    file_open: bool = False
    failed: FailedSave | None = None

    def on_event(self, state: RunState, event: Event, _settings: RuleSettings) -> bool:
        """Saves begin, continue in the background, end, or meet an exception."""
        self.idle_until = -math.inf
        if isinstance(event, events.CheckpointSaveStarted):
            self._begun(state.attempt, event.iteration)
        elif isinstance(event, events.CheckpointSaveScheduled):
            save = self._find(event.iteration)
            if save is not None:
                save.scheduled = True
        elif isinstance(event, events.CheckpointFileWritten):
            self.file_open = not event.finished
        elif isinstance(event, events.CheckpointSaved):
            return self._completed(state, event.iteration)
        elif isinstance(event, events.MilestoneReached):
            return event.milestone == "training_done" and self._loop_done(state)
        elif isinstance(event, events.FailureSeen):
            if event.failure in _OF_THE_SAVE and event.fatal and not event.consequence:
                self._broken(state, event.message, disk=event.failure == "disk_full")
        elif isinstance(event, events.TracebackSeen) and event.role != "bystander":
            message = f"{event.exception}: {event.message}" if event.message else event.exception
            self._broken(state, message, disk=False)
        return False

    def _begun(self, attempt: Attempt, iteration: int | None) -> None:
        if attempt.ending.state == "crashed":
            return  # a last try after a failure that is reported already
        known = any(save.iteration == iteration and save.attempt == attempt.number for save in self.pending)
        # the loop has gone further and was not blocked: the line is late
        if not known and (iteration is None or (attempt.last_iteration or 0) <= iteration):
            self.pending.append(PendingSave(iteration, attempt.number))
            del self.pending[:-_PENDING]

    def _find(self, iteration: int | None) -> PendingSave | None:
        """Return the newest save of this iteration, or one without a known iteration."""
        saves = self.pending[::-1]
        exact = next((save for save in saves if iteration in (None, save.iteration)), None)
        return exact or next((save for save in saves if save.iteration is None), None)

    def _completed(self, state: RunState, iteration: int | None) -> bool:
        save = self._find(iteration)
        if save is not None:
            self.pending.remove(save)
            if save.scheduled:
                self.longest_async = max(save.lines, self.longest_async or 0)
        self.completed += 1
        self.file_open = False
        done = iteration if iteration is not None else state.learned.checkpoints.last_iteration
        resolved = self.failed is not None and (done is None or done >= self.failed.iteration)
        if resolved:
            self.failed = None
        if done is not None:  # an earlier save without a reported end no longer matters
            self.pending = [other for other in self.pending if (other.iteration or 0) > done]
        return resolved

    def _loop_done(self, state: RunState) -> bool:
        """Return True if a save that blocked the loop has ended."""
        others = [save for save in self.pending if save.scheduled or save.attempt != state.attempt.number]
        if len(others) == len(self.pending):
            return False
        self.pending = others
        return self._completed(state, state.learned.checkpoints.last_iteration)

    def _broken(self, state: RunState, message: str, *, disk: bool) -> None:
        """Note an exception that belongs to a save: it blocks the loop, or the text names the disk while files are
        written.
        """
        held = next((save for save in reversed(self.pending) if not save.scheduled and not save.lines), None)
        if held is None and disk and (self.file_open or self.pending):
            if not self.pending:
                self.pending.append(PendingSave(state.attempt.latest.iteration, state.attempt.number))
            held = self.pending[-1]
        if held is not None and not held.exception:
            held.exception, held.raised_at = message.strip()[:300], state.updated_at

    def _fail(self, iteration: int | None, reason: str, at: float) -> FailedSave:
        self.failed = failed = self.failed or FailedSave(at)
        failed.iteration, failed.reason = iteration or 0, reason
        failed.in_a_row += 1
        return failed

    def on_steps(self, state: RunState, steps: Sequence[Step], _settings: RuleSettings) -> bool:
        """The loop continues, so that saves must be complete soon."""
        changed = False
        for step in steps:
            if step.counted:
                changed |= self._wait(state, step)
        if not self.pending:
            self.idle_until = math.inf  # no step begins a save
        return changed

    def _wait(self, state: RunState, step: Step) -> bool:
        changed, number = False, state.attempt.number
        crashed = {end.number for end in state.ends if end.crashed}
        for save in list(self.pending):
            if save.attempt != number:
                why = "the attempt ended during the save: the checkpoint may be incomplete"
            elif save.exception:
                if save.iteration is not None and step.iteration <= save.iteration:
                    continue  # the step before the save, from another file
                why = save.exception
            elif state.attempt.step_source == "trainer" and not save.scheduled:
                # The program prints no end of a save, and its loop waits for it.
                changed = self._loop_done(state) or changed
                break
            else:
                save.lines += 1
                save.seconds += (step.printed_seconds or 0.0) * step.interval
                if not self._overdue(state, save):
                    continue
                why = f"no line reported success within {save.lines} iteration lines"
            self.pending.remove(save)
            if save.attempt in crashed:
                continue  # the crash has named it
            self._fail(save.iteration, why, save.raised_at or step.at).exception |= bool(save.exception)
            changed = True
        return changed

    def _overdue(self, state: RunState, save: PendingSave) -> bool:
        """Return True if a save takes too many iteration lines. False for a program that never reported a success."""
        if save.scheduled:
            known = self.longest_async
            return known is not None and save.lines > _ASYNCHRONOUS_FACTOR * max(known, _ITERATIONS)
        reports = self.completed > 0 or program_of(state.attempt.format).reports_saves
        return reports and save.lines > _ITERATIONS and save.seconds >= _MINIMUM

    def evaluate(self, state: RunState, now: float, _settings: RuleSettings) -> Finding:
        """Fire until a later save completes."""
        failed = self.failed
        raised = next((save for save in self.pending if save.exception and save.attempt == state.attempt.number), None)
        if failed is None and raised is not None:
            if now < raised.raised_at + _CAUGHT:
                return Finding("clear", next_check=raised.raised_at + _CAUGHT)
            failed = FailedSave(raised.raised_at, raised.iteration or 0, raised.exception, 1, exception=True)
        if failed is None:
            return CLEAR
        complete = state.learned.checkpoints.last_iteration
        severity: Severity = "critical" if failed.exception or failed.in_a_row > 1 else "warning"
        risk = unsaved_progress_seconds(state) or 0.0
        lost = f", {risk:.0f} s of training unsaved" if risk else ""
        last = f"the last complete one is iteration {complete}" if complete is not None else "none was completed before"
        which = f"the checkpoint of iteration {failed.iteration}" if failed.iteration else "a checkpoint"
        summary = f"{which} failed: {failed.reason}; {last}{lost}"
        evidence = {
            "failed_iteration": failed.iteration or None,
            "reason": failed.reason,
            "failed_in_a_row": failed.in_a_row,
            "last_complete_iteration": complete,
            "unsaved_progress_seconds": round(risk, 1),
        }
        return Finding("firing", severity, summary, evidence, onset=failed.iteration or None, since=failed.at)

    def interrupted(self, attempt: Attempt) -> int | None:
        """Return the iteration (0: unknown) of a save that the attempt's end interrupted, or None."""
        saves = [save for save in self.pending if save.attempt == attempt.number]
        # a program that never reported a success: its saves never complete in the log
        interrupted = saves and (self.completed or not all(save.lines for save in saves))
        return saves[-1].iteration or 0 if interrupted else None
