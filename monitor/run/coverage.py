"""How long a run was observed: the seconds for which it is proven that its streams held no more than was read. Pure.

Silence is what was observed since the last progress. While a mount is blocked, an agent is stale, a file cannot be
read, a partition is not ours or the monitor is stopped, the count does not grow, and so neither does the silence.
"""

from msgspec import Struct

_PROVEN = 2.0
"""Seconds: a shorter stop is observed by the look that ends it. In a longer one, what held the monitor up may have held
up the writer."""


class Coverage(Struct):
    """Of one run. Observed is what time passes, less the stops. Instants are those of the core, in seconds."""

    until: float | None = None
    """Until when the run was observed; None while it is."""
    partial: bool = False
    """The streams that tell its steps are not observed, others are: ends and failures are told."""
    missed: float = 0.0
    """Seconds that were not observed, in all;"""
    missed_before: float = 0.0
    """of these, before the last progress."""
    unconfirmed: float | None = None
    """Seconds in which the monitor was away: they count once all files of the run are read again without progress.
    None: they do not, for progress came, or lines may be missing."""
    absent: float = 0.0
    """Seconds in which the monitor was away, if no progress has come since it is back. The exported deadline does not
    move by them, so that an alert of a missed deadline stands until the monitor knows more."""

    def observed(self, at: float) -> float:
        """Seconds that were observed until then. Only differences mean anything."""
        return (at if self.until is None else min(at, self.until)) - self.missed

    def unobserved(self, at: float | None = None) -> float:
        """Seconds since the last progress that were not observed by then. None: by the time when the count goes on."""
        missed = self.missed if at is None else at - self.observed(at)
        return max(0.0, missed - self.missed_before)

    def note_progress(self, at: float, seen: float | None = None) -> None:
        """Progress was made at an instant; `seen`: when it was read, where it came too late to be observed then."""
        self.missed_before = at - self.observed(at if seen is None else seen)
        self.unconfirmed, self.absent = None, 0.0

    def stop(self, since: float, *, partial: bool = False) -> bool:
        """Nobody observes since then. Was that not known?"""
        before, self.partial = (self.until, self.partial), partial
        if self.until is None:
            self.until, self.unconfirmed = since, None
        return before != (self.until, partial)

    def go_on(self, now: float) -> bool:
        """Somebody observes again. Was that not known?"""
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
        """All that was written in the last stop is read, and was no progress."""
        if self.unconfirmed is not None:
            self.missed, self.unconfirmed, self.absent = self.missed - self.unconfirmed, None, 0.0
