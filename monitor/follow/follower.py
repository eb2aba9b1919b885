"""Patterns in, messages in a bounded queue out: a reader thread per mount, started as the patterns reach it.

The caller's thread never waits for a log's file system: not here, not in `start`, `stop`, `wake` or `status`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from monitor.clock import Clock, SystemClock
from monitor.follow.crew import Crew
from monitor.follow.inbox import Inbox
from monitor.follow.messages import Position, SourceId
from monitor.follow.mounts import Mounts, read_mounts
from monitor.follow.os_layer import OsLayer
from monitor.follow.patterns import Watch
from monitor.follow.reader_thread import MountStatus, ReaderThread
from monitor.follow.settings import FollowSettings


class Follower:
    """Follows everything the patterns name, from the resumed positions on, until stopped."""

    def __init__(
        self,
        patterns: Sequence[Watch],
        resume: Mapping[SourceId, Position],
        messages: Inbox,
        *,
        settings: FollowSettings | None = None,
        os_layer: OsLayer | None = None,
        clock: Clock | None = None,
        mounts: Callable[[], Mounts] = read_mounts,
    ) -> None:
        self._settings = settings or FollowSettings()
        self._patterns = tuple(patterns)
        self._messages = messages
        self._clock = clock or SystemClock()
        self._mounts = mounts
        self._os = os_layer or OsLayer()
        self._crew = Crew(resume, self._settings, self._os)
        self._stopping = threading.Event()
        self._passed = threading.Condition()
        self._threads: dict[str, ReaderThread] = {}
        self._scout = threading.Thread(target=self._scout_mounts, name="follow mounts", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._scout.start()

    def stop(self, timeout: float | None = None) -> bool:
        """End every thread within `timeout` seconds. False if one is left behind in a call that does not return."""
        self._stopping.set()
        self.wake()
        deadline = self._clock.monotonic() + (self._settings.stop_seconds if timeout is None else timeout)
        threads: list[threading.Thread] = [self._scout, *self._threads.values()]
        for thread in threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - self._clock.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def wake(self) -> None:
        """Look at everything now."""
        for thread in list(self._threads.values()):
            thread.alarm.ring()

    def catch_up(self, seconds: float) -> bool:
        """Have read, and put into the queue, what was written before this call where inotify tells it. Waits `seconds`
        for it at most: False if that was not enough. For one thread.
        """
        asked = [thread for thread in list(self._threads.values()) if thread.ask()]
        with self._passed:
            return self._passed.wait_for(lambda: all(thread.answered for thread in asked), seconds)

    def status(self) -> tuple[MountStatus, ...]:
        """One a mount, from memory."""
        return tuple(thread.status() for thread in list(self._threads.values()))

    @property
    def alive(self) -> bool:
        """False once a thread has ended by a bug: the daemon should end too and be restarted."""
        threads = [self._scout, *list(self._threads.values())]
        return self._stopping.is_set() or all(thread.is_alive() or thread.ident is None for thread in threads)

    def _scout_mounts(self) -> None:
        """Mounts come and go (autofs): look at the table, which never hangs, and start readers for new ones."""
        resolve = _Resolver(self._os, self._settings.resolve_seconds)
        while not self._stopping.is_set():
            for reader in self._crew.muster(self._patterns, self._mounts(), resolve):
                thread = ReaderThread(reader, self._messages, self._clock, self._stopping, self._passed)
                self._threads[reader.mount.point] = thread  # before it starts: it may be woken at its first message
                thread.start()
            self._stopping.wait(self._settings.discovery_interval)


class _Resolver:
    """Follows links within a bounded time, once a path: a hung mount costs one thread and the link's target."""

    def __init__(self, os_layer: OsLayer, seconds: float) -> None:
        self._os = os_layer
        self._seconds = seconds
        self._known: dict[str, str] = {}

    def __call__(self, path: str) -> str:
        """The path with links resolved, or as it is if that takes too long."""
        if path not in self._known:
            self._known[path] = path

            def resolve() -> None:
                self._known[path] = self._os.realpath(path)

            thread = threading.Thread(target=resolve, name=f"resolve {path}", daemon=True)
            thread.start()
            thread.join(self._seconds)
        return self._known[path]
