"""The only place that asks the system for the time.

Two clocks, never mixed: `wall` (Unix seconds, for what people read and for comparing with a log's own time stamps) may
jump; `monotonic` (seconds from an arbitrary start, for intervals and deadlines) never does.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a shell needs to know of time."""

    def wall(self) -> float:
        """Unix seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed instant of this process's host."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; at once if there is nothing to wait for."""
        ...


class SystemClock:
    """The host's clocks."""

    def wall(self) -> float:
        """Unix seconds."""
        return time.time()  # noqa: TID251

    def monotonic(self) -> float:
        """Seconds since boot, more or less."""
        return time.monotonic()  # noqa: TID251

    def sleep(self, seconds: float) -> None:
        """Wait; at once if there is nothing to wait for."""
        if seconds > 0:
            time.sleep(seconds)


class ManualClock:
    """A clock that moves when it is told to: tests and simulations."""

    def __init__(self, wall: float = 1_700_000_000.0, monotonic: float = 1000.0) -> None:
        self._wall = wall
        self._monotonic = monotonic

    def wall(self) -> float:
        """Unix seconds."""
        return self._wall

    def monotonic(self) -> float:
        """Seconds since some fixed instant."""
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Time passes without anybody waiting."""
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        """Both clocks move on."""
        self._wall += seconds
        self._monotonic += seconds

    def set_wall(self, at: float) -> None:
        """The wall clock jumps (NTP, an administrator); the other does not."""
        self._wall = at
