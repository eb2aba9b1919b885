"""Why iterations take longer: compares two profiles and returns the category that took the added time.

Ranks wait for each other, so that the time which one rank loses appears as communication on all others. The minimum and
the maximum over the ranks separate the two. Work (compute, data, optimizer) with a larger minimum is slower on all
ranks. Work with only a larger maximum is slower on one rank. Communication is the cause only if no work is. Timers of
one rank cannot distinguish the network from another slow rank, and the result says so.
"""

import math
from typing import Literal, cast

from msgspec import Struct, field

from megatron_monitor.breakdown.profile import OUTSIDE, WHOLE, Profile
from megatron_monitor.parsers.timers import timer
from megatron_monitor.statistics.median import median

Cause = Literal[
    "compute", "slow_rank", "data", "network", "communication", "optimizer", "checkpoint", "rollout", "reward",
    "logprobs", "sync", "outside_timers", "unknown",
]  # fmt: skip
Scope = Literal["all", "one", "some", "unknown"]

_CAUSE_SHARE = 0.6  # share of the added time from which a category is the cause
_MAX_OTHER_SHARE = 0.35  # share of the added time below which a category is not the cause
_MAX_SHARE = 1.6  # multiple of the added time above which the growth of parts is inconsistent
_MIN_ERRORS = 3.0  # standard errors of a median that a growth must exceed
_MIN_LINES = 3  # lines on each side: fewer prove nothing
_MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean, for a normal series
_MIN_COVERED = 0.5  # share of the iteration's time that timers must measure before their absence proves anything
_OWN_WORK = ("data", "compute", "optimizer")
_WORK = ("data", "compute", "optimizer", "rollout", "reward", "logprobs", "sync", WHOLE, OUTSIDE)


class Growth(Struct):
    """Seconds by which a category grew: its minimum and its maximum over the ranks."""

    part: str
    low: float
    high: float
    error: float = 0.0


_NONE = Growth("", 0.0, 0.0)


class Attribution(Struct):
    """The cause of the added time and its evidence."""

    cause: Cause
    scope: Scope = "unknown"
    rank: int | None = None
    """The slow rank, if the log names ranks."""
    added: float = 0.0
    """Added seconds per iteration."""
    share: float = 0.0
    """Share of the cause's category."""
    part: str = ""
    """The category, WHOLE, or OUTSIDE."""
    early: bool = False
    """True if too few lines with timers have come."""
    grown: list[Growth] = field(default_factory=list)
    """All categories that took a considerable part, the largest first."""
    timers: list[tuple[str, float, float]] = field(default_factory=list)
    """The cause's timers that grew most: name, seconds before, seconds now."""


def attribute(before: Profile, during: Profile, stages: int | None = None) -> Attribution:
    """Return what took the added time in `during`. `stages` are those of the pipeline, because not all stages load
    data.
    """
    added = during.seconds - before.seconds
    out = Attribution("unknown", added=added, early=min(before.lines, during.lines) < _MIN_LINES)
    if out.early or added <= 0:
        return out
    grown = [_growth(part, before, during) for part in during.parts.keys() & before.parts.keys()]
    if any(g.low > _MAX_SHARE * added for g in grown):
        return out  # the growth on all ranks exceeds the iteration: these are not parts of it
    out.grown = sorted((g for g in grown if g.high > 0.15 * added and g.part != OUTSIDE), key=lambda g: -g.high)
    by_part = {g.part: g for g in grown if g.part != OUTSIDE or during.covered >= _MIN_COVERED}
    _decide(out, by_part, before, during, stages)
    return out


def _decide(out: Attribution, by_part: dict[str, Growth], before: Profile, during: Profile, stages: int | None) -> None:
    """Choose work that grew on all ranks, else on one, else a rank that the others wait for, else waiting itself."""
    added = out.added
    work = [g for part in _WORK if _explains((g := by_part.get(part, _NONE)).high, added, g)]
    everywhere = [g for g in work if _explains(g.low, added, g)]
    single = [g for g in work if g.low < _MAX_OTHER_SHARE * added and g.part not in (WHOLE, OUTSIDE)]
    waiting = by_part.get("communication", _NONE)
    waits = waiting.low >= _MAX_OTHER_SHARE * added
    if everywhere:
        if len(everywhere) == 1 and not waits:  # otherwise the parts do not add up
            _found(out, everywhere[0], before, during)
            out.scope = "all" if during.across == "range" else "unknown"
    elif len(single) == 1:
        _on_some(out, single[0], before, during, stages)
    else:
        _of_waiting(out, by_part, not work, before, during)


def _of_waiting(out: Attribution, by_part: dict[str, Growth], idle: bool, before: Profile, during: Profile) -> None:
    """Choose if no work grew enough: a rank that the others wait for, or (`idle`: no work grew at all) the waiting
    itself.
    """
    waiting = by_part.get("communication", _NONE)
    if not _worked(by_part, out.added, ("data", "optimizer")) and _name_rank(out, before, during):
        out.cause, out.scope, out.part = "slow_rank", "one", "compute"
        out.timers = _timers_of("communication", before, during)  # the slowest stage hides it, and the waiting shows
    elif idle and _explains(waiting.high, out.added, waiting) and not _worked(by_part, out.added, _OWN_WORK):
        _found(out, waiting, before, during)
        everyone = during.across == "range" and _explains(waiting.low, out.added, waiting)
        out.cause, out.scope = ("network", "all") if everyone else ("communication", "unknown")


def _on_some(out: Attribution, growth: Growth, before: Profile, during: Profile, stages: int | None) -> None:
    _found(out, growth, before, during)
    out.scope = "some" if out.cause == "data" and stages != 1 else "one"
    if out.scope == "one" and out.cause == "compute":
        out.cause = "slow_rank"
        _name_rank(out, before, during)


def _worked(by_part: dict[str, Growth], added: float, parts: tuple[str, ...]) -> bool:
    """Return True if work grew by too much to exclude it and too little to be the cause. Then waiting is not the cause
    either.
    """
    return any(g.high >= _MAX_OTHER_SHARE * added for part, g in by_part.items() if part in parts)


def _name_rank(out: Attribution, before: Profile, during: Profile) -> bool:
    """Find the rank whose compute took the added time while that of most ranks did not. Return False if there
    is none.
    """
    grown = {rank: now - before.ranks[rank] for rank, now in during.ranks.items() if rank in before.ranks}
    if len(grown) < 2:
        return False
    rank = max(grown, key=lambda each: grown[each])
    share = grown[rank] / out.added
    if not _CAUSE_SHARE <= share <= _MAX_SHARE or median(grown.values()) >= _MAX_OTHER_SHARE * out.added:
        return False
    out.rank, out.share = rank, share
    return True


def _growth(part: str, before: Profile, during: Profile) -> Growth:
    """Return the growth of a category, with the standard error of the difference of its two medians."""
    old, new = before.parts[part], during.parts[part]
    error = _MEDIAN_ERROR * math.sqrt(old.spread**2 / before.lines + new.spread**2 / during.lines)
    return Growth(part, new.low - old.low, new.high - old.high, error)


def _explains(seconds: float, added: float, growth: Growth) -> bool:
    return _CAUSE_SHARE * added <= seconds <= _MAX_SHARE * added and seconds > _MIN_ERRORS * growth.error


def _found(out: Attribution, growth: Growth, before: Profile, during: Profile) -> None:
    unnamed: dict[str, Cause] = {WHOLE: "unknown", OUTSIDE: "outside_timers"}
    out.part, out.cause = growth.part, unnamed.get(growth.part) or cast(Cause, growth.part)
    out.share = growth.high / out.added
    out.timers = _timers_of(growth.part, before, during)


def _timers_of(part: str, before: Profile, during: Profile) -> list[tuple[str, float, float]]:
    """Return the timers of a category that grew most, timers without others inside first: name, seconds
    before and now.
    """
    found = []
    for name, (_, high) in during.timers.items():
        row, old = timer(name), before.timers.get(name)
        if old is not None and (WHOLE if row.mixed else row.category) == part and high > old[1]:
            found.append((name, old[1], high))
    return sorted(found, key=lambda item: item[1] - item[2])[:2]
