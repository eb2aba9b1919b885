"""A clock that stands still until a test moves it."""


class ManualClock:
    """A monitor.system.clock.Clock that moves only by calls."""

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
