"""Medians of the timers of several iteration lines, by category."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from msgspec import Struct, field

from megatron_monitor.breakdown.account import Across, TimerLine
from megatron_monitor.parsers.timers import BETWEEN_STEPS, timer
from megatron_monitor.statistics.median import deviation, median

_K = TypeVar("_K")
_V = TypeVar("_V")
WHOLE = "whole_pass"
"""A whole pass without printed parts: no timer shows what it contains."""
OUTSIDE = "outside_timers"
"""The iteration's time outside all timers."""
ENGINE = "engine"
"""DeepSpeed's own clock of a step, for steps without other timers."""
UNTIMED = "untimed"
"""The same, as a category on pages."""


class RankSpan(Struct, gc=False):
    """Seconds per iteration: medians of the minimum and the maximum over the ranks, and their spread over the lines."""

    low: float
    high: float
    spread: float = 0.0


class Profile(Struct):
    """Where the time of some iterations went."""

    lines: int
    seconds: float
    """Median seconds per iteration of these lines."""
    parts: dict[str, RankSpan] = field(default_factory=dict)
    """Category (or WHOLE, OUTSIDE) -> seconds."""
    timers: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Timer -> medians of minimum and maximum."""
    across: Across = "one"
    ranks: dict[int, float] = field(default_factory=dict)
    """Rank -> median of its compute, if the log prints each rank's time."""

    @property
    def covered(self) -> float:
        """Return the share of the iteration's time that timers measure, 0 to 1. A clock of the whole step measures all
        of it: what is outside the clock is known to be outside.
        """
        if ENGINE in self.timers:
            return 1.0
        outside = self.parts.get(OUTSIDE)
        return 1 - outside.low / self.seconds if outside is not None and self.seconds > 0 else 0.0


def split(timers: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Return category (or WHOLE) -> minimum and maximum seconds: each timer without the timers inside it, and without
    those between two steps.
    """
    parts: dict[str, tuple[float, float]] = {}
    for name, key, inside in _nested(tuple(timers)):
        low, high = timers[name]
        least = most = 0.0
        for part in inside:
            part_low, part_high = timers[part]
            least, most = least + part_low, most + part_high
        low, high = (low - least if low > least else 0.0), (high - most if high > most else 0.0)
        known = parts.get(key)
        parts[key] = (low, high) if known is None else (known[0] + low, known[1] + high)
    return parts


@lru_cache(maxsize=256)
def _nested(names: tuple[str, ...]) -> list[tuple[str, str, list[str]]]:
    """Return (timer, its category or WHOLE, the timers inside it) for the timers of a line. All lines print the same
    ones.
    """
    inside: dict[str, list[str]] = {name: [] for name in names}
    for name in names:
        around = next((parent for parent in timer(name).parent if parent in inside), None)
        if around is not None:
            inside[around].append(name)
    return [
        (name, WHOLE if timer(name).mixed else timer(name).category, parts)
        for name, parts in inside.items()
        if name not in BETWEEN_STEPS
    ]


def critical(timed: TimerLine) -> tuple[dict[str, float], dict[str, float]]:
    """Return (category or UNTIMED -> seconds of an iteration on the rank that the others wait for, category -> seconds
    from the fastest to the slowest rank).

    The rank has the maximum of work and the minimum of waiting. A pass without printed parts is compute. The sum is the
    iteration's time. The second is empty if the log prints one rank's timers or the maximum.
    """
    parts, spreads = dict[str, float](), dict[str, float]()
    for key, (low, high) in split(timed.timers).items():
        category = "compute" if key == WHOLE else key
        parts[category] = parts.get(category, 0.0) + (low if category == "communication" else high)
        if timed.across == "range":
            spreads[category] = spreads.get(category, 0.0) + max(0.0, high - low)
    if timed.seconds is not None:
        parts[UNTIMED] = max(0.0, timed.seconds - sum(parts.values()))
    return parts, spreads


def outside(timed: TimerLine) -> tuple[float, float] | None:
    """Return the minimum and maximum seconds of the iteration that no timer measures."""
    if timed.seconds is None:
        return None
    inner = (name for name in timed.timers if name not in BETWEEN_STEPS)
    tops = [timed.timers[name] for name in inner if timed.timers.keys().isdisjoint(timer(name).parent)]
    return timed.seconds - sum(high for _, high in tops), timed.seconds - sum(low for low, _ in tops)


def profile(lines: Sequence[TimerLine]) -> Profile | None:
    """Return medians over the lines with a known iteration time, or None without any. A timer in fewer than half of the
    lines is not a usual part of the iteration.
    """
    known = [line for line in lines if line.seconds is not None]
    if not known:
        return None
    splits = [_whole(line) for line in known]
    return Profile(
        len(known),
        median([line.seconds for line in known if line.seconds is not None]),
        {key: _span(series) for key, series in _usual(splits)},
        {name: (median([p[0] for p in pairs]), median([p[1] for p in pairs]))
         for name, pairs in _usual([line.timers for line in known])},
        known[-1].across,
        {rank: median(times) for rank, times in _usual([line.ranks for line in known])},
    )  # fmt: skip


def _whole(line: TimerLine) -> dict[str, tuple[float, float]]:
    """Return the categories and the time outside them."""
    rest = outside(line)
    return split(line.timers) | ({OUTSIDE: rest} if rest is not None else {})


def _usual(lines: Sequence[Mapping[_K, _V]]) -> Iterator[tuple[_K, list[_V]]]:
    """Return the values of each key that at least half of the lines have."""
    found: dict[_K, list[_V]] = {}
    for line in lines:
        for key, value in line.items():
            found.setdefault(key, []).append(value)
    return ((key, values) for key, values in found.items() if 2 * len(values) >= len(lines))


def _span(series: list[tuple[float, float]]) -> RankSpan:
    lows, highs = [low for low, _ in series], [high for _, high in series]
    low, high = median(lows), median(highs)
    return RankSpan(low, high, max(deviation(lows, low), deviation(highs, high)))
