"""Which iteration lines are copies: several ranks under tee, per-rank files beside the main one.

A line is a copy if the same values were already reported for the same iteration in the same attempt, or by another
source whose own sequence has not gone back. The same iteration computed again after a restart is no copy.
Residual risk: a source that lags more than `RING` iterations behind its twin is told apart only by its own order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from parsers.events import IterationLogged

RING = 4096  # iterations remembered while several sources report; a read block of 1 MiB holds some 2,700 lines
_ALONE = 128  # remembered while one source reports: only tee copies, which stand close together
SAVED = 512  # of these go into the state file


def fingerprints(event: IterationLogged) -> tuple[int, int]:
    """Two numbers that two reports of one iteration share: with their time, and without.

    hash() of numbers does not change between processes; that of NaN does, even within one.
    """
    loss, norm, samples = event.lm_loss, event.grad_norm, event.consumed_samples
    seconds = event.seconds_per_iteration or -1.0
    if loss is None:
        loss = -1.0
    elif loss != loss:
        loss = -3.0
    if norm is None:
        norm = -1.0
    elif norm != norm:
        norm = -3.0
    if samples is None:
        samples = -1
    if seconds != seconds:
        seconds = -3.0
    return hash((event.iteration, loss, norm, samples, seconds)), hash((event.iteration, loss, norm, samples, -2.0))


@dataclass(slots=True)
class SourceCursor:
    """Where one source of the run stands. `attempt` is the run's attempt in which its last iteration counted."""

    last_iteration: int | None = None
    attempt: int = -1


@dataclass(slots=True)
class Copies:
    """Fingerprint -> [attempt, author], oldest first."""

    seen: dict[int, tuple[int, str]] = field(default_factory=dict)
    cursors: dict[str, SourceCursor] = field(default_factory=dict)

    def is_copy(self, event: IterationLogged, prints: tuple[int, int], source: str, attempt: int) -> bool:
        """Whether this report adds nothing to what is known. `prints` are its fingerprints."""
        exact = self.seen.get(prints[0])
        if exact is not None:
            same_author_again = exact[1] == source and exact[0] != attempt
            return not same_author_again
        alike = self.seen.get(prints[1])
        if alike is None or alike[1] == source:
            return False
        # Another source has the same loss with another time: a rank with its own clock, unless it went back itself.
        cursor = self.cursors.get(source)
        last = cursor.last_iteration if cursor is not None else None
        return last is None or event.iteration > last

    def remember(self, prints: tuple[int, int], source: str, attempt: int) -> None:
        """Keep the fingerprints of a report that counted."""
        seen, author = self.seen, (attempt, source)
        for key in prints:
            seen.pop(key, None)  # the newest stands last
            seen[key] = author
        excess = len(seen) - self._room
        for key in tuple(islice(seen, excess)) if excess > 0 else ():
            del seen[key]

    @property
    def _room(self) -> int:
        """Fingerprints kept, two a report."""
        return 2 * (RING if len(self.cursors) > 1 else _ALONE)

    def moved(self, source: str, iteration: int, attempt: int) -> None:
        """The source has reported this iteration, copy or not."""
        cursor = self.cursors.get(source)
        if cursor is None:
            cursor = self.cursors[source] = SourceCursor()
        cursor.last_iteration, cursor.attempt = iteration, attempt

    def saved(self) -> Copies:
        """The part worth keeping over a restart of the daemon."""
        newest = list(self.seen.items())[-2 * SAVED :]
        return Copies(dict(newest), dict(self.cursors))
