"""What comes through a pipe: standard input, a FIFO. Read once, in order, by a thread each; never behind a reader.

A stream has no end of a file that one could look at: what was in the pipe when it was first found empty was written
before the monitor listened, and what comes later comes live. It is over when the last writer has gone.
"""

import logging
import os
import select
import stat
import threading

from megatron_monitor.follow.inbox import Inbox
from megatron_monitor.follow.messages import CaughtUp, Data, Message, Opened, Scanned, Unreadable, source_id
from megatron_monitor.follow.os_layer import OsLayer
from megatron_monitor.follow.patterns import has_magic
from megatron_monitor.system.clock import Clock

_log = logging.getLogger(__name__)

STDIN = "/dev/stdin"
FILE_SYSTEM = "pipe"
_READ_BYTES = 1 << 16
_WAIT = 0.2  # seconds without a byte after which what came before is no backlog any more


def is_stream(path: str, os_layer: OsLayer) -> bool:
    """Is it standard input, or a FIFO now?"""
    try:
        return path == STDIN or (not has_magic(path) and stat.S_ISFIFO(os_layer.stat(path).st_mode))
    except OSError:
        return False


class StreamThread(threading.Thread):
    """Puts the messages of one stream. A daemon thread: it may wait for a writer for ever."""

    def __init__(self, path: str, messages: Inbox, clock: Clock, stopping: threading.Event) -> None:
        super().__init__(name=f"stream {path}", daemon=True)
        self.path = path
        self.over = False
        """The last writer has gone, and what came is in the queue."""
        self._messages, self._clock, self._stopping = messages, clock, stopping
        self._caught_up = False
        self._bytes = 0

    def run(self) -> None:
        """Until the end, or until `stopping` is set."""
        try:
            # a FIFO opens without a writer, and its first one is waited for
            descriptor = 0 if self.path == STDIN else os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            status = os.fstat(descriptor)
            name, at = source_id(self.path), self._clock.wall()
            self._put(Opened(name, self.path, None, 0, at, False, owner=status.st_uid, mount=self.path))
            self._read(descriptor)
        except OSError as error:
            reason = error.strerror or str(error)
            self._put(Unreadable(source_id(self.path), error.errno, reason, self._clock.wall()))
        self._settle()
        self.over = not self._stopping.is_set()

    def _read(self, descriptor: int) -> None:
        name, coming = source_id(self.path), select.poll()  # `select` knows the first 1,024 descriptors alone
        coming.register(descriptor, select.POLLIN)
        while not self._stopping.is_set():
            if not coming.poll(1000 * _WAIT):
                self._settle()
                continue
            data = os.read(descriptor, _READ_BYTES)
            if not data and (self._bytes or descriptor == 0):
                return
            if not data:
                self._settle()
                self._stopping.wait(_WAIT)
                continue
            at = self._clock.wall()
            self._put(Data(name, self._bytes, data, at, at, 0))
            self._bytes += len(data)

    def _settle(self) -> None:
        """The pipe is empty."""
        if not self._caught_up:
            self._caught_up = True
            at = self._clock.wall()
            self._put(CaughtUp(source_id(self.path), at))
            self._put(Scanned(self.path, at))

    def _put(self, message: Message) -> None:
        while not self._stopping.is_set() and not self._messages.put_all([message], _WAIT):
            pass
