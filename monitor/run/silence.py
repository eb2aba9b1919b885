"""What silences that ended in progress have taught: how long a run of this program may say nothing. Pure.

A kind of silence is the phase that was silent, or one of the two `SILENT_` kinds: in the phase `training`, behind an
iteration after which the arguments ask for work of which no line has told. Silences that were called a hang and ended
in progress are kept apart: nothing is expected to take so long again, but a second one is no news.
"""

from collections.abc import Iterable

from msgspec import Struct, field

from megatron_monitor.statistics.median import median

SILENT_EVALUATION = "evaluating silently"
SILENT_SAVE = "saving silently"
GAPS_KEPT = 50  # silences of a kind (docs/development/incident-record.md, "Progress timeouts")
_FEW = 5  # gaps of which one or two may be hiccups
_REMEMBERED = 86400.0  # seconds: saves come at most a day apart, and a storage that failed once is forgotten


class Intervals(Struct):
    """The last good gaps between two signs of progress within one phase, in seconds."""

    values: list[float] = field(default_factory=list)

    def add(self, seconds: float) -> None:
        """One more gap."""
        self.values.append(seconds)
        del self.values[:-GAPS_KEPT]

    @property
    def usual(self) -> float | None:
        """Their median; None while fewer than five are known."""
        return median(self.values) if len(self.values) >= _FEW else None

    @property
    def longest(self) -> float | None:
        """The longest of the last gaps."""
        return max(self.values, default=None)


class Silences(Struct):
    """Of the attempts of one program, by kind, in seconds."""

    good: dict[str, Intervals] = field(default_factory=dict)
    """Silences within their budgets."""
    forgiven: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """(instant of the end, seconds) of silences beyond their budgets that ended in progress all the same."""
    held: float | None = None
    """The longest that a launcher's buffer explained: it held the lines back."""

    def learn(self, kind: str, seconds: float) -> None:
        """One has ended within its budget."""
        self.good.setdefault(kind, Intervals()).add(seconds)

    def forgive(self, kind: str, seconds: float, at: float) -> None:
        """One that was called a hang has ended in progress at the instant `at`."""
        known = self.forgiven.get(kind, [])
        self.forgiven[kind] = [*(one for one in known if at - one[0] < _REMEMBERED), (at, seconds)][-GAPS_KEPT:]

    def is_forgiven(self, kind: str, seconds: float) -> bool:
        """Whether one as long as this was called a hang before."""
        return kind in self.forgiven and seconds >= min(known for _, known in self.forgiven[kind])

    def hold(self, seconds: float) -> None:
        """A burst of lines has explained one."""
        self.held = max(seconds, self.held or seconds)

    def values(self, kind: str) -> list[float]:
        """The last good ones, the newest last."""
        known = self.good.get(kind)
        return known.values if known is not None else []

    def longest(self, kind: str) -> float | None:
        """The longest of the last good ones; None while none is known."""
        return max(self.values(kind), default=None)

    def longest_forgiven(self, kinds: Iterable[str], most: float, now: float) -> float | None:
        """The longest silence of these kinds that was called a hang and ended, in the last day, none above `most`."""
        if not self.forgiven:
            return None  # asked at every step, and there mostly is none
        known = [one for kind in kinds for one in self.forgiven.get(kind, ())]
        return max((seconds for at, seconds in known if seconds <= most and now - at < _REMEMBERED), default=None)
