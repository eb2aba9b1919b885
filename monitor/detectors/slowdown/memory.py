"""The memory of the rule `slowdown`: levels, the current shift, flaps, attempts."""

from msgspec import Struct, field

from megatron_monitor.breakdown.profile import Profile
from megatron_monitor.breakdown.saves import SlowSaves
from megatron_monitor.breakdown.window import Explanation, TimerWindow
from megatron_monitor.detectors.base import Rule, RuleSettings
from megatron_monitor.scalars import Ratio
from megatron_monitor.statistics.levels import Level

_ON = frozenset({"1", "true", "True"})  # values of CUDA_LAUNCH_BLOCKING


# Sums of deviations (CUSUM), in scales: fewer than 1 false alarm in 10,000 iterations at 2 % noise.
SUM_LIMIT = 11.0
# Seconds of slow iterations before a critical finding is notified. Until then it is shown. On a shared node iterations
# of 2.3 s took a quarter longer for 17 s, and a person who is paged then finds nothing.
STANDING = 30.0


class SlowdownSettings(RuleSettings, frozen=True, kw_only=True):
    """Settings of the rule."""

    threshold: Ratio = 0.02
    """Smaller shifts are not reported: runs of the same job differ by under 1 %, and one slow GPU of 384 cost 5.6 %."""
    critical: Ratio = 0.25
    """From this value on a quarter of the machine is wasted: a person should look now."""

    def stands_for(self, ratio: float) -> float:
        """Return the seconds of iterations that take `ratio` times as long before the finding is notified: a smaller
        shift must have cost as much. On MLPerf's clusters iterations of 0.5 s took 2 to 10 % longer for half a minute
        after evaluations.
        """
        return STANDING * max(1.0, self.critical / max(ratio - 1, 1e-6))


class Shift(Struct):
    """A lasting change of level. `base` and `level` are logarithms of seconds per iteration."""

    onset: int
    at: float
    base: float
    level: float
    reason: str
    unsure: bool = False
    """True if a new attempt has no known level yet."""
    before: Level | None = None
    """Level before the shift, to continue with after it."""
    lines: int = 0
    """Lines since its onset, or since a drift was detected."""
    cause: Explanation | None = None
    """None: the timers were not compared yet."""
    stood: bool = True
    """True if it has lasted long enough to be notified."""


class Segment(Struct):
    """One attempt at one batch size: its time and its nodes."""

    key: str
    attempt: int
    first_iteration: int
    level: float
    at: float = 0.0
    """Instant at which the level was known."""
    nodes: list[str] = field(default_factory=list)
    launch_blocking: str | None = None
    profile: Profile | None = None
    """Where its time went, by the log's timers."""
    gpu_clock: str | None = None
    """Clock in MHz to which the job locked its GPUs."""
    undecided: bool = False
    """True if its iterations vary so much that more of them are needed to compare it."""

    @property
    def is_blocking(self) -> bool | None:
        """True if CUDA_LAUNCH_BLOCKING is set. None: the log does not show it."""
        return None if self.launch_blocking is None else self.launch_blocking in _ON

    def differs_by_setting(self, other: "Segment") -> bool:
        """Return True if only one of two attempts has the variable: its cost is not a slowdown (launch_blocking.py)."""
        return {self.is_blocking, other.is_blocking} == {True, False}


class SlowdownMemory(Rule):
    """What the rule remembers of a run."""

    name = "slowdown"
    settings = SlowdownSettings
    is_level = True

    attempt: int = 0
    steps: int = 0
    timed_at: int = 0
    """Value of `steps` at the last step with a time."""
    stretch: int = 1
    """Number of steps for which that time is valid: a bar drawn once per second reports the time of several."""
    tracks: dict[str, Level] = field(default_factory=dict)
    key: str = ""
    sizes: tuple[int | None, int | None] | None = None
    """Batch size and sequence length of the last step, which are the source of `key`."""
    shift: Shift | None = None
    segments: list[Segment] = field(default_factory=list)
    flaps: list[tuple[float, int]] = field(default_factory=list)
    """(size, lines) of slower levels that ended soon, as this run does by itself."""
    reference: float | None = None
    """Logarithm of the seconds per iteration of the present level. None: unknown."""
    untimed: int | None = None
    """The iteration without a time: DeepSpeed's engine prints it in the step's next line."""
    window: TimerWindow = field(default_factory=TimerWindow)
    saves_seen: int = 0
    """Number of saves that were examined."""
    slow_saves: SlowSaves | None = None
    """Whether saves take longer than before."""
    whole: float | None = None
    """Seconds of the last step, if the times include the time outside the clock of DeepSpeed's engine; else None."""
