"""The queue between the reader threads and the loop. The loop sleeps its pause out unless somebody wakes it.

A thread that puts wakes the loop only where it waits for a message: while it paces itself what comes is left to lie,
so that lines from many runs cost one turn and one waking. What a pass has read is put at once and taken at once: to
lock a queue and to notify who waits costs as much as a look at a file.
"""

import math
import queue
import threading
from collections.abc import Iterable, Sequence

from megatron_monitor.follow.messages import SMALL_BYTES, Data, Message

_SMALL = 1 / 16  # of a place: all places filled with small messages are less than a sixteenth of the memory
_TAKEN = 32  # messages taken at once: 2 MiB of text at most


class Inbox(queue.Queue[Message]):
    """Bounded: a reader that is ahead of the loop waits. `maxsize` are places, a small message takes part of one."""

    def __init__(self, maxsize: int) -> None:
        super().__init__(maxsize)
        self._wakeup = threading.Condition(self.mutex)
        self._called = False
        self._filled = 0.0
        self._outside: dict[int, float] = {}
        """Thread that waits for room -> when the first message that it holds was read."""

    def wake(self) -> None:
        """Somebody wants the loop to turn now. From any thread, never from a signal handler."""
        with self.mutex:
            self._called = True
            self._wakeup.notify()
            self.not_empty.notify()

    def wait(self, pause: float, idle: float) -> None:
        """Return when somebody has called `wake` or the queue is half full; else `pause` seconds after the call, or
        after the first message if there was none; or when none has come for `pause` and `idle` seconds together.
        """
        pause = max(0.0, pause)
        with self.mutex:
            if self._called or self._filled or self.not_empty.wait(pause + idle):  # a pause wakes nobody in vain
                self._wakeup.wait_for(lambda: self._called or self.pressing, pause)
            self._called = False

    def put_all(self, messages: Sequence[Message], timeout: float) -> int:
        """Put as many as there is room for, the first ones; where there is none wait for `timeout` seconds. Their
        number.
        """
        with self.mutex:
            if self._filled >= self.maxsize:
                self._outside[threading.get_ident()] = _read_at(messages)
                self.not_full.wait(timeout)
                del self._outside[threading.get_ident()]
            count = 0
            for message in messages:
                if self._filled >= self.maxsize:
                    break
                self._put(message)
                count += 1
            if count:
                self.not_empty.notify()
            return count

    def get_some(self) -> list[Message]:
        """What is there, up to the first message that is not small; nothing of nothing."""
        taken: list[Message] = []
        with self.mutex:
            while self.queue and len(taken) < _TAKEN:
                message = self._get()
                taken.append(message)
                if isinstance(message, Data) and len(message.data) > SMALL_BYTES:
                    break
            if taken:
                self.not_full.notify_all()
        return taken

    def oldest(self) -> float:
        """When the first of all that is still to be taken was read, as a Unix second; inf if there is nothing."""
        with self.mutex:
            return min((_read_at(self.queue), *self._outside.values()))

    @property
    def pressing(self) -> bool:
        """Is it half full?"""
        return 2 * self._filled >= self.maxsize

    def _qsize(self) -> float:  # type: ignore[override]
        return self._filled

    def _put(self, item: Message) -> None:
        super()._put(item)
        self._filled += _places(item)
        if self._called or self.pressing:
            self._wakeup.notify()

    def _get(self) -> Message:
        message = super()._get()
        self._filled -= _places(message)
        return message


def _read_at(messages: Iterable[Message]) -> float:
    return min((getattr(message, "at", math.inf) for message in messages), default=math.inf)


def _places(message: Message) -> float:
    return _SMALL if not isinstance(message, Data) or len(message.data) <= SMALL_BYTES else 1.0
