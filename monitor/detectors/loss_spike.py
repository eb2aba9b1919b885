"""The rule `loss_spike`: a spike of the loss and its course (recovering, rising, not recovered), or a bump after a
restart.

Logarithms of loss and grad norm are compared with the level of the last lines of the same training. The level includes
the trend, because early in a training the loss falls by more in a hundred lines than a spike is high. A line is
abnormal if it exceeds a floor, many spreads, and by far the largest excess of the run so far: loss noise has heavy
tails that no number of standard deviations covers. While a spike is open nothing is learned, so that it cannot widen
its own bars.

Most spikes recover by themselves (BLOOM's of 2022-04-12 in 30 iterations) and are only information. A spike that does
not recover is notified.
"""

import math
from collections.abc import Iterable, Sequence
from operator import eq, sub
from typing import ClassVar

from msgspec import Struct, field

from megatron_monitor.detectors.base import (
    CLEAR,
    Finding,
    Rule,
    RuleSettings,
    Severity,
    advice,
    percent,
    rollback,
    stated,
)
from megatron_monitor.detectors.divergence import Block, Divergence
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step
from megatron_monitor.statistics.median import median_high as median
from megatron_monitor.statistics.median import spread

LOSS_SPREAD, NORM_SPREAD = 0.004, 0.05
"""Minimum spreads: bf16 losses take few distinct values (steps of 0.4 to 0.8 %), so that the spread of a window may be
0.
"""

# The present normal: level, spread, and the bars above which a line is abnormal.

MINIMUM = 64  # lines before the first evaluation
LEARN_EVERY = 16  # lines between two updates of the level
CLOSED_BY = 3  # normal lines in a row that end a spike
_ROOT_2 = math.sqrt(2)
_WINDOW = 128  # lines of the present normal, as in OLMo-core: enough for quartiles, few enough to follow changes
_STRETCH = 32  # lines whose median is the level; the difference from the stretch before is the trend
_LAG = 8  # lines between the two values of a difference: noise is uncorrelated and the trend is small
_DECAY = 0.992  # factor of the largest healthy excess per update: it is remembered for some 2,000 lines
_SUPPORTING_SPREADS, _SUPPORTING_NORM = (
    2.5,
    math.log(2.0),
)  # spreads of the previous loss, and grad norm beside it, that support a jump
_MIN_KEPT_SHARE = 0.8  # share of the line before: noise falls back by half in a line, a spike does not
_RECENT = 50  # lines whose median shows whether the loss has recovered (training-monitors.md, 3.4)
_CLIMB = 20  # lines per stretch; three stretches that rise one after the other are a climbing loss
# Spikes that recovered by themselves climbed for 20 to 40 lines, to three times the loss in one of 20 runs of MLPerf
# v5.1.
_STANDING = 1000  # lines after which a level below a spike's is the new normal
_STEADY_NORM = 30  # lines after which a high grad norm beside a normal loss is the new normal


# A smaller jump of the loss is not a spike, however quiet the run was: spikes on record begin at 10 to 18 %.
_LOSS_FLOOR = 0.08
# Minimum jump in one line without a sign in the grad norm or in the line before: a single odd batch is 30 % high in
# runs of 2 % noise, and the next line is normal.
_LOSS_ONLY = 0.5
# Times the normal grad norm in a single line: a public run has one of 6.7 without any trace in the loss.
_NORM_FLOOR = 12.0
# The same in two lines in a row, or beside a high loss: BLOOM's spike began with 3.9, 9.9 and 66 times.
_NORM_FLOOR_TWICE = 4.0
# Robust standard deviations in a single line. OLMo-core's 6 assume a normal distribution, but tails are heavier.
_SPREADS = 10.0
_RECORD_FACTOR = 2.0  # Times the largest excess of this run in normal operation: the tail is learned, not assumed.
_REPEATED_SHARE = 0.6  # Share of these bars for two lines in a row without a clear fall.
_RECOVERED = 0.02  # The loss has recovered within this of the earlier normal (or three spreads).
# Iterations that a spike may take to recover before it is notified: spikes on record took 30 to 500.
_PATIENCE = 200
_CRITICAL = 0.5  # Not recovered and this far above normal: all later computation is lost work.
_RESUME_LINES = 10  # Lines after a restart in which an excess is a bump of the resume, not a spike.
# Median excess over the loss before the restart that is a bump: optimizer state or data order was lost.
_RESUME_BUMP = 0.05


class Trace(Struct):
    """Logarithms of losses in the order of arrival, with their iterations, and the normal."""

    least: ClassVar[float] = LOSS_SPREAD
    floors: ClassVar[tuple[float, float]] = (math.log1p(_LOSS_FLOOR), _REPEATED_SHARE * math.log1p(_LOSS_FLOOR))
    """Minimum excess that is abnormal in a single line, in two lines in a row."""

    spread: float = LOSS_SPREAD
    values: list[float] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    level: float | None = None
    """Expected value of the next line. None: too few lines."""
    record: float = 0.0
    """Largest excess in normal operation, until the level was made."""
    bar: float = math.inf
    """Excess that is abnormal in a single line."""
    lower: float = math.inf
    """Excess that is abnormal in two lines in a row."""
    learned: int = 0
    """Number of the values of which the level was made."""
    stale: bool = False
    """True: spread and bars are of values before these, because lines below the floors need none."""

    def excess(self, value: float | None) -> float:
        """Return how far a logarithm is above the level; 0 if one is unknown."""
        return 0.0 if value is None or self.level is None else value - self.level

    def add(self, value: float | None, stamp: int) -> None:
        """Add a normal line, or none if its value is unknown."""
        if value is not None:
            self.values.append(value)
            self.stamps.append(stamp)

    def before(self, stamp: int) -> None:
        """Forget lines at `stamp` or later, because a restart went back before it."""
        self.set_bars()
        self._note_record()
        self.values = [value for value, at in zip(self.values, self.stamps, strict=True) if at < stamp]
        self.stamps = [at for at in self.stamps if at < stamp]

    def learn(self) -> None:
        """Make the level of the last lines."""
        self._note_record()
        self.record *= _DECAY
        del self.values[:-_WINDOW], self.stamps[:-_WINDOW]
        self.learned, self.stale, self.level = len(self.values), True, self._level()

    def set_bars(self) -> None:
        """Make spread and bars of the same lines as the level: no bar below its floor, no spread below `least`."""
        if self.stale:
            self.stale, self.bar, self.lower = False, math.inf, math.inf
            if self.level is not None:
                self.spread = max(self._noise(), self.least)
                usual = max(_SPREADS * self.spread, _RECORD_FACTOR * self.record)
                self.bar, self.lower = max(self.floors[0], usual), max(self.floors[1], _REPEATED_SHARE * usual)

    def _note_record(self) -> None:
        self.record = max(self.record, self.excess(max(self.values[self.learned :], default=None)))

    def _noise(self) -> float:
        return spread(map(sub, self.values[_LAG : self.learned], self.values)) / _ROOT_2

    def _level(self) -> float | None:
        """Return the expected next value, or None if too few are known."""
        values, half = self.values, _STRETCH // 2
        if len(values) < MINIMUM:
            return None
        before, level = median(values[-2 * _STRETCH : -_STRETCH]), median(values[-_STRETCH:])
        # Half a stretch lies between its median and now. A fall continues only if both estimates agree (a single step
        # down does not). A rise is not expected to continue.
        if level < before:
            level += max((level - before) / 2, min(0.0, median(values[-half:]) - median(values[-_STRETCH:-half])))
        return level


class NormTrace(Trace):
    """The same of grad norms. A norm that hardly ever changes is not computed and not evidence: it has no level."""

    least: ClassVar[float] = NORM_SPREAD
    floors: ClassVar[tuple[float, float]] = (math.log(_NORM_FLOOR), math.log(_NORM_FLOOR_TWICE))

    spread: float = NORM_SPREAD

    def _level(self) -> float | None:
        equal = sum(map(eq, self.values[_LAG:], self.values))
        constant = 2 * equal >= len(self.values) - _LAG and not self._noise()
        return None if constant else super()._level()


class Spike(Struct):
    """An open spike. Logarithms relative to the normal before it."""

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


# --- the course of a spike: its beginning, its recovery, and a new attempt
# ---------------------------------------------


def _measure(spike: Spike, loss: float | None, norm: float | None) -> tuple[float | None, float | None]:
    """Return the excesses of loss and grad norm of a line during an open spike."""
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


def _stage(spike: Spike, loss_excess: float, norm_excess: float, floor: float, risen: float) -> str:
    """Return the stage of an open spike. `risen`: relative to the stretch before, because a high plateau does
    not rise.
    """
    if len(spike.recent) >= 3 * _CLIMB:
        first, second, third = (median(spike.recent[-back:][:_CLIMB]) for back in (3 * _CLIMB, 2 * _CLIMB, _CLIMB))
        if third > floor and third > second + risen and second > first + risen:
            return "rising"
    if loss_excess < 0.7 * spike.loss_peak or (spike.by != "loss" and norm_excess < spike.norm_peak):
        return "recovering"
    return "rising" if spike.stage == "rising" else "spike"


_CAUSES = {"spike": "spike", "resume_bump": "restart"}
_STAYS = {"not recovered": "not back", "rising": "still rising"}


class LossSpike(Rule):
    """The present normal and the open spike, as logarithms."""

    name = "loss_spike"
    inhibited_by = ("nan_loss", "divergence")  # they describe the same loss

    attempt: int = 0
    loss: Trace = field(default_factory=Trace)
    norm: NormTrace = field(default_factory=NormTrace)
    high: tuple[float, float] | None = None
    """Excesses (loss, grad norm) of the line before if one was above its lower bar."""
    last_excess: float = 0.0
    lines: int = 0
    samples: int | None = None
    resume_left: int = 0
    resume_level: float | None = None
    resume_excess: list[float] = field(default_factory=list)
    spike: Spike | None = None

    def is_abnormal(self, loss: float, norm: float) -> bool:
        """Return True if this line is part of a spike, and remember it for the next line."""
        if norm > self.norm.bar:
            return True
        high_loss = loss if loss > self.loss.lower else 0.0
        high_norm = norm if norm > self.norm.lower else 0.0
        loss_before, norm_before = self.high or (0.0, 0.0)
        self.high = (high_loss, high_norm) if high_loss or high_norm else None
        if self.high is None:
            return False
        if (high_loss or loss_before) and (high_norm or norm_before):
            return True
        if loss > self.loss.bar:
            raised = (
                norm > max(_SUPPORTING_NORM, 4 * self.norm.spread)
                or self.last_excess > _SUPPORTING_SPREADS * self.loss.spread
            )
            if raised or loss > max(math.log1p(_LOSS_ONLY), 2 * self.loss.bar):
                return True
        stays = (loss_before and high_loss >= _MIN_KEPT_SHARE * loss_before) or (
            norm_before and high_norm >= norm_before
        )
        return bool(stays)

    def learn(self) -> None:
        """Update the normal from the known lines."""
        self.loss.learn()
        self.norm.learn()

    def begin(
        self, step: Step, checkpoint: int | None, kind: str, loss: float | None, norm: float | None,
    ) -> None:  # fmt: skip
        """Begin a spike, or a bump after a restart, with this line (logarithms of loss and grad norm)."""
        base = self.resume_level if kind == "resume_bump" else self.loss.level
        by_loss = loss is not None and base is not None and loss - base > math.log1p(_RECOVERED)
        self.spike = spike = Spike(
            onset=step.iteration,
            since=step.at,
            kind=kind,
            by="loss" if by_loss else "grad norm",
            loss_base=base,
            norm_base=self.norm.level,
            loss_band=max(math.log1p(_RECOVERED), 3 * self.loss.spread),
            norm_band=max(math.log(3.0), 4 * self.norm.spread),
            samples_before=self.samples,
            checkpoint=checkpoint,
        )
        self.resume_left, self.high = 0, None
        _measure(spike, loss, norm)

    def follow(self, spike: Spike, iteration: int, loss: float | None, norm: float | None) -> bool:
        """Add a line to the open spike. Return True if its stage changed."""
        loss_excess, norm_excess = _measure(spike, loss, norm)
        if loss_excess is None:
            spike.normal_lines = 0
            return False  # the loss is missing, which another rule reports
        low = loss_excess <= spike.loss_band
        is_steady = norm_excess is None or norm_excess <= spike.norm_band or spike.lines >= _STEADY_NORM
        spike.normal_lines = spike.normal_lines + 1 if low and is_steady else 0
        if spike.normal_lines >= CLOSED_BY:
            if norm_excess is not None and norm_excess > spike.norm_band:
                self.norm.before(0)
                self.learn()
            self.spike = None
            return True
        before, recent, floor = spike.stage, spike.recent, math.log1p(_LOSS_FLOOR)
        if before == "not recovered" and (spike.lines < _STANDING or min(recent) >= floor):
            return False
        late = iteration - spike.onset >= _PATIENCE
        if late and (level := median(recent[-_RECENT:])) > spike.loss_band:
            spike.stage = "not recovered"
            if spike.lines >= _STANDING and level < floor:
                # a level of a thousand lines below a spike's: other data, another schedule
                self.spike = None
                self.loss.before(0)
                self.norm.before(0)
                self.learn()
                return True
        elif spike.stage != "not recovered":
            spike.stage = _stage(spike, loss_excess, norm_excess or 0.0, floor, math.log1p(_RECOVERED))
        return spike.stage != before

    def resume(self, attempt: int, iteration: int, blocks: Iterable[Block]) -> bool:
        """Forget what a new attempt will recompute, and end the open spike. Return True if one was open.

        `blocks`: the losses of the attempts before.
        """
        was_open = self.spike is not None
        self.attempt = attempt
        self.spike = None
        self.loss.before(iteration)
        self.norm.before(iteration)
        self.resume_excess = []
        self.resume_level = max(((last, level) for last, level, *_ in blocks if last < iteration), default=(0, None))[1]
        if len(self.loss.values) >= MINIMUM // 4:
            self.resume_level = median(self.loss.values[-_STRETCH:])
        self.resume_left = 0 if self.resume_level is None else _RESUME_LINES
        self.learn()
        return was_open

    def on_steps(self, state: RunState, steps: Sequence[Step], _settings: RuleSettings) -> bool:
        """Process lines of the step source."""
        number, changed = state.attempt.number, False
        log, infinite = math.log, math.inf
        for step in steps:
            if not step.is_line:
                continue
            printed, norm = step.loss, step.grad_norm
            if self.attempt != number:
                changed |= self.resume(number, step.iteration, Divergence.of(state).blocks)
            loss = log(printed) if printed is not None and 0.0 < printed < infinite else None
            # 0.000 and -1 are not computed, and a norm that is NaN belongs to another rule
            norm = log(norm) if norm is not None and 0.0 < norm < infinite else None
            # how far the line is above its expected values
            loss_excess, norm_excess = self.loss.excess(loss), self.norm.excess(norm)
            off = self.spike is not None or self.resume_left > 0  # these lines may be abnormal and are not learned
            high = loss_excess > self.loss.floors[1] or norm_excess > self.norm.floors[1] or self.high is not None
            if off or high:
                self.loss.set_bars()
                self.norm.set_bars()
            if off:
                changed |= self._off(state, step, loss, norm)
                continue
            if high and self.is_abnormal(loss_excess, norm_excess):  # an abnormal line is not learned
                self.begin(step, state.learned.checkpoints.last_iteration, "spike", loss, norm)
                changed = True
                continue
            self.last_excess = loss_excess
            self.loss.add(loss, step.iteration)
            self.norm.add(norm, step.iteration)
            self.samples = step.samples
            self.lines += 1
            if not self.lines % LEARN_EVERY:
                self.learn()
        return changed

    def _off(self, state: RunState, step: Step, loss: float | None, norm: float | None) -> bool:
        """Process a line of an open spike or one of the first after a restart. Return True if anything changed."""
        if self.spike is not None:
            return self.follow(self.spike, step.iteration, loss, norm)
        self.resume_left -= 1
        if loss is None or self.resume_level is None:
            return False
        over = self.resume_excess
        over.append(loss - self.resume_level)
        bar = max(math.log1p(_RESUME_BUMP), 4 * self.loss.spread, self.loss.record)
        bump = len(over) >= CLOSED_BY and median(over) > bar  # the first lines are above the loss before the restart
        if bump:
            self.begin(step, state.learned.checkpoints.last_iteration, "resume_bump", loss, norm)
        return bump

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fire information while a spike may recover, and a warning when it rises further or has not recovered."""
        spike = self.spike
        if spike is None or self.attempt != state.attempt.number:
            return CLEAR
        facts = rollback(state.attempt, spike.onset, spike.samples_before, spike.checkpoint)
        level = median(spike.recent) if spike.recent else 0.0
        severity: Severity = "info"
        if spike.stage in _STAYS:
            severity = "critical" if spike.stage == "not recovered" and level > math.log1p(_CRITICAL) else "warning"
        evidence = {
            "class": spike.kind,
            "stage": spike.stage,
            "first_seen_in": spike.by,
            "lines": spike.lines,
            **_figures(spike),
            **facts,
        }
        summary = _summary(spike, facts)
        return Finding("firing", severity, summary, evidence, onset=spike.onset, since=spike.since)


def _figures(spike: Spike) -> dict[str, float]:
    """Return the known figures as evidence."""
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


def _summary(spike: Spike, facts: dict[str, object]) -> str:
    """Return one sentence: what happened, since when, the value and its normal, what to do."""
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
        f"{spike.by} spike since iteration {spike.onset}: {values}; most recover by themselves, check again at "
        f"iteration {spike.onset + _PATIENCE}"
    )
