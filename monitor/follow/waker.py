"""What a reader waits on: calls from other threads, and on local mounts what its directory watches name.

An event only names a path that may have changed, and a reader that is never woken still polls.
"""

import threading

from megatron_monitor.follow.directory_watches import DirectoryWatches

_MOST_PATHS = 1024  # named paths; beyond that looking at every file is as cheap


class Waker:
    """`wake` is for any thread, and may be called when its `watches` are closed; the rest is for the reader's own."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._paths: set[str] = set()
        self._everything = self._called = False
        self.watches = DirectoryWatches(self._named)

    def wake(self) -> None:
        """Every file is to be looked at now."""
        with self._changed:
            self._everything = self._called = True
            self._changed.notify()

    def wait(self, seconds: float, coalesce_seconds: float = 0.0, debounce_seconds: float = 0.0) -> None:
        """Until a call, which ends it at once, or an event. To be woken costs as much as to read ten lines, so events
        are left to add up: for `coalesce_seconds`, and for `debounce_seconds` after the first one that comes then.
        """
        coalesce_seconds = min(coalesce_seconds, seconds)
        with self._changed:
            if coalesce_seconds > 0.0:
                self._changed.wait_for(lambda: self._called, coalesce_seconds)
                if self._events_lie:
                    return
            self._changed.wait_for(lambda: self._called or self._events_lie, max(0.0, seconds - coalesce_seconds))
            if self._events_lie and debounce_seconds > 0.0:
                self._changed.wait_for(lambda: self._called, debounce_seconds)

    def take(self) -> tuple[set[str], bool]:
        """The paths that may have changed since the last call, and whether every file is to be looked at."""
        with self._changed:
            paths, self._paths = self._paths, set()
            everything, self._everything = self._everything, False
            self._called = False
        return paths, everything

    @property
    def _events_lie(self) -> bool:
        return self._everything or bool(self._paths)

    def _named(self, path: str) -> None:
        with self._changed:
            if not self._events_lie:  # who lets events add up is not woken by each
                self._changed.notify()
            self._paths.add(path)
            if len(self._paths) > _MOST_PATHS:
                self._everything, self._paths = True, set()
