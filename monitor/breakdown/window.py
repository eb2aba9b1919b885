"""The timers of a run's last iteration lines, and those from before a slowdown: what an attribution compares."""

from msgspec import Struct, field

from megatron_monitor.breakdown.account import TimerLine
from megatron_monitor.breakdown.attribution import Attribution, attribute
from megatron_monitor.breakdown.profile import OUTSIDE, Profile, profile
from megatron_monitor.statistics.median import median

_LINES = 48  # lines kept: 32 from before a shift, and the 16 at most in which it is found
_BEFORE = 32
_DURING = 32  # lines after which the cause is settled
_LOOKS = frozenset({3, 4, 5, 7, 10, 16, _DURING})  # lines of a slowdown at which its cause is looked for anew
_SLOW = 3  # lines of a slowdown that are surely some of it: the last ones when it is found
_LEARN = 16  # lines that make the first profile of an attempt


class TimerWindow(Struct):
    """What is kept of one run's timers."""

    lines: list[TimerLine] = field(default_factory=list)
    """At the present batch size, the newest last."""
    first: Profile | None = None
    """Of the first lines of this attempt at this batch size: what a drift is compared with."""
    before: Profile | None = None
    """Of the lines before the slowdown that stands."""
    during: list[TimerLine] = field(default_factory=list)
    """The first lines of the slowdown."""
    onset: int | None = None
    found: Attribution | None = None

    def add(self, line: TimerLine) -> None:
        """The timers of a further iteration line. `trim` follows when what came with them is judged."""
        self.lines.append(line)
        if self.first is None and len(self.lines) >= _LEARN:
            self.first = profile(self.lines)

    def trim(self, further: int = 0) -> None:
        """Keep the last lines only, and so many `further` ones."""
        del self.lines[: -_LINES - further]

    def restart(self) -> None:
        """Another attempt or batch size: what was printed so far can no longer be compared with what comes."""
        self.lines, self.first = [], None

    def usual(self) -> Profile | None:
        """What the present attempt takes."""
        return self.first or profile(self.lines[-_BEFORE:])

    def shifted(self, onset: int, *, drifted: bool = False, before: Profile | None = None) -> None:
        """Iterations are slower since `onset`; `before`: other attempts, where it is one of them."""
        before_onset = [line for line in self.lines if line.iteration < onset][-_BEFORE:]
        first = self.first if drifted or len(before_onset) < _LEARN else None
        usual = before or first or profile(before_onset)
        # a log that times its saves alone says nothing of an iteration
        self.before = usual if usual is not None and usual.parts.keys() - {OUTSIDE} else None
        self.onset, self.found, self.during = onset, None, []

    def ended(self) -> None:
        """The slowdown is over."""
        self.before, self.onset, self.found, self.during = None, None, None, []

    def explain(self, fresh: TimerLine | None, stages: int | None) -> bool:
        """Compare what came since the onset with what was before; True if another cause is found."""
        if self.before is None or self.onset is None or len(self.during) >= _DURING:
            return False
        source = self.lines if not self.during else [] if fresh is None else [fresh]
        last = self.during[-1].iteration if self.during else self.onset - 1
        known = len(self.during)
        self.during += [line for line in source if line.iteration > last][: _DURING - known]
        if not known:
            _leave_out(self.during, self.before.seconds)
        if len(self.during) == known or (known and len(self.during) not in _LOOKS):
            return False
        during = profile(self.during)
        if during is None:
            return False
        reported = self.found
        self.found = attribute(self.before, during, stages)
        return reported is None or (reported.cause, reported.scope) != (self.found.cause, self.found.scope)


def _leave_out(lines: list[TimerLine], before: float) -> None:
    """The onset is an estimate, a few lines early in noise: those that still took as long as `before` are not slow."""
    last = [line.seconds for line in lines[-_SLOW:] if line.seconds is not None]
    if not last:
        return
    middle = (before + median(last)) / 2
    while len(lines) > _SLOW and (lines[0].seconds or 0.0) < middle:
        del lines[0]
