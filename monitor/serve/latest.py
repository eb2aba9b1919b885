"""Hands Snapshots from the loop to HTTP threads. The loop makes one only when a thread requests it.

An HTTP thread registers its request here and wakes the loop. The loop folds its queued messages, makes one Snapshot for
all waiting requests, and each HTTP thread renders it. Making samples of 50 runs after every batch would cost more than
judging the runs. Lines of the last two seconds may be missing, because nothing waits for the reader threads.

If the loop is busy, a request waits `_WAIT` seconds and then gets the last Snapshot. Parts that no request needs (see
`ViewRequest`) are not renewed and may be old.
"""

import threading
from collections.abc import Callable
from functools import reduce
from operator import or_

from megatron_monitor.snapshot import EVERYTHING, NOTHING, Snapshot, ViewRequest

_WAIT = 2.0  # seconds: enough for the samples of 2,000 runs on a loaded machine; a scrape usually has 10 s


class LatestSnapshot:
    """The last Snapshot, and the requests for a new one. HTTP threads call the object; the loop calls the rest."""

    def __init__(self, first: Snapshot, wake: Callable[[], None], wait: float = _WAIT) -> None:
        """`wake` ends the loop's pause; a request waits at most `wait` seconds."""
        self.last = first
        self._wake = wake
        self._wait = wait
        self._shown = threading.Condition()
        self._waiting: dict[int, ViewRequest] = {}  # number of a request -> the parts it needs
        self._number = 0
        self._ended = False

    def __call__(self, asked: ViewRequest) -> Snapshot:
        """Return a new Snapshot with the parts `asked` for, or the last one if the loop is too busy."""
        with self._shown:  # the request stays after the wait: the loop still makes its Snapshot
            if self._ended:
                return self.last
            self._number = mine = self._number + 1
            self._waiting[mine] = asked
        self._wake()
        with self._shown:
            self._shown.wait_for(lambda: mine not in self._waiting, self._wait)
            return self.last

    def end(self) -> None:
        """Answer all present and future requests with the last Snapshot: the loop has ended."""
        with self._shown:
            self._ended = True
            self._waiting.clear()
            self._shown.notify_all()

    @property
    def wanted(self) -> bool:
        """True if a request is waiting."""
        return bool(self._waiting)

    @property
    def asked(self) -> ViewRequest:
        """All parts that waiting requests need."""
        with self._shown:
            return reduce(or_, self._waiting.values(), NOTHING)

    def show(self, snapshot: Snapshot, asked: ViewRequest = EVERYTHING) -> None:
        """Answer the requests that need no more than the parts `asked`, with which this Snapshot was made."""
        with self._shown:
            self.last = snapshot
            for number in [number for number, wanted in self._waiting.items() if wanted | asked == asked]:
                del self._waiting[number]
            self._shown.notify_all()
