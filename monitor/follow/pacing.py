"""When to look at a file again: soon while something is going on, less and less often while it is silent. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.follow.settings import FollowSettings

_SILENT_SECONDS = 60.0  # a file that grew so lately is looked at in time whatever the budget of looks

_SMEAR = 0.1  # share of a pause by which the phases of files differ


@dataclass(slots=True)
class Pacing:
    """Monotonic seconds throughout."""

    settings: FollowSettings
    phase: float = 0.0
    """0 to 1, another for each file: those that fell silent together are not looked at together for ever."""
    changed_at: float | None = None
    """When the file was last seen to change; at first, as long ago as its time stamp says."""
    settled_at: float = 0.0
    """Until a look at or after this its bytes are compared although its size and times stay the same."""
    grown: bool = False
    """It was seen to change after it had been read to its end: somebody writes it."""

    def first_seen(self, now: float, age_seconds: float) -> None:
        """The file is as silent as its time stamp says; a stamp from the future (another host's clock) says nothing."""
        if self.changed_at is None:
            self.changed_at = now - max(0.0, age_seconds)

    def changed(self, now: float, *, settle_seconds: float, grown: bool) -> None:
        """Size, times or content are not what they were. `grown`: it had been read to its end before."""
        self.changed_at = now
        self.settled_at = now + settle_seconds
        self.grown = self.grown or grown

    def pause(self, now: float, *, quiet_since: float | None, soon: bool, spread_seconds: float) -> float:
        """Seconds to the next look. `spread_seconds`: what all files looked at once in turn need within the budget."""
        settings = self.settings
        if soon or now < self.settled_at:
            return settings.poll_interval
        quiet = now - (quiet_since if quiet_since is not None else now)
        pause = min(max(quiet / settings.idle_divisor, settings.poll_interval), settings.idle_interval)
        return pause if self.grown and quiet <= _SILENT_SECONDS else self.among(pause, spread_seconds)

    def among(self, pause: float, spread_seconds: float) -> float:
        """A pause within the budget of looks, out of step with the other files."""
        return max(pause * (1.0 - _SMEAR * self.phase), spread_seconds * (1.0 + _SMEAR * self.phase))

    def after_failure(self, failures: int) -> float:
        """Seconds to the next try after so many failures in a row: doubling."""
        return min(self.settings.failure_interval, self.settings.poll_interval * 2.0 ** min(failures - 1, 16))
