"""The Snapshot that other threads ask for: made by the loop when somebody asks, and only then.

The way of a scrape: an HTTP thread puts its question here and wakes the loop; the loop ends its pause, folds what lies
in its queue, makes one Snapshot for all who wait, and each HTTP thread renders it. Snapshots are not made after each
batch: to make 50 runs' samples ten times a second costs more than to judge them. A scrape does not wait for the reader
threads either: what was written in the last two seconds at most may not be in it.

A loop that is busy (a backlog, a machine that swaps) is waited for a moment only: then the last Snapshot must do, which
is as old as the question before. A scrape asks for figures: pages and charts are not made for it, and those of the
Snapshot that it gets may be old.
"""

import threading
from collections.abc import Callable

from monitor.snapshot import Snapshot

_WAIT = 2.0  # seconds: the batch, and 2,000 runs' samples on a loaded machine; a scrape has 10 s as a rule


class Latest:
    """Called by any thread for a Snapshot; `wanted`, `pages_wanted`, `last` and `show` are the loop's."""

    def __init__(self, first: Snapshot, wake: Callable[[], None], wait: float = _WAIT) -> None:
        """`wake` makes the loop turn now; a question waits for `wait` seconds."""
        self.last = first
        """The one that was shown last."""
        self._wake = wake
        self._wait = wait
        self._shown = threading.Condition()
        self._waiting: dict[int, bool] = {}  # number of a question -> whether it is for a page
        self._number = 0

    def __call__(self) -> Snapshot:
        """One with pages made after this question, or the last one if the loop does not turn in time."""
        return self._ask(True)

    def figures(self) -> Snapshot:
        """The same, of which only samples and counts are asked for."""
        return self._ask(False)

    def _ask(self, page: bool) -> Snapshot:
        with self._shown:  # the question stands when the wait is over: the next Snapshot is made for it
            self._number = mine = self._number + 1
            self._waiting[mine] = page
        self._wake()
        with self._shown:
            self._shown.wait_for(lambda: mine not in self._waiting, self._wait)
            return self.last

    @property
    def wanted(self) -> bool:
        """Does anybody wait?"""
        return bool(self._waiting)

    @property
    def pages_wanted(self) -> bool:
        """Does anybody wait for pages?"""
        with self._shown:
            return any(self._waiting.values())

    def show(self, snapshot: Snapshot, *, pages: bool = True) -> None:
        """Answer all who wait; without `pages` only those who did not ask for one. To be made and shown at once."""
        with self._shown:
            self.last = snapshot
            for number in [number for number, page in self._waiting.items() if pages or not page]:
                del self._waiting[number]
            self._shown.notify_all()
