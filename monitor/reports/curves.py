"""A run's recorded past (run/history.py) as curves over iterations, ready to draw and to compare. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.run.history import SERIES, Track
from monitor.serve.past import columns

Point = tuple[int, float, float]
"""(first iteration of a bucket, lowest value, highest value)."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One stretch a launch, so that a restart is a gap and no line back; `width` iterations a bucket."""

    width: int
    stretches: tuple[tuple[Point, ...], ...]

    @property
    def points(self) -> list[Point]:
        """Of all launches."""
        return [point for stretch in self.stretches for point in stretch]


def curve(track: Track, name: str) -> Curve:
    """One of history.SERIES; buckets without a value are left out."""
    found = columns(track, SERIES)
    figures = found["series"].get(name, {"mean": []})
    lows, highs = figures.get("low", figures["mean"]), figures.get("high", figures["mean"])
    stretches: dict[int, list[Point]] = {}
    for attempt, first, low, high in zip(found["attempt"], found["first_iteration"], lows, highs, strict=False):
        if low is not None and high is not None:
            stretches.setdefault(attempt, []).append((first, low, high))
    return Curve(found["width"], tuple(tuple(points) for points in stretches.values()))
