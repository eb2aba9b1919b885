"""What is remembered of losses and grad norms, as logarithms, and the thresholds."""

import math

from msgspec import Struct, field

from monitor.units import Factor, Ratio

LOSS_SPREAD, NORM_SPREAD = 0.004, 0.05
"""Least spreads: bf16 losses take few distinct values (steps of 0.4 to 0.8 %), so a window's own may be 0."""


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
    loss_spread: float = LOSS_SPREAD
    norm_spread: float = NORM_SPREAD
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
