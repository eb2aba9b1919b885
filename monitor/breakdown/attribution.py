"""Why iterations take longer than they did: two profiles in, the category that took the added time out.

Ranks wait for each other, so the time that one loses shows up on all others as communication. What separates the two
is the least and the most over the ranks: work (compute, data, optimizer) whose least has grown is slower on all of
them, work of which only the most has grown is slower on one, and communication is the cause only where no work is.
A log with one rank's timers cannot tell the network from a slow rank elsewhere: then that is what is said.
"""

import math
from typing import Literal, cast

from msgspec import Struct, field

from megatron_monitor.breakdown.profile import OUTSIDE, WHOLE, Profile, RankSpan
from megatron_monitor.parsers.timers import timer
from megatron_monitor.statistics.median import median

Cause = Literal[
    "compute", "slow_rank", "data", "network", "communication", "optimizer", "checkpoint", "rollout", "reward",
    "logprobs", "sync", "outside_timers", "unknown",
]  # fmt: skip
Scope = Literal["all", "one", "some", "unknown"]

_SHARE = 0.6  # of the added time: what took so much is the cause,
_REST = 0.35  # and what took less than this is none
_MOST = 1.6  # times the added time: parts that grew by more do not add up with the rest
_SURE = 3.0  # standard errors of a median that a growth must exceed
_LINES = 3  # on either side: fewer prove nothing
_FEW = 8
_MEDIAN = 1.2533  # standard error of a median over that of a mean, of a normal series
_COVERED = 0.5  # of the iteration's time that timers must measure before their absence proves anything
_OWN = ("data", "compute", "optimizer")
_WORK = ("data", "compute", "optimizer", "rollout", "reward", "logprobs", "sync", WHOLE, OUTSIDE)


class Growth(Struct):
    """Seconds by which a category grew: its least over the ranks, and its most."""

    part: str
    low: float
    high: float
    error: float = 0.0


_NONE = Growth("", 0.0, 0.0)


class Attribution(Struct):
    """The cause of the added time, and what shows it."""

    cause: Cause
    scope: Scope = "unknown"
    rank: int | None = None
    """The one that is slow, where the log names ranks."""
    added: float = 0.0
    """Seconds that an iteration takes longer."""
    share: float = 0.0
    """Of it in the cause's category."""
    part: str = ""
    """That category, or WHOLE, or OUTSIDE."""
    early: bool = False
    """Too few lines with timers have come yet."""
    grown: list[Growth] = field(default_factory=list)
    """All categories that took a good part of it, the largest first."""
    timers: list[tuple[str, float, float]] = field(default_factory=list)
    """The timers of the cause that grew most: name, seconds before, seconds now."""


def attribute(before: Profile, during: Profile, stages: int | None = None) -> Attribution:
    """What took the time that iterations take longer in `during`. `stages`: of the pipeline, not all load data."""
    added = during.seconds - before.seconds
    out = Attribution("unknown", added=added, early=min(before.lines, during.lines) < _LINES)
    if out.early or added <= 0:
        return out
    grown = [_growth(part, before, during) for part in during.parts.keys() & before.parts.keys()]
    if any(g.low > _MOST * added for g in grown):
        return out  # on all ranks longer by more than the iteration: these are no times of it
    out.grown = sorted((g for g in grown if g.high > 0.15 * added and g.part != OUTSIDE), key=lambda g: -g.high)
    by_part = {g.part: g for g in grown if g.part != OUTSIDE or during.covered >= _COVERED}
    _decide(out, by_part, before, during, stages)
    return out


def _decide(out: Attribution, by_part: dict[str, Growth], before: Profile, during: Profile, stages: int | None) -> None:
    """Work that grew on all ranks, else on one, else a rank for which the others wait, else waiting itself."""
    added = out.added
    work = [g for part in _WORK if _explains((g := by_part.get(part, _NONE)).high, added, g)]
    everywhere = [g for g in work if _explains(g.low, added, g)]
    single = [g for g in work if g.low < _REST * added and g.part not in (WHOLE, OUTSIDE)]
    waiting = by_part.get("communication", _NONE)
    waits = waiting.low >= _REST * added
    if during.across == "maximum" and waits and len(everywhere) == 1:  # the others wait for the one with the most
        everywhere, single = [], everywhere
    if everywhere:
        if len(everywhere) == 1 and not waits:  # else the parts do not add up
            _found(out, everywhere[0], before, during)
            out.scope = "all" if during.across == "range" else "unknown"
    elif len(single) == 1:
        _on_some(out, single[0], before, during, stages)
    else:
        _of_waiting(out, by_part, not work, before, during)


def _of_waiting(out: Attribution, by_part: dict[str, Growth], idle: bool, before: Profile, during: Profile) -> None:
    """No work grew enough: a rank for which the others wait, or (`idle`: no work grew at all) the waiting itself."""
    waiting = by_part.get("communication", _NONE)
    if not _worked(by_part, out.added, ("data", "optimizer")) and _name_rank(out, before, during):
        out.cause, out.scope, out.part = "slow_rank", "one", "compute"
        out.timers = _timers_of("communication", before, during)  # the slowest stage hides it: the waiting shows
    elif idle and _explains(waiting.high, out.added, waiting) and not _worked(by_part, out.added, _OWN):
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
    """Whether some work grew by too much to be no cause, and by too little to be one: then waiting is none either."""
    return any(g.high >= _REST * added for part, g in by_part.items() if part in parts)


def _name_rank(out: Attribution, before: Profile, during: Profile) -> bool:
    """Name the rank whose compute took the added time, while most ranks' did not; False where there is none."""
    grown = {rank: now - before.ranks[rank] for rank, now in during.ranks.items() if rank in before.ranks}
    if len(grown) < 2:
        return False
    rank = max(grown, key=lambda each: grown[each])
    share = grown[rank] / out.added
    if not _SHARE <= share <= _MOST or median(grown.values()) >= _REST * out.added:
        return False
    out.rank, out.share = rank, share
    return True


def _growth(part: str, before: Profile, during: Profile) -> Growth:
    old, new = before.parts[part], during.parts[part]
    return Growth(part, new.low - old.low, new.high - old.high, _error(old, before.lines, new, during.lines))


def _error(old: RankSpan, before: int, new: RankSpan, during: int) -> float:
    """Standard error of the difference of two medians. A few lines do not show how far they spread."""
    spread = new.spread if during >= _FEW else max(old.spread, new.spread / 2)
    return _MEDIAN * math.sqrt(old.spread**2 / before + spread**2 / during)


def _explains(seconds: float, added: float, growth: Growth) -> bool:
    return _SHARE * added <= seconds <= _MOST * added and seconds > _SURE * growth.error


def _found(out: Attribution, growth: Growth, before: Profile, during: Profile) -> None:
    unnamed: dict[str, Cause] = {WHOLE: "unknown", OUTSIDE: "outside_timers"}
    out.part, out.cause = growth.part, unnamed.get(growth.part) or cast(Cause, growth.part)
    out.share = growth.high / out.added
    out.timers = _timers_of(growth.part, before, during)


def _timers_of(part: str, before: Profile, during: Profile) -> list[tuple[str, float, float]]:
    """The timers of a category that grew most, those first that hold no other one: name, seconds before and now."""
    found = []
    for name, (_, high) in during.timers.items():
        row, old = timer(name), before.timers.get(name)
        if old is not None and (WHOLE if row.mixed else row.category) == part and high > old[1]:
            found.append((name, old[1], high))
    return sorted(found, key=lambda item: item[1] - item[2])[:2]
