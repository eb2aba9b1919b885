"""Standard input as a source: it is read once, in order, by its own thread.

Bytes that come before the pipe is empty for the first time are backlog; later ones are live. The pipe is over when the
last writer has closed it.
"""

import os
import select
import threading

from megatron_monitor.follow.inbox import Inbox
from megatron_monitor.follow.messages import CaughtUp, Data, Message, Opened, Scanned, source_id
from megatron_monitor.system.clock import Clock

STDIN = "/dev/stdin"
FILE_SYSTEM = "pipe"
_READ_BYTES = 1 << 16
_WAIT = 0.2  # seconds without a byte after which the pipe counts as empty


class PipeThread(threading.Thread):
    """Puts the messages of standard input. A daemon thread: it may wait for a writer for ever."""

    def __init__(self, messages: Inbox, clock: Clock, stopping: threading.Event, descriptor: int = 0) -> None:
        super().__init__(name=f"pipe {STDIN}", daemon=True)
        self.over = False  # the last writer has closed the pipe, and all messages are in the queue
        self._messages, self._clock, self._stopping = messages, clock, stopping
        self._descriptor = descriptor
        self._caught_up = False

    def run(self) -> None:
        """Read until the end, or until `stopping` is set."""
        name, owner = source_id(STDIN), os.fstat(self._descriptor).st_uid
        self._put(Opened(name, STDIN, None, 0, self._clock.wall(), False, owner=owner, mount=STDIN))
        poller, count = select.poll(), 0  # `select` only takes the first 1,024 descriptors
        poller.register(self._descriptor, select.POLLIN)
        while not self._stopping.is_set():
            if not poller.poll(1000 * _WAIT):
                self._report_empty()
                continue
            data = os.read(self._descriptor, _READ_BYTES)
            if not data:
                break
            at = self._clock.wall()
            self._put(Data(name, count, data, at, at, 0))
            count += len(data)
        self._report_empty()
        self.over = not self._stopping.is_set()

    def _report_empty(self) -> None:
        if not self._caught_up:
            self._caught_up = True
            at = self._clock.wall()
            self._put(CaughtUp(source_id(STDIN), at))
            self._put(Scanned(STDIN, at))

    def _put(self, message: Message) -> None:
        self._messages.put_all([message], self._stopping)
