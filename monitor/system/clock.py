"""The only place that asks the system for the time.

Two clocks, never mixed: `wall` (Unix seconds, for what people read and for comparing with a log's own time stamps) may
jump; `monotonic` (seconds from an arbitrary start, for intervals and deadlines) never does. A SteadyClock gives the
instants that are kept of runs: they do not jump, and go on over a restart.
"""

import time
from typing import Protocol

_STEP = 1.0  # seconds between the two clocks; NTP slews both alike, anything more was set


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

    wall = staticmethod(time.time)  # noqa: TID251
    """Unix seconds."""
    monotonic = staticmethod(time.monotonic)  # noqa: TID251
    """Seconds since boot, more or less."""

    def sleep(self, seconds: float) -> None:
        """Wait; at once if there is nothing to wait for."""
        if seconds > 0:
            time.sleep(seconds)


class SteadyClock:
    """Instants: seconds that pass as the monotonic clock's do. `offset` leads from an instant to Unix time.

    The offset is 0 until the wall clock is set (NTP's steps, an administrator, a machine that slept). It is saved with
    the instants, so that those of an earlier process stay comparable; the time between two processes is measured by
    the wall clock.
    """

    def __init__(self, clock: Clock, offset: float = 0.0, since: float = float("-inf")) -> None:
        """`offset` and `since`: that of the process before, and the last instant that it saved. Where the wall clock is
        behind both, it was set back meanwhile: how long no process ran is unknown then, and counts as no time.
        """
        self._clock = clock
        wall = clock.wall()
        self.offset = min(offset, wall - since)
        self._begin = wall - self.offset - clock.monotonic()

    def now(self) -> float:
        """The instant."""
        return self._begin + self._clock.monotonic()

    def look(self) -> float:
        """See whether the wall clock was set: by how many seconds since the last look. `offset` follows."""
        for _ in range(2):  # a process that is stopped between the two readings sees a step once
            step = self._clock.wall() - self.now() - self.offset
            if abs(step) < _STEP:
                return 0.0
        self.offset += step
        return step
