"""What the detector is told and what it remembers: levels, the shift that stands, flaps, attempts."""

from msgspec import Struct, field

from megatron_monitor.breakdown.outside import OutsideTime
from megatron_monitor.breakdown.profile import Profile
from megatron_monitor.breakdown.saves import SlowSaves
from megatron_monitor.breakdown.window import TimerWindow
from megatron_monitor.detectors.base import Rule, RuleSettings
from megatron_monitor.scalars import Ratio
from megatron_monitor.statistics.levels import Level

_ON = frozenset({"1", "true", "True"})  # values of CUDA_LAUNCH_BLOCKING


# Sums of deviations (CUSUM), in scales: at 2 % noise under 1 false alarm in 10,000 iterations.
SUM_LIMIT = 11.0
WARM_UP = 3  # first iterations of an attempt that say nothing: compilation, caches; up to 35 % slow in the record
DRIFT = 0.04  # creeping: the median of 50 iterations over the best one; less is lost in the noise of long runs
# Smaller shifts are not reported, and no drift, where the arguments let the sequence grow and no line tells by how much
# (random-LTD): all of that growth cost 25 % in a real run.
GROWING = 0.25
BETWEEN_ATTEMPTS = 0.04  # against the attempts before: another allocation of nodes differs by more than iterations do
# Seconds of an attempt's iterations in which GPUs reach their lasting clocks: on one cluster of MLPerf v5.1 each of 20
# runs became 2 to 7 % slower within its first two minutes, for good. A smaller shift in them than SETTLED is the level.
SETTLING = 120.0
SETTLED = 0.1  # what neither warm GPUs nor an evaluation just before explain: none of those runs slowed by 10 %
# Seconds of slow iterations before what is critical is told; until then it is shown. On a shared node iterations of
# 2.3 s took a quarter longer for 17 s: whoever is woken by that finds nothing.
STANDING = 30.0


class SlowdownSettings(RuleSettings, frozen=True, kw_only=True):
    """What can be set."""

    threshold: Ratio = 0.02
    """Smaller shifts are not reported: runs of the same job differ by under 1 %, one slow GPU of 384 cost 5.6 %."""
    critical: Ratio = 0.25
    """From here on a quarter of the machine is wasted: somebody should look now."""

    def stands_for(self, ratio: float) -> float:
        """Seconds of iterations that take `ratio` times as long before somebody is told: less must have cost as much.
        On MLPerf's clusters iterations of 0.5 s took 2 to 10 % longer for half a minute behind evaluations.
        """
        return STANDING * max(1.0, self.critical / max(ratio - 1, 1e-6))


class Shift(Struct):
    """A change of level that stands. `base` and `level` are logarithms of seconds per iteration."""

    onset: int
    at: float
    base: float
    level: float
    reason: str
    unsure: bool = False
    """A new attempt has not shown its level yet."""
    before: Level | None = None
    """The level as it was before the shift, to go on with after it."""
    lines: int = 0
    """Lines since its onset, or since a drift was seen."""
    over: bool = False
    """Of a faster level: no longer shown."""
    stood: bool = True
    """It has lasted for long enough to wake somebody."""


class Flap(Struct):
    """A slower level that was left again soon: what this run does by itself."""

    size: float
    lines: int


class Segment(Struct):
    """One attempt at one batch size: what it took, on which nodes."""

    key: str
    attempt: int
    first_iteration: int
    level: float
    nodes: list[str] = field(default_factory=list)
    launch_blocking: str | None = None
    profile: Profile | None = None
    """Where its time went, by the log's timers."""
    gpu_clock: str | None = None
    """MHz that the job locked its GPUs to."""
    undecided: bool = False
    """Its iterations vary so much that more of them must tell whether it is slower than those before."""

    @property
    def is_blocking(self) -> bool | None:
        """Whether CUDA_LAUNCH_BLOCKING is set; None where the log does not show it."""
        return None if self.launch_blocking is None else self.launch_blocking in _ON

    def differs_by_setting(self, other: "Segment") -> bool:
        """One attempt has the variable, the other has not: what that costs is no slowdown (launch_blocking.py)."""
        return {self.is_blocking, other.is_blocking} == {True, False}


class SlowdownMemory(Rule):
    """What the rule remembers of a run."""

    name = "slowdown"
    settings = SlowdownSettings
    is_level = True

    attempt: int = 0
    steps: int = 0
    timed_at: int = 0
    """`steps` when one last had a time,"""
    stretch: int = 1
    """and for how many steps that stands: a bar that is drawn by whole seconds tells the time of many."""
    tracks: dict[str, Level] = field(default_factory=dict)
    key: str = ""
    sizes: tuple[int | None, int | None] | None = None
    """Batch size and sequence length of the last step; `key` is made of them."""
    shift: Shift | None = None
    faster: Shift | None = None
    segments: list[Segment] = field(default_factory=list)
    flaps: list[Flap] = field(default_factory=list)
    reference: float | None = None
    """Logarithm of the seconds per iteration of the present level; None while unknown."""
    untimed: int | None = None
    """The iteration that came without a time; DeepSpeed's engine prints it on the step's next line."""
    window: TimerWindow = field(default_factory=TimerWindow)
    saves_seen: int = 0
    """Saves that were looked at,"""
    slow_saves: SlowSaves | None = None
    """... and whether they take longer than they did."""
    outside: OutsideTime = field(default_factory=OutsideTime)
    """What steps take outside the clock of DeepSpeed's engine."""
