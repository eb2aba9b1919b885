"""The rule `resume_discontinuity`: after a restart the run does not continue where it was.

The first line of a new attempt is compared with what the run itself printed: learning rate, batch size and consumed
samples at the same iteration if it is computed again, otherwise just before it. A run that continues from its
checkpoint repeats its past exactly. A planned change (other arguments of the schedule) is shown and not notified.
"""

import bisect
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

from megatron_monitor.detectors.base import CLEAR, RANK, Finding, Rule, RuleSettings, Severity
from megatron_monitor.parsers.events import ProgramExited
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step

_MAX_LINES = 1024  # remembered lines; the older half is thinned above it, because a schedule is smooth


class PrintedStep(NamedTuple):
    """What a run printed at an iteration."""

    iteration: int
    rate: float | None
    batch: int | None
    samples: int | None


class StepHistory(Struct):
    """The lines of a run, thinned."""

    lines: list[PrintedStep] = field(default_factory=list)

    def add(self, line: PrintedStep) -> None:
        """Add a line. An iteration that was seen before is computed again and adds nothing."""
        if self.lines and line.iteration <= self.lines[-1].iteration:
            return
        self.lines.append(line)
        if len(self.lines) > _MAX_LINES:
            self.lines[: _MAX_LINES // 2] = self.lines[: _MAX_LINES // 2 : 2]

    @property
    def interval(self) -> int:
        """Return the iterations between the last two lines."""
        return max(1, self.lines[-1].iteration - self.lines[-2].iteration) if len(self.lines) > 1 else 1

    def around(self, iteration: int) -> tuple[PrintedStep, PrintedStep] | None:
        """Return the lines before and after an iteration, or the last two for a later one. None: it precedes all known
        lines.
        """
        lines = self.lines
        if not lines or iteration < lines[0].iteration:
            return None
        after = min(max(1, bisect.bisect_left(lines, iteration, key=itemgetter(0))), len(lines) - 1)
        return lines[max(0, after - 1)], lines[after]

    def at(self, column: Literal["rate", "samples"], iteration: int) -> tuple[float, float] | None:
        """Return (value, its change per iteration) at an iteration by the lines around it."""
        low, high = self.around(iteration) or (None, None)
        one, two = getattr(low, column, None), getattr(high, column, None)
        if low is None or high is None or one is None or two is None:
            return None
        steps = high.iteration - low.iteration
        if not steps and iteration != low.iteration:
            return None  # one line has no slope
        slope = (two - one) / steps if steps else 0.0
        return one + slope * (iteration - low.iteration), abs(slope)

    def batches_at(self, iteration: int) -> tuple[int, int] | None:
        """Return the smallest and largest batch size of the lines around an iteration."""
        known = [line.batch for line in self.around(iteration) or () if line.batch]
        return (min(known), max(known)) if known else None


_SLOPES = 3.0  # schedule steps by which skipped (overflowed) iterations may shift the learning rate


# Ratio to the schedule at this iteration: a resumed schedule repeats its digits, a lost one is far off.
_LEARNING_RATE = 0.05
_SAMPLES = 0.01  # Share of the consumed samples, beyond two batches: counters are exact, but a log may lack a line.
_SHOWN_SECONDS = 6 * 3600.0  # Seconds for which it is shown: what nobody corrected within six hours was intended.


def _found(what: str, severity: Severity, text: str, **evidence: Any) -> dict[str, Any]:
    """One value that does not continue."""
    return {"what": what, "severity": severity, "text": text, **evidence}


_IN_TIME = ("duration", "signal", "kill_switch")
"""Reasons for an attempt to end before its training is complete: the job's time limit, or a request."""


def _batch(history: StepHistory, step: Step, grows: bool, anew: bool) -> Iterator[dict[str, Any]]:
    batch, before = step.batch_size, history.batches_at(step.iteration)
    if anew or not batch or not before or before[0] <= batch <= before[1] or (grows and batch > before[1]):
        return
    text = f"batch size {batch}, before {before[1]}"
    yield _found("batch size", "warning", text, global_batch_size=batch, expected_batch_size=before[1])


def _samples(history: StepHistory, step: Step) -> Iterator[dict[str, Any]]:
    samples, found, before = step.samples, history.at("samples", step.iteration), history.batches_at(step.iteration)
    if samples is None or found is None:
        return
    expected, _ = found
    room = _SAMPLES * expected + 2 * history.interval * max(step.batch_size or 0, before[1] if before else 0)
    if abs(samples - expected) > room:
        text = f"consumed samples {samples}, expected {expected:.0f}: data is repeated or skipped"
        yield _found("samples", "critical", text, consumed_samples=samples, expected_samples=round(expected))


def _rate(history: StepHistory, step: Step, steps: int) -> Iterator[dict[str, Any]]:
    expected, rate = history.at("rate", step.iteration), step.learning_rate
    if expected is None or rate is None or expected[0] <= 0:
        return
    value, slope = expected
    if abs(rate - value) > _LEARNING_RATE * value + _SLOPES * slope * steps:
        text = f"learning rate {rate:.4g}, by the schedule {value:.4g} ({rate / value:.3g} x)"
        yield _found("learning rate", "critical", text, learning_rate=rate, expected_learning_rate=value)


def _ahead(history: StepHistory, step: Step, jump: int) -> bool:
    """Return a jump forward that the counter of samples does not show."""
    samples, known, batch = step.samples, history.lines[-1].samples, step.batch_size
    if samples is None or known is None or not batch:
        return False
    smallest = min(batch, history.lines[-1].batch or batch)
    return samples - known < (1 - _SAMPLES) * smallest * jump - 2 * batch


class ResumeDiscontinuity(Rule):
    """The run's past and the findings of the last restart."""

    name = "resume_discontinuity"
    listens = (ProgramExited,)

    history: StepHistory = field(default_factory=StepHistory)
    older: StepHistory | None = None
    """The past before a restart that went wrong: the next attempt may continue from there."""
    attempt: int = 0
    schedule: str | None = None
    total: int | None = None
    found: list[dict[str, Any]] = field(default_factory=list)
    found_at: float | None = None
    found_iteration: int | None = None
    expected_rate: float | None = None
    """Expected learning rate of the first line after the restart, while the second line may still match."""
    deliberate: bool = False
    """True if the last restart had another plan."""
    rate: float | None = None
    """Last printed learning rate."""
    rate_awaited: bool = False
    """True if the attempt has begun and has not printed a learning rate."""
    left_early: bool = False
    """True if the last attempt ended as planned before its last iteration, so that the next one must continue."""

    def on_event(self, state: RunState, event: ProgramExited, _settings: RuleSettings) -> bool:
        """A job of a chain that ends in time leaves work."""
        self.left_early = event.reason in _IN_TIME and not state.attempt.training_done
        return False

    def on_steps(self, state: RunState, steps: Sequence[Step], _settings: RuleSettings) -> bool:
        """Remember the lines. The first ones after a restart are compared."""
        attempt = state.attempt
        lines, number, changed = attempt.whole_lines, attempt.number, False
        for step in steps:
            rate, iteration = step.learning_rate, step.iteration
            if rate is not None:
                self.rate = rate
            if step.counted:
                if self.attempt != number:
                    changed |= self._resumed(state, step)
                elif self.found:
                    changed |= self._later(step, rate if lines else self.rate)
                if self.schedule is None:
                    self.schedule, self.total = attempt.topology.schedule, attempt.train_iterations
            if rate is not None and iteration and self.rate_awaited and self.attempt == number:
                self.rate_awaited = False
                changed |= self._first_rate(step)
            if step.counted if lines else rate is not None and iteration:
                self.history.add(PrintedStep(iteration, rate, step.batch_size, step.samples))
        return changed

    def _first_rate(self, step: Step) -> bool:
        """Compare the first learning rate. DeepSpeed and the Trainer print it in a line of its own, and not at each
        step.
        """
        history = self.older or self.history
        jump = step.iteration - history.lines[-1].iteration if history.lines else 0
        if not history.lines or jump > 2 * history.interval:
            return False
        found = list(_rate(history, step, max(history.interval, jump)))
        if found:
            self._take(step, found)
            self.older, self.history = history, StepHistory()
        return bool(found)

    def _later(self, step: Step, rate: float | None) -> bool:
        """Compare the second line, which may correct the first: a skipped step prints an arbitrary rate. Old findings
        end.
        """
        expected, self.expected_rate = self.expected_rate, None
        if expected is not None and rate is not None and abs(rate - expected) <= 2 * _LEARNING_RATE * expected:
            self.found = [item for item in self.found if item["what"] != "learning rate"]
            return True
        if self.found_at is None or step.at - self.found_at < _SHOWN_SECONDS:
            return False
        self.found = []  # `evaluate` reports nothing from now on
        return True

    def _resumed(self, state: RunState, step: Step) -> bool:
        had = bool(self.found)
        self.attempt, self.expected_rate = state.attempt.number, None
        pasts = [history for history in (self.history, self.older) if history is not None and history.lines]
        compared = [(self._compare(state, history, step), history) for history in pasts]
        found, history = min(compared, key=lambda pair: len(pair[0]), default=([], self.history))
        plan = state.attempt.topology.schedule, state.attempt.train_iterations
        self.deliberate = plan != (self.schedule, self.total)
        self.schedule, self.total = plan
        self.found, self.rate_awaited = [], not state.attempt.whole_lines
        self._take(step, found)
        anew = bool(history.lines) and step.iteration <= history.lines[0].iteration
        self.older, self.history = history if found else None, StepHistory() if found or anew else history
        self.left_early = False
        return had or bool(found)

    def _take(self, step: Step, found: list[dict[str, Any]]) -> None:
        for item in found:
            self.found.append(item | {"severity": "info"} if self.deliberate else item)
            self.found_at, self.found_iteration = step.at, step.iteration
            if item["what"] == "learning rate":
                self.expected_rate = float(item["expected_learning_rate"])

    def _compare(self, state: RunState, history: StepHistory, step: Step) -> list[dict[str, Any]]:
        """Return all values that do not continue from this past."""
        attempt = state.attempt
        iteration = step.iteration
        last, every = history.lines[-1].iteration, history.interval
        jump = iteration - last
        if jump > 2 * every:
            # Lines or iterations were lost: the present position in the schedule is unknown.
            if not _ahead(history, step, jump):
                return []
            text = f"continued at iteration {iteration} after {last}, but the consumed samples show no such jump"
            return [_found("iteration", "warning", text, iteration=iteration, last_iteration=last)]
        found: list[dict[str, Any]] = []
        saved = state.learned.checkpoints.last_iteration
        resumes = self.left_early or not state.after_finish
        if saved is not None and resumes and iteration + every <= saved <= last and iteration <= every:
            text = f"began at iteration {iteration} although the checkpoint of iteration {saved} exists"
            found.append(_found("iteration", "warning", text, iteration=iteration, last_checkpoint=saved))
        if attempt.whole_lines:
            found += _rate(history, step, max(every, jump))
        # a ramp may grow, and a run from iteration 0 may have any size
        found += _batch(history, step, grows=attempt.topology.rampup is not None, anew=iteration <= every)
        found += _samples(history, step)
        return found

    def evaluate(self, state: RunState, now: float, _settings: RuleSettings) -> Finding:
        """Fire from the first line after the restart on."""
        if not self.found or self.found_at is None or now - self.found_at >= _SHOWN_SECONDS:
            return CLEAR
        worst: Severity = max((item["severity"] for item in self.found), key=lambda name: RANK[name])
        texts = "; ".join(item["text"] for item in self.found)
        meant = " (other arguments: meant)" if worst == "info" else ""
        summary = f"after the restart at iteration {self.found_iteration}: {texts}{meant}"
        onset, display_only = self.found_iteration, worst == "info"
        evidence = {"restart": state.attempt.number, "found": self.found}
        return Finding("firing", worst, summary, evidence, onset=onset, since=self.found_at, display_only=display_only)
