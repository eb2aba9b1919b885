"""The Snapshot that other threads ask for: made by the loop when somebody asks, and only then.

The way of a scrape: an HTTP thread puts its question here and wakes the loop; the loop ends its pause, folds what lies
in its queue, makes one Snapshot for all who wait, and each HTTP thread renders it. Snapshots are not made after each
batch: to make 50 runs' samples ten times a second costs more than to judge them. A scrape does not wait for the reader
threads either: what was written in the last two seconds at most may not be in it.

A loop that is busy (a backlog, a machine that swaps) is waited for a moment only: then the last Snapshot must do, which
is as old as the question before. What is not asked for (`Asked`: a scrape wants no pages, an overview no charts, the
page of a run nothing of the others) is not made, and may be old in the Snapshot that comes.
"""

import threading
from collections.abc import Callable
from functools import reduce
from operator import or_

from megatron_monitor.snapshot import EVERYTHING, NOTHING, Snapshot, ViewRequest

_WAIT = 2.0  # seconds: the batch, and 2,000 runs' samples on a loaded machine; a scrape has 10 s as a rule


class LatestSnapshot:
    """Called by any thread for a Snapshot; `wanted`, `asked`, `last` and `show` are the loop's."""

    def __init__(self, first: Snapshot, wake: Callable[[], None], wait: float = _WAIT) -> None:
        """`wake` makes the loop turn now; a question waits for `wait` seconds."""
        self.last = first
        """The one that was shown last."""
        self._wake = wake
        self._wait = wait
        self._shown = threading.Condition()
        self._waiting: dict[int, ViewRequest] = {}  # number of a question -> what it is for
        self._number = 0
        self._ended = False

    def __call__(self, asked: ViewRequest) -> Snapshot:
        """One made after this question with what is `asked` for, or the last one if the loop does not turn in time."""
        with self._shown:  # the question stands when the wait is over: the next Snapshot is made for it
            if self._ended:
                return self.last
            self._number = mine = self._number + 1
            self._waiting[mine] = asked
        self._wake()
        with self._shown:
            self._shown.wait_for(lambda: mine not in self._waiting, self._wait)
            return self.last

    def end(self) -> None:
        """The loop turns no more: whoever waits or asks has the last one at once."""
        with self._shown:
            self._ended = True
            self._waiting.clear()
            self._shown.notify_all()

    @property
    def wanted(self) -> bool:
        """Does anybody wait?"""
        return bool(self._waiting)

    @property
    def asked(self) -> ViewRequest:
        """What all who wait want."""
        with self._shown:
            return reduce(or_, self._waiting.values(), NOTHING)

    def show(self, snapshot: Snapshot, asked: ViewRequest = EVERYTHING) -> None:
        """Answer all who wait for no more than was `asked` for as this was made. To be made and shown at once."""
        with self._shown:
            self.last = snapshot
            for number in [number for number, wanted in self._waiting.items() if wanted | asked == asked]:
                del self._waiting[number]
            self._shown.notify_all()
