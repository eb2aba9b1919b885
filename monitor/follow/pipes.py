"""Pipes (standard input, FIFOs) as sources: each is read once, in order, by its own thread.

Bytes that come before the pipe is empty for the first time are backlog; later ones are live. The pipe is over when the
last writer has closed it.
"""

import os
import select
import stat
import threading

from megatron_monitor.follow.inbox import Inbox
from megatron_monitor.follow.messages import CaughtUp, Data, Message, Opened, Scanned, Unreadable, source_id
from megatron_monitor.follow.os_layer import OsLayer
from megatron_monitor.follow.patterns import has_magic
from megatron_monitor.system.clock import Clock

STDIN = "/dev/stdin"
FILE_SYSTEM = "pipe"
_READ_BYTES = 1 << 16
_WAIT = 0.2  # seconds without a byte after which the pipe counts as empty


def is_pipe(path: str, os_layer: OsLayer) -> bool:
    """Return True if the path is standard input, or a FIFO now."""
    try:
        return path == STDIN or (not has_magic(path) and stat.S_ISFIFO(os_layer.stat(path).st_mode))
    except OSError:
        return False


class PipeThread(threading.Thread):
    """Puts the messages of one pipe. A daemon thread: it may wait for a writer for ever."""

    def __init__(self, path: str, messages: Inbox, clock: Clock, stopping: threading.Event) -> None:
        super().__init__(name=f"pipe {path}", daemon=True)
        self.path = path
        self.over = False  # the last writer has closed the pipe, and all messages are in the queue
        self._messages, self._clock, self._stopping = messages, clock, stopping
        self._caught_up = False
        self._bytes = 0

    def run(self) -> None:
        """Read until the end, or until `stopping` is set."""
        try:
            # O_NONBLOCK opens a FIFO without a writer; `_read` waits for the first one
            descriptor = 0 if self.path == STDIN else os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            status = os.fstat(descriptor)
            name, at = source_id(self.path), self._clock.wall()
            self._put(Opened(name, self.path, None, 0, at, False, owner=status.st_uid, mount=self.path))
            self._read(descriptor)
        except OSError as error:
            reason = error.strerror or str(error)
            self._put(Unreadable(source_id(self.path), error.errno, reason, self._clock.wall()))
        self._report_empty()
        self.over = not self._stopping.is_set()

    def _read(self, descriptor: int) -> None:
        name, poller = source_id(self.path), select.poll()  # `select` only takes the first 1,024 descriptors
        poller.register(descriptor, select.POLLIN)
        while not self._stopping.is_set():
            if not poller.poll(1000 * _WAIT):
                self._report_empty()
                continue
            data = os.read(descriptor, _READ_BYTES)
            if not data and (self._bytes or descriptor == 0):
                return
            if not data:
                self._report_empty()
                self._stopping.wait(_WAIT)
                continue
            at = self._clock.wall()
            self._put(Data(name, self._bytes, data, at, at, 0))
            self._bytes += len(data)

    def _report_empty(self) -> None:
        if not self._caught_up:
            self._caught_up = True
            at = self._clock.wall()
            self._put(CaughtUp(source_id(self.path), at))
            self._put(Scanned(self.path, at))

    def _put(self, message: Message) -> None:
        while not self._stopping.is_set() and not self._messages.put_all([message], _WAIT):
            pass
