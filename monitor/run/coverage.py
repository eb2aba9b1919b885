"""How long a run was observed: the time for which all content of its streams is known to be read. Pure.

Silence is the observed time since the last progress. It does not grow while a mount is blocked, an agent is stale, a
file is unreadable, a partition belongs to another member, or the monitor is stopped.
"""

from msgspec import Struct

_PROVEN = 2.0
"""Seconds: the read after a shorter gap covers it. The cause of a longer gap may have stopped the writer too."""


class Coverage(Struct):
    """The observed time of one run: elapsed time minus gaps. Times are instants of the core, in seconds."""

    until: float | None = None
    """Instant at which the present gap began; None while the run is observed."""
    partial: bool = False
    """True: streams with steps are unobserved and others are observed, so ends and failures are still reported."""
    missed: float = 0.0
    """Unobserved seconds in total."""
    missed_before: float = 0.0
    """Unobserved seconds before the last progress."""
    unconfirmed: float | None = None
    """Seconds in which the monitor was stopped: they count as observed once all files are read again without progress.
    None: they do not, because progress came or lines may be missing."""
    absent: float = 0.0
    """Seconds in which the monitor was stopped, while no progress has come since. They do not move the exported
    deadline, so that an alert about a missed deadline remains until the monitor knows more."""

    def unobserved(self, at: float | None = None) -> float:
        """Return the unobserved seconds since the last progress, until `at`, or until the present gap."""
        gap = 0.0 if at is None or self.until is None else max(0.0, at - self.until)
        return max(0.0, gap + self.missed - self.missed_before)

    def note_progress(self, at: float, seen: float | None = None) -> None:
        """Record progress at an instant. `seen`: the instant of reading, if it arrived late."""
        seen = at if seen is None else seen
        self.missed_before = at - (seen if self.until is None else min(seen, self.until)) + self.missed
        self.unconfirmed, self.absent = None, 0.0

    def stop(self, since: float, *, partial: bool = False) -> bool:
        """Begin a gap. Return True if that is new."""
        before, self.partial = (self.until, self.partial), partial
        if self.until is None:
            self.until, self.unconfirmed = since, None
        return before != (self.until, partial)

    def go_on(self, now: float) -> bool:
        """End the gap. Return True if there was one."""
        if self.until is None:
            return False
        gap = now - self.until
        if gap > _PROVEN:
            self.missed += gap
            if self.unconfirmed is not None:
                self.unconfirmed += gap
        self.until, self.partial = None, False
        return True

    def prove(self) -> None:
        """Count the last stop as observed: everything written in it is read and was not progress."""
        if self.unconfirmed is not None:
            self.missed, self.unconfirmed, self.absent = self.missed - self.unconfirmed, None, 0.0
