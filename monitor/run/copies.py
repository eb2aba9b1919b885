"""Which iteration lines are copies: several ranks under tee, per-rank files beside the main one.

A line is a copy if the same values were already reported for the same iteration in the same attempt, or by another
source whose own sequence has not gone back. The same iteration computed again after a restart is no copy.
Residual risk: a source that lags more than `RING` iterations behind its twin is told apart only by its own order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from parsers.events import IterationLogged

RING = 4096  # iterations remembered while several sources report; a read block of 1 MiB holds some 2,700 lines
_ALONE = 128  # remembered while one source reports: only tee copies, which stand close together
SAVED = 512  # of these go into the state file


def fingerprint(event: IterationLogged, with_time: bool = True) -> int:
    """A number that two reports of one iteration share. hash() of numbers does not change between processes."""
    values = (
        event.iteration,
        event.lm_loss if event.lm_loss is not None else -1.0,
        event.grad_norm if event.grad_norm is not None else -1.0,
        event.consumed_samples if event.consumed_samples is not None else -1,
        (event.seconds_per_iteration or -1.0) if with_time else -2.0,
    )
    return hash(tuple(-3.0 if value != value else value for value in values))


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

    def is_copy(self, event: IterationLogged, source: str, attempt: int) -> bool:
        """Whether this report adds nothing to what is known."""
        cursor = self.cursors.get(source)
        exact = self.seen.get(fingerprint(event))
        if exact is not None:
            same_author_again = exact[1] == source and exact[0] != attempt
            return not same_author_again
        alike = self.seen.get(fingerprint(event, with_time=False))
        if alike is None or alike[1] == source:
            return False
        # Another source has the same loss with another time: a rank with its own clock, unless it went back itself.
        last = cursor.last_iteration if cursor is not None else None
        return last is None or event.iteration > last

    def remember(self, event: IterationLogged, source: str, attempt: int) -> None:
        """Keep a report that counted."""
        for key in (fingerprint(event), fingerprint(event, with_time=False)):
            self.seen.pop(key, None)
            self.seen[key] = (attempt, source)
        bound = 2 * (RING if len(self.cursors) > 1 else _ALONE)
        while len(self.seen) > bound:
            del self.seen[next(iter(self.seen))]

    def moved(self, source: str, iteration: int, attempt: int) -> None:
        """The source has reported this iteration, copy or not."""
        cursor = self.cursors.setdefault(source, SourceCursor())
        cursor.last_iteration, cursor.attempt = iteration, attempt

    def saved(self) -> Copies:
        """The part worth keeping over a restart of the daemon."""
        newest = list(self.seen.items())[-2 * SAVED :]
        return Copies(dict(newest), dict(self.cursors))
