"""The rule `resume_discontinuity`: after a restart the run does not continue where it was.

The first lines of a new attempt are compared with what the run itself printed: learning rate, batch size and consumed
samples at the same iteration if it is computed again, otherwise just before it. A run that continues from its
checkpoint repeats its past exactly. Other arguments of the schedule are a planned change: nothing is compared.
"""

import bisect
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Literal

from msgspec import Struct, field

from megatron_monitor.detectors.base import CLEAR, RANK, Finding, Rule, RuleSettings, Severity
from megatron_monitor.parsers.events import ProgramExited
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step

_MAX_LINES = 1024  # remembered lines; the older half is thinned above it, because a schedule is smooth
_SLOPES = 3.0  # schedule steps by which skipped (overflowed) iterations may shift the learning rate
# Ratio to the schedule at this iteration: a resumed schedule repeats its digits, a lost one is far off.
_LEARNING_RATE = 0.05
_SAMPLES = 0.01  # Share of the consumed samples, beyond two batches: counters are exact, but a log may lack a line.
_SHOWN_SECONDS = 6 * 3600.0  # Seconds for which it is shown: what nobody corrected within six hours was intended.
_COMPARED = 2  # lines of an attempt whose learning rate is compared: a skipped first step prints an arbitrary rate
_IN_TIME = ("duration", "signal", "kill_switch")
"""Reasons for an attempt to end before its training is complete: the job's time limit, or a request."""


class PrintedStep(Struct, array_like=True, gc=False):
    """What a run printed at an iteration."""

    iteration: int
    rate: float | None
    batch: int | None
    samples: int | None


def _found(what: str, severity: Severity, text: str, **evidence: Any) -> dict[str, Any]:
    """One value that does not continue."""
    return {"what": what, "severity": severity, "text": text, **evidence}


class ResumeDiscontinuity(Rule):
    """The run's past and the findings of the last restart."""

    name = "resume_discontinuity"
    listens = (ProgramExited,)

    lines: list[PrintedStep] = field(default_factory=list)
    """The lines of the run, thinned, without those of an attempt that did not continue."""
    attempt: int = 0
    plan: tuple[str | None, int | None] = (None, None)
    """Schedule and last iteration by the arguments."""
    found: list[dict[str, Any]] = field(default_factory=list)
    found_at: float = 0.0
    found_iteration: int | None = None
    awaited: int = 0
    """Number of lines of this attempt whose learning rate is still compared."""
    left_early: bool = False
    """True if the last attempt ended as planned before its last iteration, so that the next one must continue."""

    def on_event(self, state: RunState, event: ProgramExited, _settings: RuleSettings) -> bool:
        """A job of a chain that ends in time leaves work."""
        self.left_early = event.reason in _IN_TIME and not state.attempt.training_done
        return False

    def on_steps(self, state: RunState, steps: Sequence[Step], _settings: RuleSettings) -> bool:
        """Remember the lines. The first ones after a restart are compared.

        DeepSpeed and the Trainer print the learning rate in a line of its own, and not at each step.
        """
        attempt, changed = state.attempt, False
        for step in steps:
            rate, iteration = step.learning_rate, step.iteration
            if step.counted:
                if self.attempt != attempt.number:
                    changed |= self._resumed(state, step)
                elif self.found and step.at - self.found_at >= _SHOWN_SECONDS:
                    self.found, self.lines, changed = [], [], True
                if self.plan[0] is None:
                    self.plan = attempt.topology.schedule, attempt.train_iterations
            if self.attempt != attempt.number:
                continue
            if self.awaited and rate is not None and iteration:
                changed |= self._compare_rate(step)
            is_line = step.counted if attempt.step_source == "iteration" else rate is not None and iteration
            # an iteration that was seen before is computed again and adds nothing
            if is_line and not self.found and not (self.lines and iteration <= self.lines[-1].iteration):
                self._add(PrintedStep(iteration, rate, step.batch_size, step.samples))
        return changed

    def _add(self, line: PrintedStep) -> None:
        self.lines.append(line)
        if len(self.lines) > _MAX_LINES:
            self.lines[: _MAX_LINES // 2] = self.lines[: _MAX_LINES // 2 : 2]

    def _resumed(self, state: RunState, step: Step) -> bool:
        """Compare the first step of an attempt. Return True if the finding has changed."""
        had, plan = bool(self.found), (state.attempt.topology.schedule, state.attempt.train_iterations)
        if plan != self.plan:
            self.lines = []
        self.plan = plan
        self.attempt, self.found, self.awaited = state.attempt.number, [], _COMPARED
        self._take(step, list(self._values(state, step)))
        if self.lines and step.iteration <= self.lines[0].iteration and not self.found:
            self.lines = []
        self.left_early = False
        return had or bool(self.found)

    def _compare_rate(self, step: Step) -> bool:
        """Compare the first learning rate of an attempt. That of the next iteration may correct it."""
        if self.awaited < _COMPARED and step.iteration == self.found_iteration:
            return False
        self.awaited -= 1
        found = list(self._rate(step))
        if self.awaited:
            self._take(step, found)
            return bool(found)
        rest = [item for item in self.found if item["what"] != "learning rate"]
        changed = not found and len(rest) < len(self.found)
        if changed:
            self.found = rest
        return changed

    def _take(self, step: Step, found: list[dict[str, Any]]) -> None:
        for item in found:
            self.found.append(item)
            self.found_at, self.found_iteration = step.at, step.iteration

    # --- the past -----------------------------------------------------------------------------------------------

    def _interval(self) -> int:
        """Return the iterations between the last two lines."""
        return max(1, self.lines[-1].iteration - self.lines[-2].iteration) if len(self.lines) > 1 else 1

    def _follows(self, iteration: int) -> bool:
        """Return True if the position in the schedule is known: no lines or iterations were lost."""
        return bool(self.lines) and iteration - self.lines[-1].iteration <= _COMPARED * self._interval()

    def _around(self, iteration: int) -> tuple[PrintedStep, PrintedStep] | None:
        """Return the lines before and after an iteration, or the last two for a later one. None: it precedes all known
        lines.
        """
        lines = self.lines
        if not lines or iteration < lines[0].iteration:
            return None
        after = min(max(1, bisect.bisect_left(lines, iteration, key=attrgetter("iteration"))), len(lines) - 1)
        return lines[max(0, after - 1)], lines[after]

    def _at(self, column: Literal["rate", "samples"], iteration: int) -> tuple[float, float] | None:
        """Return (value, its change per iteration) at an iteration by the lines around it."""
        low, high = self._around(iteration) or (None, None)
        one, two = getattr(low, column, None), getattr(high, column, None)
        if low is None or high is None or one is None or two is None:
            return None
        steps = high.iteration - low.iteration
        if not steps and iteration != low.iteration:
            return None  # one line has no slope
        slope = (two - one) / steps if steps else 0.0
        return one + slope * (iteration - low.iteration), abs(slope)

    def _values(self, state: RunState, step: Step) -> Iterator[dict[str, Any]]:
        """Yield the values that do not continue, without the learning rate."""
        iteration = step.iteration
        if not self._follows(iteration):
            return
        last, every, saved = self.lines[-1].iteration, self._interval(), state.learned.checkpoints.last_iteration
        resumes = self.left_early or not state.after_finish
        if saved is not None and resumes and iteration + every <= saved <= last and iteration <= every:
            text = f"began at iteration {iteration} although the checkpoint of iteration {saved} exists"
            yield _found("iteration", "warning", text, iteration=iteration, last_checkpoint=saved)
        batch, sizes = step.batch_size or 0, [line.batch for line in self._around(iteration) or () if line.batch]
        # a ramp may grow, and a run from iteration 0 may have any size
        grows = state.attempt.topology.rampup is not None and batch > max(sizes, default=0)
        if batch and sizes and iteration > every and not (min(sizes) <= batch <= max(sizes) or grows):
            text = f"batch size {batch}, before {max(sizes)}"
            yield _found("batch size", "warning", text, global_batch_size=batch, expected_batch_size=max(sizes))
        yield from self._samples(step, 2 * every * max(batch, *sizes, 0))

    def _samples(self, step: Step, within: int) -> Iterator[dict[str, Any]]:
        """Yield the consumed samples if they do not continue, `within` so many samples."""
        expected, _ = self._at("samples", step.iteration) or (None, None)
        if (
            step.samples is not None
            and expected is not None
            and abs(step.samples - expected) > _SAMPLES * expected + within
        ):
            text = f"consumed samples {step.samples}, expected {expected:.0f}: data is repeated or skipped"
            samples = {"consumed_samples": step.samples, "expected_samples": round(expected)}
            yield _found("samples", "critical", text, **samples)

    def _rate(self, step: Step) -> Iterator[dict[str, Any]]:
        """Yield the learning rate if it does not continue."""
        expected, rate = self._at("rate", step.iteration), step.learning_rate
        if expected is None or rate is None or expected[0] <= 0 or not self._follows(step.iteration):
            return
        value, slope = expected
        steps = max(self._interval(), step.iteration - self.lines[-1].iteration)
        if abs(rate - value) > _LEARNING_RATE * value + _SLOPES * slope * steps:
            text = f"learning rate {rate:.4g}, by the schedule {value:.4g} ({rate / value:.3g} x)"
            yield _found("learning rate", "critical", text, learning_rate=rate, expected_learning_rate=value)

    def evaluate(self, state: RunState, now: float, _settings: RuleSettings) -> Finding:
        """Fire from the first line after the restart on."""
        if not self.found or now - self.found_at >= _SHOWN_SECONDS:
            return CLEAR
        worst: Severity = max((item["severity"] for item in self.found), key=lambda name: RANK[name])
        texts = "; ".join(item["text"] for item in self.found)
        summary = f"after the restart at iteration {self.found_iteration}: {texts}"
        evidence = {"restart": state.attempt.number, "found": self.found}
        return Finding("firing", worst, summary, evidence, onset=self.found_iteration, since=self.found_at)
