"""The queue between the reader threads and the loop. The loop sleeps its pause out unless somebody knocks.

A thread that puts wakes the loop only where it waits for a message: while it paces itself what comes is left to lie,
so that lines from many runs cost one turn and one waking.
"""

from __future__ import annotations

import queue
import threading

from monitor.follow.messages import Message


class Inbox(queue.Queue[Message]):
    """Bounded: a reader that is ahead of the loop waits."""

    def __init__(self, maxsize: int) -> None:
        super().__init__(maxsize)
        self._knock = threading.Condition(self.mutex)
        self._knocked = False

    def knock(self) -> None:
        """Somebody wants the loop to turn now. From any thread, never from a signal handler."""
        with self.mutex:
            self._knocked = True
            self._knock.notify()
            self.not_empty.notify()

    def wait(self, pause: float, patience: float) -> None:
        """Return when somebody has knocked or the queue is half full; else after `pause` seconds if a message is there
        by then, or as soon as one comes within `patience` seconds more.
        """
        with self.mutex:
            if pause > 0.0:
                self._knock.wait_for(lambda: self._knocked or self.pressing, pause)
            if not self._knocked and not self._qsize():
                self.not_empty.wait(patience)
            self._knocked = False

    @property
    def pressing(self) -> bool:
        """Is it half full?"""
        return 2 * self._qsize() >= self.maxsize

    def _put(self, item: Message) -> None:
        super()._put(item)
        if self._knocked or self.pressing:
            self._knock.notify()
