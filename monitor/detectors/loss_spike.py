"""Loss spike, with a life: spike, recovering, rising, not recovered; the bump after a resume told apart.

What is abnormal is said in loss_normal.py. While a spike is open nothing is learned, so it cannot widen its own window.
Most spikes recover by themselves (BLOOM's of 2022-04-12 in 30 iterations): they are information. Only one that does not
come back is told to people.
"""

from __future__ import annotations

import math

from monitor.detectors.loss_normal import (
    CLOSED_BY,
    LEVEL_EVERY,
    MINIMUM,
    LossSpikeSettings,
    SpikeMemory,
    learn,
    set_bars,
)
from monitor.detectors.memory import recall
from monitor.detectors.signals import of_event, rollback
from monitor.detectors.spike import Spike, figures, measure, summary
from monitor.detectors.verdict import Severity, Verdict
from monitor.detectors.window import Trace, median
from monitor.run.phases import ENDED
from monitor.run.state import RunState
from parsers.events import Event

_CLIMB = 10  # lines: two such stretches are compared
_STANDING = 1000  # lines after which a level below a spike's is the new normal
_SETTLED_NORM = 30  # lines after which a grad norm that stays high beside a normal loss is the new normal


def on_step(state: RunState, settings: LossSpikeSettings) -> bool:
    """See the training loop's own line."""
    if state.driver != "iteration":
        return False
    latest = state.latest
    return _observe(state, latest.lm_loss, latest.grad_norm, settings)


def on_event(state: RunState, event: Event, settings: LossSpikeSettings) -> bool:
    """See a report of HF Trainer or of a lone engine; every node may print the same one."""
    signal = of_event(state, event)
    if signal is None or signal.loss is None:
        return False
    memory = recall(state, "loss_spike", SpikeMemory)
    key = (state.latest.iteration or 0, signal.loss)
    if key == memory.seen:
        return False
    memory.seen = key
    return _observe(state, signal.loss, signal.grad_norm, settings)


def _observe(state: RunState, printed: float | None, printed_norm: float | None, settings: LossSpikeSettings) -> bool:
    memory = recall(state, "loss_spike", SpikeMemory)
    changed = memory.attempt != state.attempt.number and _resume(memory, state, settings)
    loss = math.log(printed) if printed is not None and 0.0 < printed < math.inf else None
    # 0.000 is not computed, -1 neither, and a norm that is no number is another detector's
    norm = math.log(printed_norm) if printed_norm is not None and 0.0 < printed_norm < math.inf else None
    iteration = state.latest.iteration or 0
    if memory.spike is not None:
        return live(memory, memory.spike, iteration, loss, norm, settings) or changed
    if memory.resume_left:  # these lines may be off: nothing is learned from them
        if _bumped(memory, loss, settings):
            _open(memory, state, "resume_bump", loss, norm, settings)
            return True
        return changed
    if not learn(memory, iteration, state.latest.consumed_samples, loss, norm, settings):
        return changed
    _open(memory, state, "spike", loss, norm, settings)
    return True


def _open(
    memory: SpikeMemory,
    state: RunState,
    kind: str,
    loss: float | None,
    norm: float | None,
    settings: LossSpikeSettings,
) -> None:
    base = memory.resume_level if kind == "resume_bump" else memory.loss_level
    by_loss = loss is not None and base is not None and loss - base > math.log1p(settings.recovered)
    memory.spike = spike = Spike(
        onset=state.latest.iteration or 0,
        since=state.last_iteration_at if state.last_iteration_at is not None else state.updated_at,
        kind=kind,
        by="loss" if by_loss else "grad norm",
        loss_base=base,
        norm_base=memory.norm_level,
        loss_band=max(math.log1p(settings.recovered), 3 * memory.loss_spread),
        norm_band=max(math.log(3.0), 4 * memory.norm_spread),
        samples_before=memory.samples,
        checkpoint=state.checkpoints.last_iteration,
    )
    memory.resume_left, memory.high = 0, None
    measure(spike, loss, norm)


def live(
    memory: SpikeMemory,
    spike: Spike,
    iteration: int,
    loss: float | None,
    norm: float | None,
    settings: LossSpikeSettings,
) -> bool:
    """One more line of an open spike. Whether its stage changed."""
    loss_excess, norm_excess = measure(spike, loss, norm)
    if loss_excess is None:
        spike.normal_lines = 0
        return False  # the loss is gone: another detector's finding
    low = loss_excess <= spike.loss_band
    calm = norm_excess is None or norm_excess <= spike.norm_band or spike.lines >= _SETTLED_NORM
    spike.normal_lines = spike.normal_lines + 1 if low and calm else 0
    if spike.normal_lines >= CLOSED_BY:
        if norm_excess is not None and norm_excess > spike.norm_band:
            memory.norm = Trace()
            set_bars(memory, settings)
        memory.spike = None
        return True
    before, recent, floor = spike.stage, spike.recent, math.log1p(settings.loss_floor)
    if before == "not recovered" and (spike.lines < _STANDING or min(recent) >= floor):
        return False
    past_patience = iteration - spike.onset >= settings.patience
    if past_patience and (level := median(recent)) > spike.loss_band:
        spike.stage = "not recovered"
        if spike.lines >= _STANDING and level < floor:
            # a level that has stood for a thousand lines, below what a spike is: other data, another schedule
            memory.spike, memory.loss, memory.norm = None, Trace(), Trace()
            set_bars(memory, settings)
            return True
    elif spike.stage != "not recovered":
        risen = settings.recovered  # against the stretch before; a high plateau does not rise
        climbing = (
            len(recent) >= 2 * _CLIMB
            and (level := median(recent[-_CLIMB:])) > floor
            and level > median(recent[-2 * _CLIMB : -_CLIMB]) + math.log1p(risen)
        )
        if climbing:
            spike.stage = "rising"
        elif loss_excess < 0.7 * spike.loss_peak or (spike.by != "loss" and (norm_excess or 0) < spike.norm_peak):
            spike.stage = "recovering"
        elif spike.stage != "rising":
            spike.stage = "spike"
    return spike.stage != before


def _resume(memory: SpikeMemory, state: RunState, settings: LossSpikeSettings) -> bool:
    """A new launch: what it will compute again is forgotten, an open spike is history. Whether one was open."""
    iteration = state.latest.iteration or 0
    was_open = memory.spike is not None
    memory.attempt = state.attempt.number
    memory.spike = None
    memory.loss.before(iteration)
    memory.norm.before(iteration)
    memory.levels = [level for level in memory.levels if level[0] < iteration]
    memory.resume_left, memory.resume_excess = 0, []
    memory.resume_level = None
    if len(memory.loss.values) >= MINIMUM // 4:
        memory.resume_level = median(memory.loss.values[-LEVEL_EVERY:])
    elif memory.levels:
        memory.resume_level = memory.levels[-1][1]
    if memory.resume_level is not None:
        memory.resume_left = settings.resume_lines
    set_bars(memory, settings)
    return was_open


def _bumped(memory: SpikeMemory, loss: float | None, settings: LossSpikeSettings) -> bool:
    """Whether the first lines after a restart stand above where the loss was before it."""
    memory.resume_left -= 1
    if loss is None or memory.resume_level is None:
        return False
    over = memory.resume_excess
    over.append(loss - memory.resume_level)
    bar = max(math.log1p(settings.resume_bump), 4 * memory.loss_spread, memory.loss_record)
    return len(over) >= CLOSED_BY and median(over) > bar


def check(state: RunState, now: float, settings: LossSpikeSettings) -> Verdict:  # noqa: ARG001
    """Information while a spike may still come back by itself, a warning when it rises on or has not come back."""
    if state.lost:
        return Verdict("loss_spike", "unknown")
    memory = recall(state, "loss_spike", SpikeMemory)
    spike = memory.spike
    if spike is None or memory.attempt != state.attempt.number:
        return Verdict("loss_spike")
    if state.phase in ENDED:
        return Verdict("loss_spike", "unknown")  # nobody trains: what stood stands
    facts = rollback(state, spike.onset, spike.samples_before, spike.checkpoint)
    level = median(spike.recent) if spike.recent else 0.0
    severity: Severity = "info"
    if spike.stage in ("not recovered", "rising"):
        severity = "critical" if spike.stage == "not recovered" and level > math.log1p(settings.critical) else "warning"
    evidence = {
        "class": spike.kind,
        "stage": spike.stage,
        "first_seen_in": spike.by,
        "lines": spike.lines,
        **{name: float(f"{math.exp(value):.6g}") for name, value in figures(spike)},
        **facts,
    }
    return Verdict(
        "loss_spike",
        "firing",
        severity=severity,
        summary=summary(spike, facts, settings.patience),
        onset_iteration=spike.onset,
        since=spike.since,
        evidence=evidence,
    )
