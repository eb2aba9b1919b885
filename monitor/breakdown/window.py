"""The timers of a run's last iteration lines, and the cause of a slowdown by those before and since its onset."""

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

    def before(self, onset: int, *, drifted: bool) -> Profile | None:
        """Return the profile before iterations became slower at `onset`."""
        before_onset = [line for line in self.lines if line.iteration < onset][-_LINES_BEFORE:]
        first = self.first if drifted or len(before_onset) < _FIRST_LINES else None
        return first or profile(before_onset)


class Explanation(Struct):
    """What took the time that iterations take longer."""

    before: Profile | None = None
    """Profile before the slowdown. None: unknown; a log with timers of saves only shows nothing about iterations."""
    found: Attribution | None = None

    def update(self, window: TimerWindow, onset: int, fresh: bool, stages: int | None) -> bool:
        """Compare the lines since the onset with those before. `fresh`: one has come. Return True if the cause has
        changed.
        """
        if self.before is None or not (fresh or self.found is None):
            return False
        during = [line for line in window.lines if line.iteration >= onset]
        if self.found is not None and len(during) > _LINES_DURING:
            return False
        slow = profile(during[:_LINES_DURING])
        if slow is None:
            return False
        reported, self.found = self.found, attribute(self.before, slow, stages)
        return reported is None or (reported.cause, reported.scope) != (self.found.cause, self.found.scope)


def explanation(before: Profile | None) -> Explanation:
    """Return the explanation of a slowdown whose lines are compared with these."""
    return Explanation(before if before is not None and before.parts.keys() - {OUTSIDE} else None)
