"""NaN loss: the field is gone, `nan`, `inf`, or the grad norm is no number; steps that were all skipped told apart.

Megatron prints a loss only if it is above 0, and NaN is not: the field vanishes from the line. That is a finding only
in a run that printed it on the lines before, and only in a line that reaches past the place where it would stand. Of an
interval in which every step was skipped there is no loss to print: that is the loss scale's matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from msgspec import Struct

from monitor.detectors.memory import recall
from monitor.detectors.signals import advice, rollback
from monitor.detectors.verdict import Verdict
from monitor.run.phases import ENDED
from monitor.run.state import RunState
from parsers.events import EngineStepLogged, Event, IterationLogged, TrainerLogged

LISTENS: tuple[type[Event], ...] = (IterationLogged, TrainerLogged, EngineStepLogged)
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


@dataclass(slots=True)
class NanMemory:
    """What was printed up to now."""

    attempt: int = 0
    iteration: int = -1
    printed: int = 0
    """Lines with a loss in a row before the present trouble."""
    last_loss: float = 0.0
    last_iteration: int | None = None
    samples: int | None = None
    skipped_intervals: int = 0
    """Lines in a row without a loss because every step was skipped."""
    form: str = ""
    lines: int = 0
    norm_lines: int = 0
    onset: int = 0
    since: float = 0.0
    engine: str = ""
    """What the engine's own line printed beside a loss that is gone."""
    checkpoint: int | None = None


def on_event(state: RunState, event: Event, settings: NanLossSettings) -> bool:
    """See each report of a loss, copies included: they say the same."""
    memory = recall(state, "nan_loss", NanMemory)
    if memory.attempt != state.attempt.number:
        fresh = NanMemory(attempt=state.attempt.number, printed=memory.printed, last_loss=memory.last_loss)
        was, memory = memory.form, fresh
        state.memory_of["nan_loss"] = memory
        _see(memory, state, event, settings)
        return bool(was or memory.form)
    return _see(memory, state, event, settings)


def _see(memory: NanMemory, state: RunState, event: Event, settings: NanLossSettings) -> bool:
    if type(event) is IterationLogged:
        if state.driver != "iteration" or event.iteration != state.latest.iteration:
            return False  # another source that lags behind
        if event.iteration == memory.iteration:
            return False
        memory.iteration = event.iteration
        form = _form_of_line(memory, state, event, settings)
        if not form and not memory.form and not memory.lines:
            return False
    elif type(event) is TrainerLogged:
        if state.driver != "trainer" or event.loss is None:
            return False
        zero = event.loss == 0.0 and event.grad_norm is not None and not math.isfinite(event.grad_norm)
        form = "grad_norm" if zero else _form(event.loss) or _norm(memory, event.grad_norm, settings)
        memory.last_loss = event.loss if not form else memory.last_loss
    elif isinstance(event, EngineStepLogged) and event.loss is not None:
        memory.engine = _form(event.loss)
        if state.driver != "engine":
            return False
        form = memory.engine
    else:
        return False
    return _enter(memory, state, form)


def _form(loss: float) -> str:
    return "nan" if math.isnan(loss) else "inf" if math.isinf(loss) else ""


def _norm(memory: NanMemory, norm: float | None, settings: NanLossSettings) -> str:
    if norm is None or math.isfinite(norm):
        memory.norm_lines = 0
        return ""
    memory.norm_lines += 1
    return "grad_norm" if memory.norm_lines >= settings.grad_norm_lines else ""


def _form_of_line(memory: NanMemory, state: RunState, event: IterationLogged, settings: NanLossSettings) -> str:
    """How the loss of this line is no number; empty where it is one, or where nothing can be said."""
    skipped, counted = event.skipped_iterations, event.nan_iterations
    if event.lm_loss is not None:
        form = _form(event.lm_loss)
        if not form:
            memory.printed += 1
            memory.skipped_intervals = 0
            memory.last_loss, memory.last_iteration = event.lm_loss, event.iteration
            memory.samples, memory.checkpoint = event.consumed_samples, state.checkpoints.last_iteration
            return "counted" if counted else _norm(memory, event.grad_norm, settings)
        return form
    memory.skipped_intervals = 0
    if skipped is not None and skipped >= (state.log_interval or 1) and not counted:
        memory.skipped_intervals = 1
        return ""
    if counted:
        return "nan"
    if memory.form:
        return memory.form  # still gone
    if skipped is None and counted is None and event.grad_norm is None:
        return ""  # torn before the place where the loss would stand, or of a program that ends its line there
    printed, memory.printed = memory.printed, 0
    if printed >= settings.printed_before and memory.last_loss > settings.smallest:
        return "gone"
    norm = event.grad_norm
    unprotected = (state.latest.loss_scale or 1.0) <= 1.0
    return "grad_norm" if norm is not None and not math.isfinite(norm) and unprotected else ""


def _enter(memory: NanMemory, state: RunState, form: str) -> bool:
    """The loss is now of this form. Whether anything changed."""
    before = memory.form
    if not form:
        memory.form, memory.lines = "", 0
        return bool(before)
    if not before:
        memory.onset = state.latest.iteration or 0
        memory.since = state.last_iteration_at if state.last_iteration_at is not None else state.updated_at
    memory.form = form
    memory.lines += 1
    return True


def check(state: RunState, now: float, settings: NanLossSettings) -> Verdict:  # noqa: ARG001
    """Critical at the first line; with a loss scale that skips such steps a warning first."""
    if state.lost:
        return Verdict("nan_loss", "unknown")
    memory = recall(state, "nan_loss", NanMemory)
    if not memory.form or memory.attempt != state.attempt.number:
        return Verdict("nan_loss")
    if state.phase in ENDED:
        return Verdict("nan_loss", "unknown")
    scale = state.latest.loss_scale
    protected = memory.form == "counted" or (scale is not None and scale > 1.0)
    mild = protected and memory.lines < settings.protected_lines
    facts = rollback(state, memory.onset, memory.samples, memory.checkpoint)
    evidence: dict[str, object] = {"form": memory.form, "lines": memory.lines, **facts}
    if memory.last_iteration is not None:
        evidence |= {"last_finite_lm_loss": memory.last_loss, "last_finite_iteration": memory.last_iteration}
    if scale is not None:
        evidence["loss_scale"] = scale
    if memory.engine:
        evidence["engine_loss"] = memory.engine
    last = f"; last {memory.last_loss:.4g} at iteration {memory.last_iteration}" if memory.last_iteration else ""
    then = "the loss scale may skip it: look at the next lines" if mild else f"stop the run and {advice(facts)}"
    return Verdict(
        "nan_loss",
        "firing",
        severity="warning" if mild else "critical",
        summary=f"{_WORDS[memory.form]} since iteration {memory.onset} ({memory.lines} lines){last}; {then}",
        onset_iteration=memory.onset,
        since=memory.since,
        evidence=evidence,
    )
