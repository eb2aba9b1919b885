"""The thin loop around a MountReader: poll, put, wait. Everything that it decides is when to look again."""

from __future__ import annotations

import threading
from typing import NamedTuple

from monitor.clock import Clock
from monitor.follow.inbox import SMALL_BYTES, Inbox
from monitor.follow.messages import Data, Message, Scanned
from monitor.follow.mount_reader import Mode, MountReader
from monitor.follow.waker import Alarm, Waker

_TOGETHER = 32  # messages of a pass that are put at once
_PUT_SECONDS = 0.25  # between two looks at the stop flag while the loop does not take messages
_PACE = 0.1  # seconds between two passes that time asked for: of thousands of files one is due at any moment
_DEAF = 0.4  # the same where inotify tells what changes: to wake costs as much as to read ten lines
_DEAF_A_FILE = 0.03  # for each file that had changed, at least: of fifty every line is told within two seconds
_DEAFEST = 1.5  # and never longer
_SOON = 0.1  # the same where somebody asks in between
_PATIENCE = 0.03  # seconds from its first word to the pass: a line comes in pieces, and the stamps tick meanwhile


class MountStatus(NamedTuple):
    """How one reader does, from memory: asking never touches a file system."""

    mount: str
    file_system: str
    mode: Mode
    alive: bool
    """False: its thread ended by a bug, nothing is read from this mount any more."""
    busy_seconds: float
    """How long it has been in one system call or between two: many seconds mean that the mount hangs."""


class ReaderThread(threading.Thread):
    """One mount's reader. A daemon thread: one that hangs in the kernel must not keep the process."""

    def __init__(
        self,
        reader: MountReader,
        messages: Inbox,
        clock: Clock,
        stopping: threading.Event,
        passed: threading.Condition | None = None,
    ) -> None:
        """`passed` is told of each pass that somebody asked for."""
        super().__init__(name=f"follow {reader.mount.point}", daemon=True)
        self.alarm = Alarm()
        self._reader = reader
        self._messages = messages
        self._clock = clock
        self._stopping = stopping
        self._waker = Waker(self.alarm) if reader.mount.local else None
        self._busy_since: float | None = None
        self._passed = passed or threading.Condition()
        self._asked = self._answered = 0
        self._deaf_since: float | None = None

    @property
    def reader(self) -> MountReader:
        """What it reads with."""
        return self._reader

    def status(self) -> MountStatus:
        """Safe from any thread."""
        mount, busy = self._reader.mount, self._busy_since
        seconds = max(0.0, self._clock.monotonic() - busy) if busy is not None else 0.0
        return MountStatus(mount.point, mount.file_system, self._reader.mode, self.is_alive(), seconds)

    def ask(self) -> bool:
        """End a deafness to what has changed. False: there is none, or it has just begun."""
        deaf_since = self._deaf_since
        if deaf_since is None or self._clock.monotonic() - deaf_since < _SOON:
            return False
        self._asked += 1
        self.alarm.rouse()
        return True

    @property
    def answered(self) -> bool:
        """Is all that had changed before the last `ask` in the queue?"""
        return self._answered == self._asked

    def run(self) -> None:
        """Until `stopping` is set."""
        try:
            self._watch()
            while not self._stopping.is_set():
                asked = self._asked
                if asked != self._answered:
                    self.alarm.hear()
                hints, everything = self.alarm.take()
                began = self._busy_since = self._clock.monotonic()
                found: list[Message] = []
                for message in self._reader.poll(self._clock, hints, all_files=everything):
                    found.append(message)
                    if self._may_lie(message) and len(found) < _TOGETHER:
                        continue
                    self._busy_since = None  # waiting for the loop is no sign of a hung mount
                    if not self._put(found):
                        return
                    found.clear()
                    if isinstance(message, Scanned):
                        self._watch()
                    self._busy_since = self._clock.monotonic()
                self._busy_since = None
                if not self._put(found):
                    return
                if asked != self._answered:
                    with self._passed:
                        self._answered = asked
                        self._passed.notify_all()
                self._deaf_since = began if hints else None
                deaf = max(_DEAF, min(_DEAF_A_FILE * len(hints), _DEAFEST)) if hints else 0.0
                self.alarm.wait(self._pause(began, deaf), deaf=deaf, patience=_PATIENCE)
        finally:
            if self._waker is not None:
                self._waker.stop()
            self._reader.close()
            self.alarm.close()

    def _pause(self, began: float, deaf: float) -> float:
        """Seconds to the next pass, after one that `began` then; inotify is not listened to for `deaf` of them."""
        if self._reader.hurried:
            return 0.0
        pace = max(_DEAF, deaf) if self._reader.mode == "inotify" else _PACE
        return max(0.0, began + max(self._reader.wait(began), pace) - self._clock.monotonic())

    def _may_lie(self, message: Message) -> bool:
        """Until others of the same pass can go with it: not where the next look may hang."""
        return isinstance(message, Data) and len(message.data) <= SMALL_BYTES and self._reader.mount.local

    def _put(self, messages: list[Message]) -> bool:
        """False: it is to end."""
        done = 0
        while done < len(messages):
            if self._stopping.is_set():
                return False
            done += self._messages.put_all(messages[done:], _PUT_SECONDS)
        return True

    def _watch(self) -> None:
        if self._waker is None:
            return
        self._waker.watch(self._reader.directories())
        self._reader.mode = "inotify" if self._waker.alive else "poll"
        self._reader.note = self._waker.note
