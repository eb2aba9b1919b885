"""The queue between the reader threads and the loop, which sleeps to the end of its pause unless a thread wakes it.

A put wakes the loop only while the loop waits for a first message. During a pause messages collect, so that lines of
many runs cost one turn and one wake-up. All messages of a pass are put and taken together: to lock the queue and notify
a thread costs as much as a look at a file.
"""

import math
import queue
import threading
from collections.abc import Sequence

from megatron_monitor.follow.messages import SMALL_BYTES, Data, Message

_SMALL_MESSAGE_PLACES = 1 / 16  # a queue full of small messages takes at most the memory of one full of large ones
_MAX_TAKEN = 32  # messages taken at once: 2 MiB of text at most
_LOOK_SECONDS = 0.25  # between two looks at the stop flag while the queue is full


class Inbox(queue.Queue[Message]):
    """A bounded queue: a reader ahead of the loop waits. `maxsize` counts places; a small message takes 1/16. What
    each reader has put before it waits is above the bound: a large message, or some small ones.
    """

    def __init__(self, maxsize: int) -> None:
        super().__init__(maxsize)
        self._wakeup = threading.Condition(self.mutex)
        self._called = False
        self._filled = 0.0

    def wake(self) -> None:
        """Make the loop turn now. Any thread may call, but not a signal handler."""
        with self.mutex:
            self._called = True
            self._wakeup.notify()
            self.not_empty.notify()

    def wait(self, pause: float, idle: float) -> None:
        """Wait for a first message, at most `pause + idle` seconds, then `pause` seconds for more.

        Returns early after `wake`, or when the queue is half full.
        """
        pause = max(0.0, pause)
        with self.mutex:
            if self._called or self._filled or self.not_empty.wait(pause + idle):
                self._wakeup.wait_for(lambda: self._called or self._is_half_full(), pause)
            self._called = False

    def put_all(self, messages: Sequence[Message], stopping: threading.Event) -> bool:
        """Put the messages, then wait for room for more. Return False if `stopping` is set."""
        with self.mutex:
            for message in messages:
                self._put(message)
            if messages:
                self.not_empty.notify()
            while self._filled >= self.maxsize and not stopping.is_set():
                self.not_full.wait(_LOOK_SECONDS)
        return not stopping.is_set()

    def get_some(self) -> list[Message]:
        """Return the messages up to the first large one; an empty list if there is none."""
        taken: list[Message] = []
        with self.mutex:
            while self.queue and len(taken) < _MAX_TAKEN:
                message = self._get()
                taken.append(message)
                if isinstance(message, Data) and len(message.data) > SMALL_BYTES:
                    break
            if taken:
                self.not_full.notify_all()
        return taken

    def oldest(self) -> float:
        """Return the Unix second at which the oldest message was read; inf if there is none."""
        with self.mutex:
            return min((getattr(message, "at", math.inf) for message in self.queue), default=math.inf)

    def _is_half_full(self) -> bool:
        return 2 * self._filled >= self.maxsize

    def _qsize(self) -> float:  # type: ignore[override]
        return self._filled

    def _put(self, item: Message) -> None:
        super()._put(item)
        self._filled += _places(item)
        if self._called or self._is_half_full():
            self._wakeup.notify()

    def _get(self) -> Message:
        message = super()._get()
        self._filled -= _places(message)
        return message


def _places(message: Message) -> float:
    return _SMALL_MESSAGE_PLACES if not isinstance(message, Data) or len(message.data) <= SMALL_BYTES else 1.0
