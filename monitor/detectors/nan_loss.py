"""The rule `nan_loss`: the loss is missing, `nan` or `inf`, or the grad norm is NaN, unless each step was skipped.

Megatron prints a loss only if it is above 0. NaN is not, so that the field is missing from the line. A missing field is
evidence only if the lines before had it, and only in a line that extends beyond the field's position. If each step of
an interval was skipped, no loss is printed, and the rules about the loss scale apply.
"""

import math
from collections.abc import Sequence

from msgspec import field

from megatron_monitor.detectors.base import (
    CLEAR,
    AttemptRule,
    Finding,
    RuleSettings,
    Severity,
    advice,
    rollback,
    stated,
)
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step

_TEXTS = {
    "gone": "the loss is no longer printed, as Megatron does if it is NaN",
    "nan": "the loss is NaN",
    "inf": "the loss is infinite",
    "counted": "steps with a NaN loss were counted and skipped",
    "grad_norm": "the grad norm is no number",
}


# Lines in a row with a loss before its absence means anything: some forks print it only now and then.
_PRINTED_BEFORE = 3
# With a dynamic loss scale a NaN step is skipped and the next may be correct: critical from this line on.
_PROTECTED_LINES = 3
# Lines with a finite loss and a NaN grad norm: the search for a loss scale makes a few.
_GRAD_NORM_LINES = 5
_SMALLEST = 0.01  # A loss below this may have become 0, which is not printed either.


def _form(loss: float) -> str:
    return "" if math.isfinite(loss) else "nan" if math.isnan(loss) else "inf"


class NanLoss(AttemptRule):
    """What was printed so far."""

    name = "nan_loss"

    printed: int = 0
    """Lines in a row with a loss before the present problem."""
    last_loss: float = 0.0
    last_iteration: int | None = None
    samples: int | None = None
    checkpoint: int | None = None
    """Last checkpoint at the last normal line."""
    form: str = ""
    lines: int = 0
    norm_lines: int = 0
    onset: int = 0
    since: float = 0.0
    which: str = ""
    """Name of the loss. Empty: the main one."""
    finite: list[str] = field(default_factory=list)
    """Further losses that were finite at least once. Others are not computed."""
    format: str | None = None
    """Format of these lines: another program prints other values."""
    handed_on = ("printed", "last_loss", "finite", "format")
    """A loss that the attempt before printed may be missing in the first line of the next one."""

    def on_steps(self, state: RunState, steps: Sequence[Step], _settings: RuleSettings) -> bool:
        """Process each report of a loss."""
        attempt = state.attempt
        changed = False
        source, checkpoint = attempt.step_source, state.learned.checkpoints.last_iteration
        if attempt.format != self.format:
            self.format, self.printed, self.finite = attempt.format, 0, []
        for step in steps:
            if step.reported and (source == "iteration" or step.loss is not None):
                changed |= self._line(step, source == "trainer", checkpoint)
        return changed

    def _line(self, step: Step, zero_is_nan: bool, checkpoint: int | None) -> bool:
        """Process a line. `zero_is_nan`: a loss of 0 is NaN if the grad norm is, as HF's Trainer prints it. Return True
        if anything changed.
        """
        loss, norm, self.which = step.loss, step.grad_norm, ""
        other = self._other(step.losses) if step.losses else ""
        norm_is_nan = norm is not None and not math.isfinite(norm)
        if loss is None:
            return self._enter(step, other or self._absent(step))
        if not math.isfinite(loss) or (zero_is_nan and norm_is_nan and loss == 0.0):
            return self._enter(step, _form(loss) or "grad_norm")
        self.printed += 1
        self.last_loss, self.last_iteration = loss, step.iteration
        self.samples, self.checkpoint = step.samples, checkpoint
        if step.nans or norm_is_nan:
            return self._enter(step, "counted" if step.nans else self._norm(step) or other)
        self.norm_lines = 0
        return bool(other or self.form) and self._enter(step, other)

    def _other(self, losses: dict[str, float]) -> str:
        """Return the text of a further loss that is no longer finite."""
        for name, value in losses.items():
            if math.isfinite(value):
                if name not in self.finite:
                    self.finite.append(name)
            elif name in self.finite and not self.which:
                self.which = name
        return _form(losses[self.which]) if self.which else ""

    def _norm(self, step: Step) -> str:
        """Count lines with a NaN norm."""
        self.norm_lines += 1
        if self.norm_lines == 1 and not self.form:
            self.onset, self.since = step.iteration, step.at
        return "grad_norm" if self.norm_lines >= _GRAD_NORM_LINES else ""

    def _absent(self, step: Step) -> str:
        """Return the meaning of a line without a loss. Empty: it has none."""
        skipped, counted, norm = step.skipped, step.nans, step.grad_norm
        if skipped is not None and skipped >= step.interval and not counted:
            return ""
        if counted:
            return "nan"
        if self.form:
            return self.form  # still missing
        if skipped is None and counted is None and norm is None:
            return ""  # cut before the position of the loss, or from a program whose lines end there
        printed, self.printed = self.printed, 0
        if printed >= _PRINTED_BEFORE and self.last_loss > _SMALLEST:
            return "gone"
        unprotected = (step.loss_scale or 1.0) <= 1.0
        return "grad_norm" if norm is not None and not math.isfinite(norm) and unprotected else ""

    def _enter(self, step: Step, form: str) -> bool:
        """Note that the loss now has this form. Return True if anything changed."""
        before = self.form
        if not form:
            self.form, self.lines = "", 0
            return bool(before)
        if not before and form == "grad_norm" and self.norm_lines > 1:
            self.lines = self.norm_lines - 1  # reported after a few lines, beginning with the first
        elif not before:
            self.onset, self.since = step.iteration, step.at
        self.form = form
        self.lines += 1
        return True

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fire critical at the first line, or first a warning with a loss scale that skips such steps."""
        if not self.form:
            return CLEAR
        scale = state.attempt.latest.loss_scale
        protected = self.form == "counted" or (scale is not None and scale > 1.0)
        mild = protected and self.lines < _PROTECTED_LINES
        facts = rollback(state.attempt, self.onset, self.samples, self.checkpoint)
        finite = self.last_iteration
        evidence = {
            "form": self.form,
            "lines": self.lines,
            **facts,
            "last_finite_lm_loss": self.last_loss if finite is not None else None,
            "last_finite_iteration": finite,
            "loss_scale": scale,
        }
        gone = finite and finite < self.onset  # the loss itself may still be printed
        last = f"; last {self.last_loss:.4g} at iteration {finite}" if gone else ""
        then = (
            "the loss scaler may skip the step: watch the next lines" if mild else f"stop the run and {advice(facts)}"
        )
        counted = "1 line" if self.lines == 1 else f"{self.lines} lines"
        what = _TEXTS[self.form].replace("the loss", self.which or "the loss", 1)
        summary = f"{what} since iteration {self.onset} ({counted}){last}; {then}"
        severity: Severity = "warning" if mild else "critical"
        return Finding("firing", severity, summary, stated(evidence), onset=self.onset, since=self.since)
