"""The follower: patterns in, messages in a bounded queue out. Each mount that patterns reach gets a reader thread.

The caller's thread never waits for a file system of logs: not in `start`, `stop`, `wake` or `status`.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from megatron_monitor.follow.inbox import Inbox
from megatron_monitor.follow.messages import SMALL_BYTES, Data, Message, Position, Scanned, SourceId
from megatron_monitor.follow.mounts import Mounts, read_mounts
from megatron_monitor.follow.os_layer import OsLayer
from megatron_monitor.follow.patterns import WatchedPath
from megatron_monitor.follow.pipes import FILE_SYSTEM, STDIN, PipeThread
from megatron_monitor.follow.readers import Mode, MountReader, Readers
from megatron_monitor.follow.settings import STOP_SECONDS, FollowSettings
from megatron_monitor.follow.waker import Waker
from megatron_monitor.system.clock import Clock, SystemClock

_MESSAGES_PER_PUT = 32
# Seconds:
_POLL_PASS_SECONDS = 0.1  # between two passes without events: of thousands of files one is due at any moment
_EVENT_PASS_SECONDS = 0.4  # between two passes with events: a wake-up costs as much as to read ten lines
_PASS_SECONDS_PER_FILE = 0.03  # the same for each file that had grown: of fifty every line comes within two seconds
_MAX_PASS_SECONDS = 1.5  # bound of the two above
_MAX_PAUSE_SECONDS = 1.0  # a longer sleep would hide that the monitor was suspended meanwhile
_RESOLVE_SECONDS = 2.0  # for which a pattern's path may take to resolve at the start; then its text decides the mount
_SETTLE_SECONDS = 0.03  # from the first event to the pass: a line comes in pieces, and time stamps tick meanwhile


class MountStatus(NamedTuple):
    """The state of one reader, from memory: a call never touches a file system."""

    mount: str
    file_system: str
    mode: Mode
    busy_seconds: float  # duration of the present system call or step; many seconds mean that the mount hangs
    unobserved_seconds: float = 0.0
    """For how long the mount has been unobserved: a call hangs, or the monitor was suspended. 0: it is observed."""
    overdue_seconds: float = 0.0  # for how long a due file has waited for its look
    unopened: int = 0  # files that were found and not opened yet


class Follower:
    """Follows everything that the patterns match, from the saved positions on, until stopped."""

    def __init__(
        self,
        patterns: Sequence[WatchedPath],
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
        self._readers = Readers(resume, self._settings, self._os)
        self._stopping = threading.Event()
        self._threads: dict[str, ReaderThread] = {}
        piped = any(watch.pattern == STDIN for watch in self._patterns)
        self._pipe = PipeThread(messages, self._clock, self._stopping) if piped else None
        self._mount_thread = threading.Thread(target=self._watch_mounts, name="follow mounts", daemon=True)
        self._resolved: dict[str, str] = {}

    def start(self) -> None:
        """Start the threads; returns at once."""
        self._mount_thread.start()
        if self._pipe is not None:
            self._pipe.start()

    def stop(self, timeout: float = STOP_SECONDS) -> bool:
        """End every thread within `timeout` seconds. False if one is abandoned in a call that does not return."""
        self._stopping.set()
        self.wake()
        deadline = self._clock.monotonic() + timeout
        threads: list[threading.Thread] = [self._mount_thread, *self._threads.values()]
        for thread in threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - self._clock.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def wake(self) -> None:
        """Look at every file now."""
        for thread in list(self._threads.values()):
            thread.waker.wake()

    def status(self) -> tuple[MountStatus, ...]:
        """Return the status of each mount and of standard input, from memory."""
        piped = [MountStatus(STDIN, FILE_SYSTEM, "poll", 0.0)] if self._pipe is not None else []
        return (*(thread.status() for thread in list(self._threads.values())), *piped)

    @property
    def over(self) -> bool:
        """True if only standard input is followed, and it has ended."""
        return self._pipe is not None and self._pipe.over and len(self._patterns) == 1

    @property
    def alive(self) -> bool:
        """False once a thread has ended by a bug: the daemon should end too and be restarted."""
        threads = [self._mount_thread, *list(self._threads.values())]
        return self._stopping.is_set() or all(thread.is_alive() or thread.ident is None for thread in threads)

    def _watch_mounts(self) -> None:
        """Mounts come and go (autofs): start readers for new ones. The mount table never hangs."""
        files = [watch for watch in self._patterns if watch.pattern != STDIN]
        while not self._stopping.is_set():
            for reader in self._readers.sync_readers(files, self._mounts(), self._resolve):
                thread = ReaderThread(reader, self._messages, self._clock, self._stopping)
                self._threads[reader.mount.point] = thread  # before the start: its first message may wake it
                thread.start()
            self._stopping.wait(self._settings.idle_interval)

    def _resolve(self, path: str) -> str:
        """Return the path with links resolved (asked once, in a thread that a hung mount may block), or unchanged if
        that takes two seconds.
        """
        if path not in self._resolved:
            found = [path]
            asks = threading.Thread(
                target=lambda: found.append(self._os.realpath(path)), name="follow asks", daemon=True
            )
            asks.start()
            asks.join(_RESOLVE_SECONDS)
            self._resolved[path] = found[-1]
        return self._resolved[path]


class ReaderThread(threading.Thread):
    """Runs one reader: poll, put, wait. A daemon thread: one that hangs in the kernel must not block the exit."""

    def __init__(self, reader: MountReader, messages: Inbox, clock: Clock, stopping: threading.Event) -> None:
        super().__init__(name=f"follow {reader.mount.point}", daemon=True)
        self.waker = Waker()
        self._reader = reader
        self._messages = messages
        self._clock = clock
        self._stopping = stopping
        self._busy_since: float | None = None
        self._walked = True
        self._grown_files = 0

    def status(self) -> MountStatus:
        """Return the status of the mount. Any thread may call."""
        reader, busy_since, now = self._reader, self._busy_since, self._clock.monotonic()
        return MountStatus(
            reader.mount.point,
            reader.mount.file_system,
            reader.mode,
            max(0.0, now - busy_since) if busy_since is not None else 0.0,
            reader.unobserved_seconds(now),
            reader.overdue_seconds(now),
            reader.unopened,
        )

    def run(self) -> None:
        """Read until `stopping` is set."""
        try:
            while not self._stopping.is_set():
                self._observe()
                began = self._clock.monotonic()
                changed, everything = self.waker.take_changes()
                if not self._pass(changed, all_files=everything):
                    return
                pause = min(self.pause(began), _MAX_PAUSE_SECONDS)
                self._reader.end_pass(self._clock.monotonic(), pause)
                self.waker.wait(pause, self._min_pause if changed else 0.0, _SETTLE_SECONDS)
        finally:
            self._reader.close()
            self.waker.close()

    def pause(self, began: float) -> float:
        """Return the seconds to the next pass, after one that `began` then."""
        if self._reader.has_more:
            return 0.0
        wait = max(self._reader.seconds_until_due(began), self._min_pause)
        return max(0.0, began + wait - self._clock.monotonic())

    @property
    def _min_pause(self) -> float:
        if self._reader.mode == "poll":
            return _POLL_PASS_SECONDS
        return max(_EVENT_PASS_SECONDS, min(_PASS_SECONDS_PER_FILE * self._grown_files, _MAX_PASS_SECONDS))

    def _observe(self) -> None:
        """After each walk: observe the directories of a local mount."""
        if self._walked and self._reader.mount.local:
            now = self._clock.monotonic()
            observed = self.waker.observe(self._reader.directories(now), now)
            self._reader.mode = "inotify" if observed else "poll"
        self._walked = False

    def _pass(self, changed: set[str], *, all_files: bool) -> bool:
        """Read what is due and put it into the queue. False: the thread is to end."""
        self._busy_since = self._clock.monotonic()
        batch: list[Message] = []
        self._grown_files = 0
        for message in self._reader.poll(self._clock, changed, all_files=all_files):
            batch.append(message)
            self._grown_files += isinstance(message, Data)
            self._walked = self._walked or isinstance(message, Scanned)
            small = not isinstance(message, Data) or len(message.data) <= SMALL_BYTES
            if small and self._reader.mount.local and len(batch) < _MESSAGES_PER_PUT:
                continue  # put together with others; not on other mounts, where the next look may hang
            self._busy_since = None  # a wait for the loop does not mean that the mount hangs
            if not self._messages.put_all(batch, self._stopping):
                return False
            batch.clear()
            self._busy_since = self._clock.monotonic()
        self._busy_since = None
        return self._messages.put_all(batch, self._stopping)
