"""Loss spike, with a life: spike, recovering, rising, not recovered; the bump after a resume told apart.

Loss and grad norm are judged as logarithms against the level of the last lines of the same training, whose fall is
taken along (early in a training the loss falls by more in a hundred lines than a spike is high). A line is abnormal
that exceeds a floor, many spreads, and what the run has shown before by far: loss noise has heavy tails that no number
of standard deviations covers. While a spike is open nothing is learned, so it cannot widen its own window. Most spikes
recover by themselves (BLOOM's of 2022-04-12 in 30 iterations): they are information. Only one that does not come back
is told to people.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import sub

from msgspec import Struct

from monitor.detectors.memory import recall
from monitor.detectors.signals import of_event, rollback
from monitor.detectors.spike import Spike, figures, measure, summary
from monitor.detectors.verdict import Severity, Verdict
from monitor.detectors.window import Trace, median, spread
from monitor.run.phases import ENDED
from monitor.run.state import RunState
from monitor.run.units import Factor, Ratio
from parsers.events import Event

_ROOT_2 = math.sqrt(2)
_WINDOW = 128  # lines of the present normal: what OLMo-core takes; long enough for quartiles, short enough to follow
_STRETCH = 32  # lines whose median is the level; what it lost against the stretch before is the fall
_LAG = 8  # lines between the two values of a difference: far enough that noise has forgotten, no trend in between
_MINIMUM = 64  # lines before anything is judged
_DECAY = 0.992  # of the largest healthy excess, at each look: remembered for some 2,000 lines
_BARS_EVERY = 16  # lines between two looks at level, spread and bars
_LEVEL_EVERY, _LEVELS = 32, 256  # lines between two marks of the level, marks kept: what a resume is compared with
_LOSS_SPREAD, _NORM_SPREAD = 0.004, 0.05
"""Least spreads: bf16 losses take few distinct values (steps of 0.4 to 0.8 %), so a window's own may be 0."""
_CLIMB = 10  # lines: two such stretches are compared
_CLOSED_BY = 3  # normal lines in a row that end a spike
_RAISED, _RAISED_NORM = 2.5, math.log(2.0)  # spreads of the loss before, and grad norm beside it, that support a jump
_STAYS = 0.8  # share of the line before: noise falls back by half in a line, a spike does not
_SETTLED_NORM = 30  # lines after which a grad norm that stays high beside a normal loss is the new normal


class LossSpikeSettings(Struct, frozen=True):
    """Thresholds, each with its reason."""

    loss_floor: Ratio = 0.08
    """A smaller jump of the loss is no spike, however quiet the run was: spikes on record begin at 10 to 18 %."""
    loss_alone: Ratio = 0.5
    """Least jump in one line without a sign in the grad norm or in the line before: a single odd batch reads 30 % high
    in runs of 2 % noise, and the next line is normal."""
    norm_floor: Factor = 12.0
    """Times the normal grad norm in a single line: a public run has one of 6.7 without any trace in the loss."""
    norm_floor_twice: Factor = 4.0
    """The same in two lines in a row, or beside a high loss: BLOOM's spike began with 3.9, 9.9, 66 times."""
    spreads: Factor = 10.0
    """Robust standard deviations in a single line: OLMo-core's 6 assume a normal distribution, batches are
    heavier-tailed."""
    record_factor: Factor = 2.0
    """Times the largest excess that this run has shown in health: the tail is learned, not assumed."""
    twice: Ratio = 0.6
    """Of these bars for two lines in a row of which the second is hardly lower, or for three lines in a row."""
    recovered: Ratio = 0.02
    """Within this of the normal before (or three spreads) the loss has come back."""
    patience: int = 200
    """Iterations that a spike may take to come back before people are told: spikes on record took 30 to 500."""
    critical: Ratio = 0.5
    """Not recovered and this much above normal: everything computed since is lost work."""
    resume_lines: int = 10
    """Lines after a restart in which an excess is a bump of the resume, not a spike."""
    resume_bump: Ratio = 0.05
    """Median excess over the loss before the restart that makes a bump: optimizer state or data order was lost."""


@dataclass(slots=True)
class SpikeMemory:
    """What is normal now, and the spike that is open."""

    attempt: int = 0
    loss: Trace = field(default_factory=Trace)
    norm: Trace = field(default_factory=Trace)
    loss_level: float | None = None
    """What the next line should read; None until enough is known."""
    norm_level: float | None = None
    loss_spread: float = _LOSS_SPREAD
    norm_spread: float = _NORM_SPREAD
    loss_record: float = 0.0
    norm_record: float = 0.0
    loss_bar: float = math.inf
    norm_bar: float = math.inf
    norm_bar_twice: float = math.inf
    loss_look: float = math.inf
    """The lower bars, for two lines in a row."""
    high: tuple[float, float, int] | None = None
    """Excesses of the line before (loss, grad norm) if one of them was above its lower bar, and so many such lines."""
    last_excess: float = 0.0
    lines: int = 0
    samples: int | None = None
    seen: tuple[int, float] | None = None
    levels: list[tuple[int, float]] = field(default_factory=list)
    resume_left: int = 0
    resume_level: float | None = None
    resume_excess: list[float] = field(default_factory=list)
    spike: Spike | None = None


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
    if memory.spike is not None:
        return _live(memory, memory.spike, state, loss, norm, settings) or changed
    if memory.resume_left:  # these lines may be off: nothing is learned from them
        if _bumped(memory, loss, settings):
            _open(memory, state, "resume_bump", loss, norm, settings)
            return True
        return changed
    loss_excess = loss - memory.loss_level if loss is not None and memory.loss_level is not None else 0.0
    norm_excess = norm - memory.norm_level if norm is not None and memory.norm_level is not None else 0.0
    high = loss_excess > memory.loss_look or norm_excess > memory.norm_bar_twice or memory.high is not None
    if high and _abnormal(memory, loss_excess, norm_excess, settings):
        _open(memory, state, "spike", loss, norm, settings)
        return True
    memory.last_excess = loss_excess
    iteration = state.latest.iteration or 0
    if loss is not None:
        memory.loss.values.append(loss)
        memory.loss.stamps.append(iteration)
        if loss_excess > memory.loss_record:
            memory.loss_record = loss_excess
    if norm is not None:
        memory.norm.values.append(norm)
        memory.norm.stamps.append(iteration)
        if norm_excess > memory.norm_record:
            memory.norm_record = norm_excess
    memory.samples = state.latest.consumed_samples
    memory.lines += 1
    if memory.lines % _BARS_EVERY == 0:
        _set_bars(memory, settings)
        if memory.lines % _LEVEL_EVERY == 0 and len(memory.loss.values) >= _LEVEL_EVERY:
            memory.levels.append((iteration, median(memory.loss.values[-_LEVEL_EVERY:])))
            if len(memory.levels) > _LEVELS:
                del memory.levels[::2]  # the past gets coarser, it is never forgotten
    return changed


def _abnormal(memory: SpikeMemory, loss: float, norm: float, settings: LossSpikeSettings) -> bool:
    """Whether this line is part of a spike. Remembers it for the next one."""
    if norm > memory.norm_bar:
        return True
    high_loss = loss if loss > memory.loss_look else 0.0
    high_norm = norm if norm > memory.norm_bar_twice else 0.0
    loss_before, norm_before, lines = memory.high or (0.0, 0.0, 0)
    memory.high = (high_loss, high_norm, lines + 1) if high_loss or high_norm else None
    if memory.high is None:
        return False
    if (high_loss or loss_before) and (high_norm or norm_before):
        return True
    if loss > memory.loss_bar:
        raised = norm > max(_RAISED_NORM, 4 * memory.norm_spread) or memory.last_excess > _RAISED * memory.loss_spread
        if raised or loss > max(math.log1p(settings.loss_alone), 2 * memory.loss_bar):
            return True
    stays = (loss_before and high_loss >= _STAYS * loss_before) or (norm_before and high_norm >= norm_before)
    return bool(stays) or lines + 1 >= _CLOSED_BY


def _set_bars(memory: SpikeMemory, settings: LossSpikeSettings) -> None:
    """Level, spread and bars from the lines that are known now."""
    memory.loss.keep(_WINDOW)
    memory.norm.keep(_WINDOW)
    memory.loss_record *= _DECAY
    memory.norm_record *= _DECAY
    memory.loss_bar = memory.loss_look = memory.norm_bar = memory.norm_bar_twice = math.inf
    memory.loss_level, own = _level(memory.loss.values)
    if memory.loss_level is not None:
        memory.loss_spread = max(own, _LOSS_SPREAD)
        memory.loss_bar = max(
            math.log1p(settings.loss_floor),
            settings.spreads * memory.loss_spread,
            settings.record_factor * memory.loss_record,
        )
        memory.loss_look = settings.twice * memory.loss_bar
    memory.norm_level, own = _level(memory.norm.values)
    if own == 0.0:  # a constant is not computed: no evidence
        memory.norm_level = None
    if memory.norm_level is not None:
        memory.norm_spread = max(own, _NORM_SPREAD)
        learned = max(settings.spreads * memory.norm_spread, settings.record_factor * memory.norm_record)
        memory.norm_bar = max(math.log(settings.norm_floor), learned)
        memory.norm_bar_twice = max(math.log(settings.norm_floor_twice), settings.twice * learned)


def _level(values: list[float]) -> tuple[float | None, float]:
    """(what the next value should be, spread around it); None where too little is known."""
    if len(values) < _MINIMUM:
        return None, 0.0
    level, before = median(values[-_STRETCH:]), median(values[-2 * _STRETCH : -_STRETCH])
    half = _STRETCH // 2
    lately = median(values[-half:]) - median(values[-_STRETCH:-half])
    # Half a stretch lies between its median and now. A fall goes on only if both ways to see it agree (a single step
    # down does not), a rise is not expected to.
    level += max(min(0.0, (level - before) / 2), min(0.0, lately))
    return level, spread(list(map(sub, values[_LAG:], values))) / _ROOT_2


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


def _live(
    memory: SpikeMemory,
    spike: Spike,
    state: RunState,
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
    if spike.normal_lines >= _CLOSED_BY:
        if norm_excess is not None and norm_excess > spike.norm_band:
            memory.norm = Trace()
            _set_bars(memory, settings)
        memory.spike = None
        return True
    before = spike.stage
    past_patience = (state.latest.iteration or 0) - spike.onset >= settings.patience
    recent = spike.recent
    if past_patience and median(recent) > spike.loss_band:
        spike.stage = "not recovered"
        if spike.lines >= 1000 and median(recent) < math.log1p(settings.loss_floor):
            # a level that has stood for a thousand lines, below what a spike is: other data, another schedule
            memory.spike, memory.loss, memory.norm = None, Trace(), Trace()
            _set_bars(memory, settings)
            return True
    elif spike.stage != "not recovered":
        risen = settings.recovered  # against the stretch before; a high plateau does not rise
        climbing = (
            len(recent) >= 2 * _CLIMB
            and median(recent[-_CLIMB:]) > median(recent[-2 * _CLIMB : -_CLIMB]) + math.log1p(risen)
            and median(recent[-_CLIMB:]) > math.log1p(settings.loss_floor)
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
    if len(memory.loss.values) >= _MINIMUM // 4:
        memory.resume_level = median(memory.loss.values[-_LEVEL_EVERY:])
    elif memory.levels:
        memory.resume_level = memory.levels[-1][1]
    if memory.resume_level is not None:
        memory.resume_left = settings.resume_lines
    _set_bars(memory, settings)
    return was_open


def _bumped(memory: SpikeMemory, loss: float | None, settings: LossSpikeSettings) -> bool:
    """Whether the first lines after a restart stand above where the loss was before it."""
    memory.resume_left -= 1
    if loss is None or memory.resume_level is None:
        return False
    over = memory.resume_excess
    over.append(loss - memory.resume_level)
    bar = max(math.log1p(settings.resume_bump), 4 * memory.loss_spread, memory.loss_record)
    return len(over) >= _CLOSED_BY and median(over) > bar


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
