"""The silence of a run: how long it was observed since its last progress, and what silences are normal for it. Pure.

Silence is the observed time since the last progress. It does not grow while a mount is blocked, an agent is stale, a
file is unreadable, a partition belongs to another member, or the monitor is stopped (`Coverage`).

Silences that ended in progress teach how long a run of this program may be silent (`Silences`). The kind of a silence
is its phase, or one of the two `SILENT_` kinds: in the phase `training`, after an iteration after which the arguments
request work that no line has reported. Silences that were reported as a hang and ended in progress are kept separately:
they do not lengthen the normal timeout, but a second one is not reported again.
"""

from collections.abc import Iterable

from msgspec import Struct, field

from megatron_monitor.statistics.median import median

SILENT_EVALUATION = "evaluating silently"
SILENT_SAVE = "saving silently"
SILENT_RESULT = "evaluating or saving, of which only the result is printed"
GAPS_KEPT = 50  # silences of a kind (docs/development/incident-record.md, "Progress timeouts")
_MIN_GAPS = 5  # gaps, so that one or two hiccups do not matter
_MEMORY_SECONDS = 86400.0  # seconds: saves are at most a day apart; a single failure of the storage is forgotten
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


class Intervals(Struct):
    """The last normal gaps between two progress lines of one phase, in seconds."""

    values: list[float] = field(default_factory=list)

    def add(self, seconds: float) -> None:
        """Add a gap."""
        self.values.append(seconds)
        del self.values[:-GAPS_KEPT]

    @property
    def usual(self) -> float | None:
        """The median; None with fewer than five gaps."""
        return median(self.values) if len(self.values) >= _MIN_GAPS else None

    @property
    def longest(self) -> float | None:
        """The longest of the last gaps."""
        return max(self.values, default=None)


class Silences(Struct):
    """Silences of the attempts of one program, by kind, in seconds."""

    good: dict[str, Intervals] = field(default_factory=dict)
    """Silences within the progress timeout."""
    forgiven: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """(instant of the end, seconds) of silences beyond the progress timeout that ended in progress."""

    def learn(self, kind: str, seconds: float) -> None:
        """Add a silence within the progress timeout."""
        self.good.setdefault(kind, Intervals()).add(seconds)

    def forgive(self, kind: str, seconds: float, at: float) -> None:
        """Add a silence that was reported as a hang and ended in progress at the instant `at`."""
        known = self.forgiven.get(kind, [])
        self.forgiven[kind] = [*(one for one in known if at - one[0] < _MEMORY_SECONDS), (at, seconds)][-GAPS_KEPT:]

    def is_forgiven(self, kind: str, seconds: float) -> bool:
        """Return True if an equally long silence was reported as a hang before."""
        return kind in self.forgiven and seconds >= min(known for _, known in self.forgiven[kind])

    def values(self, kind: str) -> list[float]:
        """Return the last normal silences, the newest last."""
        known = self.good.get(kind)
        return known.values if known is not None else []

    def longest(self, kind: str) -> float | None:
        """Return the longest of the last normal silences; None if unknown."""
        return max(self.values(kind), default=None)

    def longest_forgiven(self, kinds: Iterable[str], most: float, now: float) -> float | None:
        """Return the longest silence of these kinds, up to `most`, that was reported as a hang in the last day."""
        if not self.forgiven:
            return None  # fast path: called at every step
        known = [one for kind in kinds for one in self.forgiven.get(kind, ())]
        return max((seconds for at, seconds in known if seconds <= most and now - at < _MEMORY_SECONDS), default=None)
