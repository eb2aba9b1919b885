"""The timers of a run's last iteration lines and those before a slowdown, which an attribution compares."""

from msgspec import Struct, field

from megatron_monitor.breakdown.account import TimerLine
from megatron_monitor.breakdown.attribution import Attribution, attribute
from megatron_monitor.breakdown.profile import OUTSIDE, Profile, profile

_MAX_LINES = 48  # remembered lines: 32 before a shift, and at most 16 until it is detected
_LINES_BEFORE = 32
_LINES_DURING = 32  # lines after which the cause is final
_FIRST_LINES = 16  # lines of the first profile of an attempt


class TimerWindow(Struct):
    """The timers of one run."""

    lines: list[TimerLine] = field(default_factory=list)
    """At the present batch size, the newest last."""
    first: Profile | None = None
    """Profile of the first lines of this attempt at this batch size: a drift is compared with it."""
    before: Profile | None = None
    """Profile before the present slowdown."""
    during: list[TimerLine] = field(default_factory=list)
    """The first lines of the slowdown."""
    onset: int | None = None
    found: Attribution | None = None

    def add(self, line: TimerLine) -> None:
        """Add the timers of an iteration line."""
        self.lines.append(line)
        del self.lines[:-_MAX_LINES]
        if self.first is None and len(self.lines) >= _FIRST_LINES:
            self.first = profile(self.lines)

    def restart(self) -> None:
        """Start again for another attempt or batch size: earlier lines cannot be compared with later ones."""
        self.lines, self.first = [], None

    def usual(self) -> Profile | None:
        """Return the profile of the present attempt."""
        return self.first or profile(self.lines[-_LINES_BEFORE:])

    def shifted(self, onset: int, *, drifted: bool = False, before: Profile | None = None) -> None:
        """Note that iterations are slower since `onset`. `before`: profile of other attempts, if it is compared with
        them.
        """
        before_onset = [line for line in self.lines if line.iteration < onset][-_LINES_BEFORE:]
        first = self.first if drifted or len(before_onset) < _FIRST_LINES else None
        usual = before or first or profile(before_onset)
        # a log with timers of saves only shows nothing about iterations
        self.before = usual if usual is not None and usual.parts.keys() - {OUTSIDE} else None
        self.onset, self.found, self.during = onset, None, []

    def ended(self) -> None:
        """Note the end of the slowdown."""
        self.before, self.onset, self.found, self.during = None, None, None, []

    def explain(self, fresh: TimerLine | None, stages: int | None) -> bool:
        """Compare the lines since the onset with those before. Return True if the cause has changed."""
        if self.before is None or self.onset is None or len(self.during) >= _LINES_DURING:
            return False
        source = self.lines if not self.during else [] if fresh is None else [fresh]
        last = self.during[-1].iteration if self.during else self.onset - 1
        known = len(self.during)
        self.during += [line for line in source if line.iteration > last][: _LINES_DURING - known]
        if len(self.during) == known:
            return False
        during = profile(self.during)
        if during is None:
            return False
        reported = self.found
        self.found = attribute(self.before, during, stages)
        return reported is None or (reported.cause, reported.scope) != (self.found.cause, self.found.scope)
