"""The life of a spike: how it begins, whether it comes back, and what a new launch makes of it."""

import math

from monitor.detectors.loss_spike.memory import LossSpikeSettings, Memory, Spike, Trace
from monitor.detectors.loss_spike.normal import CLOSED_BY, LEVEL_EVERY, MINIMUM, set_bars
from monitor.run.steps.step import Step
from monitor.statistics.median import median_high as median

_RECENT = 50  # lines whose median says whether the loss has come back (training-monitors.md, 3.4)
_CLIMB = 20  # lines: three such stretches that rise one over the other are a loss that climbs. Spikes that came back by
# themselves climbed for 20 to 40 lines, to three times the loss in one of 20 runs of MLPerf v5.1
_STANDING = 1000  # lines after which a level below a spike's is the new normal
_STEADY_NORM = 30  # lines after which a grad norm that stays high beside a normal loss is the new normal


def begin(
    memory: Memory, step: Step, checkpoint: int | None, kind: str, loss: float | None, norm: float | None,
    settings: LossSpikeSettings,
) -> None:  # fmt: skip
    """A spike, or a bump after a restart, with this line (logarithms of loss and grad norm)."""
    base = memory.resume_level if kind == "resume_bump" else memory.loss_level
    by_loss = loss is not None and base is not None and loss - base > math.log1p(settings.recovered)
    memory.spike = spike = Spike(
        onset=step.iteration,
        since=step.at,
        kind=kind,
        by="loss" if by_loss else "grad norm",
        loss_base=base,
        norm_base=memory.norm_level,
        loss_band=max(math.log1p(settings.recovered), 3 * memory.loss_spread),
        norm_band=max(math.log(3.0), 4 * memory.norm_spread),
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
            memory.norm = Trace()
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
            memory.spike, memory.loss, memory.norm = None, Trace(), Trace()
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
    bar = max(math.log1p(settings.resume_bump), 4 * memory.loss_spread, memory.loss_record)
    return len(over) >= CLOSED_BY and median(over) > bar
