"""The core on live files without HTTP, state or notifiers: what `top` looks through.

Unlike the daemon it remembers nothing: what it shows was read from the files since it began.
"""

from __future__ import annotations

from monitor.clock import Clock, SystemClock
from monitor.config import Config
from monitor.core import Core
from monitor.follow.follower import Follower
from monitor.follow.inbox import Inbox
from monitor.follow.patterns import Watch
from monitor.follow.settings import FollowSettings
from monitor.metrics import Snapshot
from monitor.reading import custom_rules

_BATCH_SECONDS = 0.2  # of messages taken before the time is looked at again


class Watching:
    """Made from a configuration; `start`, then `look` as often as wanted, then `stop`."""

    def __init__(self, config: Config, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._core = Core(config, custom_rules(config))
        settings = FollowSettings()
        self._inbox = Inbox(settings.queue_size)
        watches = [Watch(pattern, tuple(watch.exclude)) for watch in config.runs for pattern in watch.paths]
        self._follower = Follower(watches, {}, self._inbox, settings=settings, clock=self.clock)

    def start(self) -> None:
        """Begin to read."""
        self._follower.start()

    def stop(self) -> None:
        """End the reader threads."""
        self._follower.stop(2.0)

    def look(self, seconds: float) -> Snapshot:
        """Take what comes within so many seconds, judge, and show."""
        until = self.clock.monotonic() + seconds
        while (left := until - self.clock.monotonic()) > 0:
            self._take(min(left, _BATCH_SECONDS))
            self._core.tick(self.clock.wall())
        return self._core.snapshot(self.clock.wall())

    def _take(self, seconds: float) -> None:
        until = self.clock.monotonic() + seconds
        while (left := until - self.clock.monotonic()) > 0:
            self._inbox.wait(0.0, left)
            for message in self._inbox.get_some():
                self._core.handle(message, self.clock.wall())
