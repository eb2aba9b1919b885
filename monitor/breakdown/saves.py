"""Detects that saves take longer than before, which no iteration line shows if the loop stops its clock around them.

The time of a save varies by far more than that of an iteration. Saves have become slower if each of the last three took
at least a third longer than all before, they are nearer to the new level than to the old one, and the run as a whole
loses as much as with a reported slowdown.
"""

from itertools import pairwise

from msgspec import Struct

from megatron_monitor.statistics.median import median

KEPT = 16  # remembered saves of a run
_LAST = 3
_PREVIOUS_SAVES = 4  # saves that must have shown the usual time
_LONGER = 1.33
_SAVES_TO_RESOLVE = 2  # saves nearer to the old level that end it


class SlowSaves(Struct):
    """Saves take longer since iteration `onset`: `level` seconds instead of `base`."""

    onset: int
    at: float
    base: float
    level: float
    lost: float
    """Share of the run's time that saves take more than before."""


def updated(
    standing: SlowSaves | None, saves: dict[int, float], seconds: float | None, at: float, threshold: float
) -> SlowSaves | None:
    """Return the state after a save. `saves`: iteration -> seconds. `seconds`: per iteration."""
    iterations, durations = list(saves), list(saves.values())
    if standing is not None:
        half = (standing.base + standing.level) / 2
        return None if len(durations) >= _SAVES_TO_RESOLVE and max(durations[-_SAVES_TO_RESOLVE:]) < half else standing
    if len(durations) < _PREVIOUS_SAVES + _LAST or not seconds:
        return None
    base, level = median(durations[:-_LAST]), median(durations[-_LAST:])
    every = median([second - first for first, second in pairwise(iterations)])
    lost = (level - base) / (every * seconds + base) if every > 0 else 0.0
    if lost < threshold or min(durations[-_LAST:]) < max(_LONGER * max(durations[:-_LAST]), (base + level) / 2):
        return None
    return SlowSaves(iterations[-_LAST], at, base, level, lost)
