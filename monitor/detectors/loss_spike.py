"""Loss spike, and what becomes of it: spike, recovering, rising, not recovered; or a bump after a restart.

Loss and grad norm are judged as logarithms against the level of the last lines of the same training, whose fall is
taken along (early in a training the loss falls by more in a hundred lines than a spike is high). A line is abnormal
that exceeds a floor, many spreads, and what the run has shown before by far: loss noise has heavy tails that no number
of standard deviations covers. While a spike is open nothing is learned, so it cannot widen its own window.
Most spikes recover by themselves (BLOOM's of 2022-04-12 in 30 iterations): they are information. Only one that does not
come back is notified.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import sub

from msgspec import Struct, field

from monitor.detectors.base import Detector, Severity, Verdict, advice, percent, rollback
from monitor.run.phases import ENDED
from monitor.run.state import RunState
from monitor.run.step import Step
from monitor.run.units import Factor, Ratio
from monitor.statistics.median import median_high as median
from monitor.statistics.median import spread

_NAME = "loss_spike"
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
_CLOSED_BY = 3  # normal lines in a row that end a spike
_RAISED, _RAISED_NORM = 2.5, math.log(2.0)  # spreads of the loss before, and grad norm beside it, that support a jump
_STAYS = 0.8  # share of the line before: noise falls back by half in a line, a spike does not
_RECENT = 50  # lines whose median says whether the loss has come back (training-monitors.md, 3.4)
_CLIMB = 20  # lines: three such stretches that rise one over the other are a loss that climbs. Spikes that came back by
# themselves climbed for 20 to 40 lines, to three times the loss in one of 20 runs of MLPerf v5.1
_STANDING = 1000  # lines after which a level below a spike's is the new normal
_STEADY_NORM = 30  # lines after which a grad norm that stays high beside a normal loss is the new normal
_CAUSES = {"spike": "spike", "resume_bump": "restart"}


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
    """Iterations that a spike may take to come back before people are notified: spikes on record took 30 to 500."""
    critical: Ratio = 0.5
    """Not recovered and this much above normal: everything computed since is lost work."""
    resume_lines: int = 10
    """Lines after a restart in which an excess is a bump of the resume, not a spike."""
    resume_bump: Ratio = 0.05
    """Median excess over the loss before the restart that makes a bump: optimizer state or data order was lost."""


class Trace(Struct):
    """Logarithms in the order in which they came, and at which iteration each came."""

    values: list[float] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)

    def keep(self, size: int) -> None:
        """Drop the oldest. Called now and then: appending is all that a step costs."""
        del self.values[:-size], self.stamps[:-size]

    def before(self, stamp: int) -> None:
        """Forget what came at `stamp` or later: a restart went back behind it."""
        self.values = [value for value, at in zip(self.values, self.stamps, strict=True) if at < stamp]
        self.stamps = [at for at in self.stamps if at < stamp]


class Spike(Struct):
    """An open spike; logarithms against the frozen normal."""

    onset: int
    since: float
    kind: str = "spike"
    stage: str = "spike"
    by: str = "loss"
    loss_base: float | None = None
    norm_base: float | None = None
    loss_band: float = 0.0
    norm_band: float = 0.0
    loss: float | None = None
    norm: float | None = None
    loss_peak: float = 0.0
    norm_peak: float = 0.0
    lines: int = 0
    normal_lines: int = 0
    recent: list[float] = field(default_factory=list)
    samples_before: int | None = None
    checkpoint: int | None = None


class Memory(Struct):
    """What is normal now, and the spike that is open. Logarithms."""

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


def update(state: RunState, memory: Memory, steps: Sequence[Step], settings: LossSpikeSettings) -> bool:
    """See the lines of the step source; every node of HF Trainer or an engine may print the same one."""
    lines, number, changed = state.driver == "iteration", state.attempt.number, False
    log, infinite = math.log, math.inf
    for step in steps:
        printed, norm = step.loss, step.grad_norm
        if lines:
            if not step.counted:
                continue
        else:
            if not step.reported or printed is None or (step.iteration, printed) == memory.seen:
                continue
            memory.seen = (step.iteration, printed)
        if memory.attempt != number:
            changed = _resume(memory, number, step.iteration, settings) or changed
        loss = log(printed) if printed is not None and 0.0 < printed < infinite else None
        # 0.000 is not computed, -1 neither, and a norm that is no number is another detector's
        norm = log(norm) if norm is not None and 0.0 < norm < infinite else None
        if memory.spike is not None:
            changed = _follow(memory, memory.spike, step.iteration, loss, norm, settings) or changed
            continue
        if memory.resume_left:  # these lines may be off: nothing is learned from them
            if _bumped(memory, loss, settings):
                _open(memory, step, state.checkpoints.last_iteration, "resume_bump", loss, norm, settings)
                changed = True
            continue
        level = memory.loss_level
        loss_excess = 0.0 if loss is None or level is None else loss - level
        level = memory.norm_level
        norm_excess = 0.0 if norm is None or level is None else norm - level
        high = loss_excess > memory.loss_look or norm_excess > memory.norm_bar_twice or memory.high is not None
        if high and _abnormal(memory, loss_excess, norm_excess, settings):  # nothing is learned from such a line
            _open(memory, step, state.checkpoints.last_iteration, "spike", loss, norm, settings)
            changed = True
            continue
        memory.last_excess = loss_excess
        if loss is not None:
            memory.loss.values.append(loss)
            memory.loss.stamps.append(step.iteration)
            if loss_excess > memory.loss_record:
                memory.loss_record = loss_excess
        if norm is not None:
            memory.norm.values.append(norm)
            memory.norm.stamps.append(step.iteration)
            if norm_excess > memory.norm_record:
                memory.norm_record = norm_excess
        memory.samples = step.samples
        memory.lines += 1
        if not memory.lines % _BARS_EVERY:
            _set_bars(memory, settings)
            if not memory.lines % _LEVEL_EVERY and len(memory.loss.values) >= _LEVEL_EVERY:
                _mark(memory.levels, step.iteration, median(memory.loss.values[-_LEVEL_EVERY:]))
    return changed


# --- what is normal -------------------------------------------------------------------------------------------------


def _mark(levels: list[tuple[int, float]], iteration: int, level: float) -> None:
    """Write down the level at this iteration."""
    levels.append((iteration, level))
    if len(levels) > _LEVELS:
        del levels[::2]  # the past gets coarser, it is never forgotten


def _abnormal(memory: Memory, loss: float, norm: float, settings: LossSpikeSettings) -> bool:
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


def _set_bars(memory: Memory, settings: LossSpikeSettings) -> None:
    """Level, spread and bars from the lines that are known now."""
    memory.loss.keep(_WINDOW)
    memory.norm.keep(_WINDOW)
    memory.loss_record *= _DECAY
    memory.norm_record *= _DECAY
    memory.loss_bar = memory.loss_look = memory.norm_bar = memory.norm_bar_twice = math.inf
    memory.loss_level, own = _level(memory.loss.values)
    if memory.loss_level is not None:
        memory.loss_spread = max(own, _LOSS_SPREAD)
        memory.loss_bar, memory.loss_look = _loss_bars(memory.loss_spread, memory.loss_record, settings)
    memory.norm_level, own = _level(memory.norm.values)
    if own == 0.0:  # a constant is not computed: no evidence
        memory.norm_level = None
    if memory.norm_level is not None:
        memory.norm_spread = max(own, _NORM_SPREAD)
        memory.norm_bar, memory.norm_bar_twice = _norm_bars(memory.norm_spread, memory.norm_record, settings)


def _loss_bars(spread: float, record: float, settings: LossSpikeSettings) -> tuple[float, float]:
    """(excess of the loss above which a line is abnormal, above which two lines are)."""
    bar = max(math.log1p(settings.loss_floor), settings.spreads * spread, settings.record_factor * record)
    return bar, settings.twice * bar


def _norm_bars(spread: float, record: float, settings: LossSpikeSettings) -> tuple[float, float]:
    """The same of the grad norm."""
    learned = max(settings.spreads * spread, settings.record_factor * record)
    return (
        max(math.log(settings.norm_floor), learned),
        max(math.log(settings.norm_floor_twice), settings.twice * learned),
    )


def _level(values: list[float]) -> tuple[float | None, float]:
    """(what the next value should be, spread around it); None where too little is known."""
    return (_level_of(values), _spread_of(values)) if len(values) >= _MINIMUM else (None, 0.0)


def _level_of(values: list[float]) -> float:
    """What the next value should be, from the last of them, `_MINIMUM` at least."""
    half = _STRETCH // 2
    return _level_after(
        median(values[-2 * _STRETCH : -_STRETCH]),
        median(values[-_STRETCH:]),
        median(values[-_STRETCH:-half]),
        median(values[-half:]),
    )


def _level_after(before: float, level: float, earlier: float, later: float) -> float:
    """The same from the medians of two stretches, and of the halves of the second one."""
    # Half a stretch lies between its median and now. A fall goes on only if both ways to see it agree (a single step
    # down does not), a rise is not expected to.
    return level + max(min(0.0, (level - before) / 2), min(0.0, later - earlier))


def _spread_of(values: list[float]) -> float:
    """How far the values of a window lie apart, in standard deviations: 0 where most of them are the same."""
    return spread(list(map(sub, values[_LAG:], values))) / _ROOT_2


# --- the life of a spike --------------------------------------------------------------------------------------------


def _open(
    memory: Memory, step: Step, checkpoint: int | None, kind: str, loss: float | None, norm: float | None,
    settings: LossSpikeSettings,
) -> None:  # fmt: skip
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


def _follow(
    memory: Memory,
    spike: Spike,
    iteration: int,
    loss: float | None,
    norm: float | None,
    settings: LossSpikeSettings,
) -> bool:
    """One more line of an open spike. Whether its stage changed."""
    loss_excess, norm_excess = _measure(spike, loss, norm)
    if loss_excess is None:
        spike.normal_lines = 0
        return False  # the loss is gone: another detector's finding
    low = loss_excess <= spike.loss_band
    calm = norm_excess is None or norm_excess <= spike.norm_band or spike.lines >= _STEADY_NORM
    spike.normal_lines = spike.normal_lines + 1 if low and calm else 0
    if spike.normal_lines >= _CLOSED_BY:
        if norm_excess is not None and norm_excess > spike.norm_band:
            memory.norm = Trace()
            _set_bars(memory, settings)
        memory.spike = None
        return True
    before, recent, floor = spike.stage, spike.recent, math.log1p(settings.loss_floor)
    if before == "not recovered" and (spike.lines < _STANDING or min(recent) >= floor):
        return False
    past_patience = iteration - spike.onset >= settings.patience
    if past_patience and (level := median(recent[-_RECENT:])) > spike.loss_band:
        spike.stage = "not recovered"
        if spike.lines >= _STANDING and level < floor:
            # a level that has stood for a thousand lines, below what a spike is: other data, another schedule
            memory.spike, memory.loss, memory.norm = None, Trace(), Trace()
            _set_bars(memory, settings)
            return True
    elif spike.stage != "not recovered":
        risen = math.log1p(settings.recovered)  # against the stretch before; a high plateau does not rise
        climbing = False
        if len(recent) >= 3 * _CLIMB:
            first, second, third = (median(recent[-back:][:_CLIMB]) for back in (3 * _CLIMB, 2 * _CLIMB, _CLIMB))
            climbing = third > floor and third > second + risen and second > first + risen
        if climbing:
            spike.stage = "rising"
        elif loss_excess < 0.7 * spike.loss_peak or (spike.by != "loss" and (norm_excess or 0) < spike.norm_peak):
            spike.stage = "recovering"
        elif spike.stage != "rising":
            spike.stage = "spike"
    return spike.stage != before


def _resume(memory: Memory, attempt: int, iteration: int, settings: LossSpikeSettings) -> bool:
    """A new launch: what it will compute again is forgotten, an open spike is over. Whether one was open."""
    was_open = memory.spike is not None
    memory.attempt = attempt
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


def _bumped(memory: Memory, loss: float | None, settings: LossSpikeSettings) -> bool:
    """Whether the first lines after a restart stand above where the loss was before it."""
    memory.resume_left -= 1
    if loss is None or memory.resume_level is None:
        return False
    over = memory.resume_excess
    over.append(loss - memory.resume_level)
    bar = max(math.log1p(settings.resume_bump), 4 * memory.loss_spread, memory.loss_record)
    return len(over) >= _CLOSED_BY and median(over) > bar


# --- the verdict ----------------------------------------------------------------------------------------------------


def check(state: RunState, memory: Memory, _now: float, settings: LossSpikeSettings) -> Verdict:
    """Information while a spike may still come back by itself, a warning when it rises on or has not come back."""
    if state.lost:
        return Verdict(_NAME, "unknown")
    spike = memory.spike
    if spike is None or memory.attempt != state.attempt.number:
        return Verdict(_NAME)
    if state.phase in ENDED:
        return Verdict(_NAME, "unknown")  # nobody trains: what stood stands
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
        **{name: float(f"{math.exp(value):.6g}") for name, value in _figures(spike)},
        **facts,
    }
    return Verdict(
        _NAME,
        "firing",
        severity=severity,
        summary=_summary(spike, facts, settings.patience),
        onset_iteration=spike.onset,
        since=spike.since,
        evidence=evidence,
    )


def _figures(spike: Spike) -> list[tuple[str, float]]:
    """Name and logarithm of each figure that is known, as evidence."""
    named = (
        ("lm_loss", spike.loss),
        ("normal_lm_loss", spike.loss_base),
        ("peak_lm_loss", None if spike.loss_base is None else spike.loss_base + spike.loss_peak),
        ("grad_norm", spike.norm),
        ("normal_grad_norm", spike.norm_base),
        ("peak_grad_norm", None if spike.norm_base is None else spike.norm_base + spike.norm_peak),
    )
    return [(name, value) for name, value in named if value is not None]


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
    if spike.stage == "not recovered":
        return f"loss not back since the {_CAUSES[spike.kind]} of iteration {spike.onset}: {values}; {advice(facts)}"
    if spike.stage == "rising":
        return (
            f"loss still rising since the {_CAUSES[spike.kind]} of iteration {spike.onset}: {values}; {advice(facts)}"
        )
    if spike.kind == "resume_bump":
        return (
            f"loss bump after the restart at iteration {spike.onset}: {values}; if it stays, check that optimizer "
            "state, learning rate and data order were restored"
        )
    return (
        f"{spike.by} spike since iteration {spike.onset}: {values}; most come back by themselves, look again at "
        f"iteration {spike.onset + patience}"
    )


DETECTOR = Detector(
    _NAME, LossSpikeSettings, check, Memory, update,
    inhibited_by=("nan_loss", "divergence"),  # the worse word for the same loss,
    advice="usually nothing: most spikes recover within tens of iterations; note the samples",
)  # fmt: skip
