"""NaN loss: the field is gone, `nan`, `inf`, or the grad norm is no number; not where every step was skipped.

Megatron prints a loss only if it is above 0, and NaN is not: the field vanishes from the line. That is a finding only
in a run that printed it on the lines before, and only in a line that reaches past the place where it would stand. Of an
interval in which every step was skipped there is no loss to print: that is the loss scale's matter.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from megatron_monitor.detectors.base import (
    Detector,
    OfLaunch,
    Severity,
    Verdict,
    advice,
    rollback,
    stated,
    unless_standing,
)
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step

_WORDS = {
    "gone": "the loss is no longer printed, which Megatron does when it is NaN",
    "nan": "the loss is NaN",
    "inf": "the loss is infinite",
    "counted": "steps with a NaN loss were counted and skipped",
    "grad_norm": "the grad norm is no number",
}


class NanLossSettings(Struct, frozen=True):
    """Thresholds, each with its reason."""

    printed_before: int = 3
    """Lines in a row that carried a loss before its absence means anything: some forks print it now and then."""
    protected_lines: int = 3
    """With a dynamic loss scale a NaN step is skipped and the next may be sound: critical from this line on."""
    grad_norm_lines: int = 5
    """Lines with a finite loss whose grad norm is no number: the search of a loss scale makes a few of them."""
    smallest: float = 0.01
    """A loss that was this small before may have become 0, which is not printed either."""


class Memory(OfLaunch):
    """What was printed up to now."""

    printed: int = 0
    """Lines with a loss in a row before the present trouble."""
    last_loss: float = 0.0
    last_iteration: int | None = None
    samples: int | None = None
    checkpoint: int | None = None
    """The last checkpoint as of the last good line."""
    form: str = ""
    lines: int = 0
    norm_lines: int = 0
    onset: int = 0
    since: float = 0.0
    engine: str = ""
    """What the engine's own line printed beside a loss that is gone."""
    HANDED_ON = ("printed", "last_loss")
    """A loss that the launch before printed may be gone in the first line of the next one."""


def update(state: RunState, memory: Memory, steps: Sequence[Step], settings: NanLossSettings) -> bool:
    """See each report of a loss."""
    launch = state.launch
    changed = False
    source, checkpoint = launch.driver, state.past.checkpoints.last_iteration
    for step in steps:
        loss = step.loss
        if step.reported and source == "iteration":
            changed |= _line(memory, step, checkpoint, settings)
        elif loss is None:
            continue
        elif step.reported and source == "trainer":
            changed |= _trainers(memory, step, loss, settings)
        else:
            memory.engine = _form(loss)
            if step.reported:
                changed |= _enter(memory, step, memory.engine)
    return changed


def _line(memory: Memory, step: Step, checkpoint: int | None, settings: NanLossSettings) -> bool:
    """A line of the loop. Whether anything changed."""
    loss, norm = step.loss, step.grad_norm
    if loss is None or not math.isfinite(loss):
        return _enter(memory, step, _absent(memory, step, settings) if loss is None else _form(loss))
    memory.printed += 1
    memory.last_loss, memory.last_iteration = loss, step.iteration
    memory.samples, memory.checkpoint = step.samples, checkpoint
    if step.nans or not (norm is None or math.isfinite(norm)):
        return _enter(memory, step, "counted" if step.nans else _norm(memory, step, settings))
    memory.norm_lines = 0
    return _enter(memory, step, "")


def _trainers(memory: Memory, step: Step, loss: float, settings: NanLossSettings) -> bool:
    """HF's Trainer prints a loss of 0 for one that is no number, where the grad norm tells."""
    form, norm = _form(loss), step.grad_norm
    if norm is None or math.isfinite(norm):
        memory.norm_lines = memory.norm_lines if form else 0
    elif not form:
        form = "grad_norm" if loss == 0.0 else _norm(memory, step, settings)
    if not form:
        memory.last_loss = loss
    return _enter(memory, step, form)


def _form(loss: float) -> str:
    return "" if math.isfinite(loss) else "nan" if math.isnan(loss) else "inf"


def _norm(memory: Memory, step: Step, settings: NanLossSettings) -> str:
    """Of a norm that is no number."""
    memory.norm_lines += 1
    if memory.norm_lines == 1 and not memory.form:
        memory.onset, memory.since = step.iteration, step.at
    return "grad_norm" if memory.norm_lines >= settings.grad_norm_lines else ""


def _absent(memory: Memory, step: Step, settings: NanLossSettings) -> str:
    """What a line without a loss means; empty where nothing can be said."""
    skipped, counted, norm = step.skipped, step.nans, step.grad_norm
    if skipped is not None and skipped >= step.interval and not counted:
        return ""
    if counted:
        return "nan"
    if memory.form:
        return memory.form  # still gone
    if skipped is None and counted is None and norm is None:
        return ""  # torn before the place where the loss would stand, or of a program that ends its line there
    printed, memory.printed = memory.printed, 0
    if printed >= settings.printed_before and memory.last_loss > settings.smallest:
        return "gone"
    unprotected = (step.loss_scale or 1.0) <= 1.0
    return "grad_norm" if norm is not None and not math.isfinite(norm) and unprotected else ""


def _enter(memory: Memory, step: Step, form: str) -> bool:
    """The loss is now of this form. Whether anything changed."""
    before = memory.form
    if not form:
        memory.form, memory.lines = "", 0
        return bool(before)
    if not before and form == "grad_norm" and memory.norm_lines > 1:
        memory.lines = memory.norm_lines - 1  # it is believed after a few lines, and began with the first
    elif not before:
        memory.onset, memory.since = step.iteration, step.at
    memory.form = form
    memory.lines += 1
    return True


def check(state: RunState, memory: Memory, _now: float, settings: NanLossSettings) -> Verdict:
    """Critical at the first line; with a loss scale that skips such steps a warning first."""
    if verdict := unless_standing(state, memory.attempt, found=bool(memory.form)):
        return verdict
    scale = state.launch.latest.loss_scale
    protected = memory.form == "counted" or (scale is not None and scale > 1.0)
    mild = protected and memory.lines < settings.protected_lines
    facts = rollback(state.launch, memory.onset, memory.samples, memory.checkpoint)
    finite = memory.last_iteration
    evidence = {
        "form": memory.form,
        "lines": memory.lines,
        **facts,
        "last_finite_lm_loss": memory.last_loss if finite is not None else None,
        "last_finite_iteration": finite,
        "loss_scale": scale,
        "engine_loss": memory.engine or None,
    }
    gone = finite and finite < memory.onset  # the loss itself may be printed on
    last = f"; last {memory.last_loss:.4g} at iteration {finite}" if gone else ""
    then = "the loss scale may skip it: look at the next lines" if mild else f"stop the run and {advice(facts)}"
    summary = f"{_WORDS[memory.form]} since iteration {memory.onset} ({memory.lines} lines){last}; {then}"
    severity: Severity = "warning" if mild else "critical"
    return Verdict("firing", severity, summary, stated(evidence), onset=memory.onset, since=memory.since)


DETECTOR = Detector(NanLossSettings, check, Memory, update)
