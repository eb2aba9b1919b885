"""Patterns in, messages in a bounded queue out: a reader thread per mount, started as the patterns reach it.

The caller's thread never waits for a log's file system: not here, not in `start`, `stop`, `wake` or `status`.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from megatron_monitor.follow.inbox import Inbox
from megatron_monitor.follow.messages import SMALL_BYTES, Data, Message, Position, Scanned, SourceId
from megatron_monitor.follow.mounts import Mounts, read_mounts
from megatron_monitor.follow.os_layer import OsLayer
from megatron_monitor.follow.patterns import WatchedPath
from megatron_monitor.follow.readers import Mode, MountReader, Readers
from megatron_monitor.follow.settings import STOP_SECONDS, FollowSettings
from megatron_monitor.follow.streams import FILE_SYSTEM, STDIN, StreamThread, is_stream
from megatron_monitor.follow.waker import Waker
from megatron_monitor.system.clock import Clock, SystemClock

T = TypeVar("T")
_BATCH = 32  # messages of a pass that are put at once
_PUT_SECONDS = 0.25  # between two looks at the stop flag while the loop does not take messages
_POLL_PASS_SECONDS = 0.1  # between two passes that time asked for: of thousands of files one is due at any moment
_EVENT_PASS_SECONDS = 0.4  # the same where events name what changes: to be woken costs as much as to read ten lines
_PASS_PER_FILE = 0.03  # the same, for each file that had grown: of fifty every line comes within two seconds
_LONGEST_PASS = 1.5  # and never longer
_LONGEST_PAUSE = 1.0  # seconds: who sleeps longer does not notice that the monitor was stopped meanwhile
_RESOLVE_SECONDS = 2.0  # for which a pattern's path may take to resolve at the start; then its text decides the mount
_SETTLE_SECONDS = 0.03  # from the first event to the pass: a line comes in pieces, and the stamps tick meanwhile


class MountStatus(NamedTuple):
    """How one reader does, from memory: asking never touches a file system."""

    mount: str
    file_system: str
    mode: Mode
    alive: bool
    """False: its thread ended by a bug, nothing is read from this mount any more."""
    busy_seconds: float
    """How long it has been in one system call or between two: many seconds mean that the mount hangs."""
    unobserved_seconds: float = 0.0
    """For how long nobody has listened to it, be it that a call hangs or that the monitor did not run; 0 else."""
    late_seconds: float = 0.0
    """For how long a file has waited to be looked at."""
    waiting: int = 0
    """Files that were found and not opened yet."""


class Follower:
    """Follows everything the patterns name, from the resumed positions on, until stopped."""

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
        self._streams: dict[str, StreamThread] = {}
        self._mount_thread = threading.Thread(target=self._watch_mounts, name="follow mounts", daemon=True)
        self._resolved: dict[str, str] = {}
        self._looked_at: set[str] = set()

    def start(self) -> None:
        """Begin; returns at once."""
        self._mount_thread.start()

    def stop(self, timeout: float = STOP_SECONDS) -> bool:
        """End every thread within `timeout` seconds. False if one is left behind in a call that does not return."""
        self._stopping.set()
        self.wake()
        deadline = self._clock.monotonic() + timeout
        threads: list[threading.Thread] = [self._mount_thread, *self._threads.values()]
        for thread in threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - self._clock.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def wake(self) -> None:
        """Look at everything now."""
        for thread in list(self._threads.values()):
            thread.waker.wake()

    def status(self) -> tuple[MountStatus, ...]:
        """One a mount or stream, from memory."""
        streams = [MountStatus(path, FILE_SYSTEM, "poll", True, 0.0) for path in list(self._streams)]
        return (*(thread.status() for thread in list(self._threads.values())), *streams)

    @property
    def over(self) -> bool:
        """Are there streams alone, and all at their ends?"""
        streams = list(self._streams.values())
        return len(streams) == len(self._patterns) and bool(streams) and all(stream.over for stream in streams)

    @property
    def alive(self) -> bool:
        """False once a thread has ended by a bug: the daemon should end too and be restarted."""
        threads = [self._mount_thread, *list(self._threads.values())]
        return self._stopping.is_set() or all(thread.is_alive() or thread.ident is None for thread in threads)

    def _watch_mounts(self) -> None:
        """Mounts come and go (autofs): look at the table, which never hangs, and start readers for new ones."""
        files = [watch for watch in self._patterns if watch.pattern != STDIN]
        while not self._stopping.is_set():
            self._begin_streams()
            for reader in self._readers.sync_readers(files, self._mounts(), self._resolve):
                thread = ReaderThread(reader, self._messages, self._clock, self._stopping)
                self._threads[reader.mount.point] = thread  # before it starts: it may be woken at its first message
                thread.start()
            self._stopping.wait(self._settings.discovery_interval)

    def _begin_streams(self) -> None:
        """A FIFO is looked for once: one that comes later in a file's place is no log."""
        for path in [watch.pattern for watch in self._patterns if watch.pattern not in self._looked_at]:
            self._looked_at.add(path)
            if self._ask(lambda path=path: is_stream(path, self._os), False):  # type: ignore[misc]
                stream = self._streams[path] = StreamThread(path, self._messages, self._clock, self._stopping)
                stream.start()

    def _resolve(self, path: str) -> str:
        """The path with links resolved, asked once; as it is if that takes too long."""
        if path not in self._resolved:
            self._resolved[path] = self._ask(lambda: self._os.realpath(path), path)
        return self._resolved[path]

    def _ask(self, question: Callable[[], T], otherwise: T) -> T:
        """What a file system answers in time: a mount that hangs costs a thread."""
        answers: list[T] = []
        thread = threading.Thread(target=lambda: answers.append(question()), name="follow asks", daemon=True)
        thread.start()
        thread.join(_RESOLVE_SECONDS)
        return answers[0] if answers else otherwise


class ReaderThread(threading.Thread):
    """One mount's reader: poll, put, wait. A daemon thread: one that hangs in the kernel must not keep the process."""

    def __init__(self, reader: MountReader, messages: Inbox, clock: Clock, stopping: threading.Event) -> None:
        super().__init__(name=f"follow {reader.mount.point}", daemon=True)
        self.waker = Waker()
        self._reader = reader
        self._messages = messages
        self._clock = clock
        self._stopping = stopping
        self._busy_since: float | None = None
        self._walked = True
        self._grown = 0

    def status(self) -> MountStatus:
        """Safe from any thread."""
        mount, busy = self._reader.mount, self._busy_since
        seconds = max(0.0, self._clock.monotonic() - busy) if busy is not None else 0.0
        now, reader = self._clock.monotonic(), self._reader
        unobserved_time, late = reader.unobserved_seconds(now), reader.late_seconds(now)
        alive, left = self.is_alive(), reader.waiting
        return MountStatus(mount.point, mount.file_system, reader.mode, alive, seconds, unobserved_time, late, left)

    def run(self) -> None:
        """Until `stopping` is set."""
        try:
            while not self._stopping.is_set():
                self._observe()
                began = self._clock.monotonic()
                changed, everything = self.waker.take()
                if not self._pass(changed, all_files=everything):
                    return
                pause = min(self.pause(began), _LONGEST_PAUSE)
                self._reader.passed(self._clock.monotonic(), pause)
                self.waker.wait(pause, self._least_pause if changed else 0.0, _SETTLE_SECONDS)
        finally:
            self._reader.close()
            self.waker.close()

    def pause(self, began: float) -> float:
        """Seconds to the next pass, after one that `began` then."""
        if self._reader.hurried:
            return 0.0
        return max(0.0, began + max(self._reader.wait(began), self._least_pause) - self._clock.monotonic())

    @property
    def _least_pause(self) -> float:
        if self._reader.mode == "poll":
            return _POLL_PASS_SECONDS
        return max(_EVENT_PASS_SECONDS, min(_PASS_PER_FILE * self._grown, _LONGEST_PASS))

    def _observe(self) -> None:
        """After each walk: observe the directories of a mount on which every write is seen by this system."""
        if self._walked and self._reader.mount.local:
            now = self._clock.monotonic()
            observed = self.waker.observe(self._reader.directories(now), now)
            self._reader.mode = "inotify" if observed else "poll"
        self._walked = False

    def _pass(self, changed: set[str], *, all_files: bool) -> bool:
        """Read what is due and put it into the queue. False: it is to end."""
        self._busy_since = self._clock.monotonic()
        found: list[Message] = []
        self._grown = 0
        for message in self._reader.poll(self._clock, changed, all_files=all_files):
            found.append(message)
            self._grown += isinstance(message, Data)
            self._walked = self._walked or isinstance(message, Scanned)
            small = not isinstance(message, Data) or len(message.data) <= SMALL_BYTES
            if small and self._reader.mount.local and len(found) < _BATCH:
                continue  # it goes with others of this pass, but not where the next look may hang
            self._busy_since = None  # waiting for the loop is no sign of a hung mount
            if not self._put(found):
                return False
            found.clear()
            self._busy_since = self._clock.monotonic()
        self._busy_since = None
        return self._put(found)

    def _put(self, messages: list[Message]) -> bool:
        done = 0
        while done < len(messages):
            if self._stopping.is_set():
                return False
            done += self._messages.put_all(messages[done:], _PUT_SECONDS)
        return True
