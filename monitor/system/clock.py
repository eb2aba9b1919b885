"""The only module that asks the system for the time.

Two clocks are never mixed. `wall` (Unix seconds, for people and for comparison with a log's stamps) may jump;
`monotonic` (seconds from an arbitrary start, for intervals and deadlines) does not. A SteadyClock yields the instants
stored for runs: they do not jump, and they continue over a restart.
"""

import contextlib
import time
from pathlib import Path
from typing import Protocol

_STEP = 1.0  # seconds between the two clocks: NTP slews both alike, so more means that the wall clock was set


class Clock(Protocol):
    """The time as callers need it."""

    def wall(self) -> float:
        """Unix seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds since a fixed instant of this host."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; return at once if `seconds` is not positive."""
        ...


class SystemClock:
    """The host's clocks."""

    wall = staticmethod(time.time)  # noqa: TID251
    """Unix seconds."""
    monotonic = staticmethod(time.monotonic)  # noqa: TID251
    """About the seconds since boot."""

    def sleep(self, seconds: float) -> None:
        """Wait; return at once if `seconds` is not positive."""
        if seconds > 0:
            time.sleep(seconds)


class SteadyClock:
    """Instants: seconds with the pace of the monotonic clock. Unix time is instant + `offset`.

    The offset is 0 until the wall clock is set (an NTP step, an administrator, a machine that slept). It is saved with
    the instants, so that instants of an earlier process stay comparable. The time between two processes is measured by
    the monotonic clock if both give its `origin` and the host has not booted between them, else by the wall clock.
    """

    def __init__(
        self, clock: Clock, offset: float = 0.0, since: float = float("-inf"), origin: tuple[str, float] = ("", 0.0)
    ) -> None:
        """`offset`, `since` and `origin`: the offset, the last saved instant and the origin of the process before. If
        the wall clock is behind the first two, it was set back meanwhile: the unknown time without a process counts as
        zero.
        """
        self._clock = clock
        wall, boot = clock.wall(), _boot_id()
        begin = wall - min(offset, wall - since) - clock.monotonic()
        self.origin = boot, origin[1] if boot and boot == origin[0] else begin
        """The boot of the monotonic clock, and the instant at which that clock was 0."""
        self.offset = wall - self.now()

    def now(self) -> float:
        """Return the present instant."""
        return self.origin[1] + self._clock.monotonic()

    def look(self) -> float:
        """Return by how many seconds the wall clock was set since the last call, and update `offset`."""
        for _ in range(2):  # a process that is stopped between the two readings sees a false step once
            step = self._clock.wall() - self.now() - self.offset
            if abs(step) < _STEP:
                return 0.0
        self.offset += step
        return step


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return ""
