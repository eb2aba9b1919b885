"""Loss spike, and what becomes of it: spike, recovering, rising, not recovered; or a bump after a restart.

Loss and grad norm are judged as logarithms against the level of the last lines of the same training, whose fall is
taken along (early in a training the loss falls by more in a hundred lines than a spike is high). A line is abnormal
that exceeds a floor, many spreads, and what the run has shown before by far: loss noise has heavy tails that no number
of standard deviations covers. While a spike is open nothing is learned, so it cannot widen its own window.
Most spikes recover by themselves (BLOOM's of 2022-04-12 in 30 iterations): they are information. Only one that does not
come back is notified.
"""

import math
from collections.abc import Sequence

from megatron_monitor.detectors.base import (
    Detector,
    Severity,
    Verdict,
    advice,
    percent,
    rollback,
    stated,
    unless_standing,
)
from megatron_monitor.detectors.loss_spike.memory import (
    BARS_EVERY,
    CLOSED_BY,
    LEVEL_EVERY,
    MINIMUM,
    LossSpikeSettings,
    Memory,
    Spike,
    is_abnormal,
    is_news,
    mark_level,
    set_bars,
)
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step
from megatron_monitor.statistics.median import median_high as median

_RECENT = 50  # lines whose median says whether the loss has come back (training-monitors.md, 3.4)
_CLIMB = 20  # lines: three such stretches that rise one over the other are a loss that climbs. Spikes that came back by
# themselves climbed for 20 to 40 lines, to three times the loss in one of 20 runs of MLPerf v5.1
_STANDING = 1000  # lines after which a level below a spike's is the new normal
_STEADY_NORM = 30  # lines after which a grad norm that stays high beside a normal loss is the new normal


# --- the life of a spike: how it begins, whether it comes back, what a new launch makes of it -----------------------


def begin(
    memory: Memory, step: Step, checkpoint: int | None, kind: str, loss: float | None, norm: float | None,
    settings: LossSpikeSettings,
) -> None:  # fmt: skip
    """A spike, or a bump after a restart, with this line (logarithms of loss and grad norm)."""
    base = memory.resume_level if kind == "resume_bump" else memory.loss.level
    by_loss = loss is not None and base is not None and loss - base > math.log1p(settings.recovered)
    memory.spike = spike = Spike(
        onset=step.iteration,
        since=step.at,
        kind=kind,
        by="loss" if by_loss else "grad norm",
        loss_base=base,
        norm_base=memory.norm.level,
        loss_band=max(math.log1p(settings.recovered), 3 * memory.loss.spread),
        norm_band=max(math.log(3.0), 4 * memory.norm.spread),
        samples_before=memory.samples,
        checkpoint=checkpoint,
    )
    memory.resume_left, memory.high = 0, None
    _measure(spike, loss, norm)


def _measure(spike: Spike, loss: float | None, norm: float | None) -> tuple[float | None, float | None]:
    """(excess of the loss, of the grad norm) of a line of an open spike."""
    spike.lines += 1
    spike.loss, spike.norm = loss, norm
    loss_excess = loss - spike.loss_base if loss is not None and spike.loss_base is not None else None
    norm_excess = norm - spike.norm_base if norm is not None and spike.norm_base is not None else None
    spike.loss_peak = max(spike.loss_peak, loss_excess or 0.0)
    spike.norm_peak = max(spike.norm_peak, norm_excess or 0.0)
    if loss_excess is not None:
        spike.recent.append(loss_excess)
        del spike.recent[: -3 * _CLIMB]
    return loss_excess, norm_excess


def follow(
    memory: Memory, spike: Spike, iteration: int, loss: float | None, norm: float | None, settings: LossSpikeSettings
) -> bool:
    """One more line of an open spike. Whether its stage changed."""
    loss_excess, norm_excess = _measure(spike, loss, norm)
    if loss_excess is None:
        spike.normal_lines = 0
        return False  # the loss is gone: another detector's finding
    low = loss_excess <= spike.loss_band
    calm = norm_excess is None or norm_excess <= spike.norm_band or spike.lines >= _STEADY_NORM
    spike.normal_lines = spike.normal_lines + 1 if low and calm else 0
    if spike.normal_lines >= CLOSED_BY:
        if norm_excess is not None and norm_excess > spike.norm_band:
            memory.norm.before(0)
            set_bars(memory, settings)
        memory.spike = None
        return True
    before, recent, floor = spike.stage, spike.recent, math.log1p(settings.loss_floor)
    if before == "not recovered" and (spike.lines < _STANDING or min(recent) >= floor):
        return False
    late = iteration - spike.onset >= settings.patience
    if late and (level := median(recent[-_RECENT:])) > spike.loss_band:
        spike.stage = "not recovered"
        if spike.lines >= _STANDING and level < floor:
            # a level that has stood for a thousand lines, below what a spike is: other data, another schedule
            memory.spike = None
            memory.loss.before(0)
            memory.norm.before(0)
            set_bars(memory, settings)
            return True
    elif spike.stage != "not recovered":
        spike.stage = _stage(spike, loss_excess, norm_excess or 0.0, floor, math.log1p(settings.recovered))
    return spike.stage != before


def _stage(spike: Spike, loss_excess: float, norm_excess: float, floor: float, risen: float) -> str:
    """What an open spike does; `risen`: against the stretch before; a high plateau does not rise."""
    if len(spike.recent) >= 3 * _CLIMB:
        first, second, third = (median(spike.recent[-back:][:_CLIMB]) for back in (3 * _CLIMB, 2 * _CLIMB, _CLIMB))
        if third > floor and third > second + risen and second > first + risen:
            return "rising"
    if loss_excess < 0.7 * spike.loss_peak or (spike.by != "loss" and norm_excess < spike.norm_peak):
        return "recovering"
    return "rising" if spike.stage == "rising" else "spike"


def resume(memory: Memory, attempt: int, iteration: int, settings: LossSpikeSettings) -> bool:
    """A new launch: what it will compute again is forgotten, an open spike is over. Whether one was open."""
    was_open = memory.spike is not None
    memory.attempt = attempt
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


def is_bump(memory: Memory, loss: float | None, settings: LossSpikeSettings) -> bool:
    """Whether the first lines after a restart stand above where the loss was before it."""
    memory.resume_left -= 1
    if loss is None or memory.resume_level is None:
        return False
    over = memory.resume_excess
    over.append(loss - memory.resume_level)
    bar = max(math.log1p(settings.resume_bump), 4 * memory.loss.spread, memory.loss.record)
    return len(over) >= CLOSED_BY and median(over) > bar


_CAUSES = {"spike": "spike", "resume_bump": "restart"}
_STAYS = {"not recovered": "not back", "rising": "still rising"}


def update(state: RunState, memory: Memory, steps: Sequence[Step], settings: LossSpikeSettings) -> bool:
    """See the lines of the step source; every node of HF Trainer or an engine may print the same one."""
    launch = state.launch
    lines, number, changed = launch.whole_lines, launch.number, False
    log, infinite = math.log, math.inf
    for step in steps:
        if not (step.counted if lines else is_news(memory, step)):
            continue
        printed, norm = step.loss, step.grad_norm
        if memory.attempt != number:
            changed |= resume(memory, number, step.iteration, settings)
        loss = log(printed) if printed is not None and 0.0 < printed < infinite else None
        # 0.000 is not computed, -1 neither, and a norm that is no number is another detector's
        norm = log(norm) if norm is not None and 0.0 < norm < infinite else None
        if memory.spike is not None or memory.resume_left:  # these lines may be off: nothing is learned from them
            changed |= _off(state, memory, step, loss, norm, settings)
            continue
        loss_excess, norm_excess = memory.loss.excess(loss), memory.norm.excess(norm)
        high = loss_excess > memory.loss.lower or norm_excess > memory.norm.lower or memory.high is not None
        if high and is_abnormal(memory, loss_excess, norm_excess, settings):  # nothing is learned from such a line
            begin(memory, step, state.past.checkpoints.last_iteration, "spike", loss, norm, settings)
            changed = True
            continue
        memory.last_excess = loss_excess
        if loss is not None:
            memory.loss.add(loss, step.iteration)
        if norm is not None:
            memory.norm.add(norm, step.iteration)
        memory.samples = step.samples
        memory.lines += 1
        if not memory.lines % BARS_EVERY:
            set_bars(memory, settings)
            if not memory.lines % LEVEL_EVERY and len(memory.loss.values) >= LEVEL_EVERY:
                mark_level(memory.levels, step.iteration, median(memory.loss.values[-LEVEL_EVERY:]))
    return changed


def _off(
    state: RunState, memory: Memory, step: Step, loss: float | None, norm: float | None, settings: LossSpikeSettings
) -> bool:
    """A line of an open spike, or one of the first after a restart. Whether anything changed."""
    if memory.spike is not None:
        return follow(memory, memory.spike, step.iteration, loss, norm, settings)
    bump = is_bump(memory, loss, settings)
    if bump:
        begin(memory, step, state.past.checkpoints.last_iteration, "resume_bump", loss, norm, settings)
    return bump


def check(state: RunState, memory: Memory, _now: float, settings: LossSpikeSettings) -> Verdict:
    """Information while a spike may still come back by itself, a warning when it rises on or has not come back."""
    spike = memory.spike
    if verdict := unless_standing(state, memory.attempt, found=spike is not None):
        return verdict
    assert spike is not None
    facts = rollback(state.launch, spike.onset, spike.samples_before, spike.checkpoint)
    level = median(spike.recent) if spike.recent else 0.0
    severity: Severity = "info"
    if spike.stage in _STAYS:
        severity = "critical" if spike.stage == "not recovered" and level > math.log1p(settings.critical) else "warning"
    evidence = {
        "class": spike.kind,
        "stage": spike.stage,
        "first_seen_in": spike.by,
        "lines": spike.lines,
        **_figures(spike),
        **facts,
    }
    summary = _summary(spike, facts, settings.patience)
    return Verdict("firing", severity, summary, evidence, onset=spike.onset, since=spike.since)


def _figures(spike: Spike) -> dict[str, float]:
    """Each figure that is known, as evidence."""
    loss, norm = spike.loss_base, spike.norm_base
    logarithms = {
        "lm_loss": spike.loss,
        "normal_lm_loss": loss,
        "peak_lm_loss": None if loss is None else loss + spike.loss_peak,
        "grad_norm": spike.norm,
        "normal_grad_norm": norm,
        "peak_grad_norm": None if norm is None else norm + spike.norm_peak,
    }
    return {name: float(f"{math.exp(value):.6g}") for name, value in stated(logarithms).items()}


def _summary(spike: Spike, facts: dict[str, object], patience: int) -> str:
    """One sentence: what, since when, the number against its normal, what to do."""
    parts = []
    if spike.loss is not None and spike.loss_base is not None:
        parts.append(
            f"lm loss {math.exp(spike.loss):.4g}, normal {math.exp(spike.loss_base):.4g} "
            f"({percent(spike.loss - spike.loss_base)})"
        )
    if spike.norm is not None and spike.norm_base is not None and spike.norm_peak > spike.norm_band:
        parts.append(f"grad norm {math.exp(spike.norm):.4g}, normal {math.exp(spike.norm_base):.4g}")
    values = "; ".join(parts)
    if stays := _STAYS.get(spike.stage):
        return f"loss {stays} since the {_CAUSES[spike.kind]} of iteration {spike.onset}: {values}; {advice(facts)}"
    if spike.kind == "resume_bump":
        return (
            f"loss bump after the restart at iteration {spike.onset}: {values}; if it stays, check that optimizer "
            "state, learning rate and data order were restored"
        )
    return (
        f"{spike.by} spike since iteration {spike.onset}: {values}; most come back by themselves, look again at "
        f"iteration {spike.onset + patience}"
    )


_WORSE = ("nan_loss", "divergence")  # words for the same loss
DETECTOR = Detector(LossSpikeSettings, check, Memory, update, inhibited_by=_WORSE)
