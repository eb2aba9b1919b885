"""The Snapshot that other threads read: made by the loop when somebody asks, and only then.

Who asks waits for the loop's next turn, so that a page shows all that was folded before the question. A loop that is
busy (a backlog, a machine that swaps) is waited for a moment only: then the last page must do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from monitor.metrics import Snapshot

_PATIENCE = 0.25  # seconds: a batch of a backlog takes 0.2; a scrape has 10 s as a rule


class Latest:
    """Called by any thread for a Snapshot; `wanted` and `show` are the loop's."""

    def __init__(self, first: Snapshot, knock: Callable[[], None], patience: float = _PATIENCE) -> None:
        """`knock` makes the loop turn now."""
        self._snapshot = first
        self._knock = knock
        self._patience = patience
        self._changed = threading.Condition()
        self._asked = self._answered = 0

    def __call__(self) -> Snapshot:
        """One made after this question, or the last one if the loop does not turn in time."""
        with self._changed:
            self._asked += 1
            mine = self._asked
        self._knock()
        with self._changed:
            self._changed.wait_for(lambda: self._answered >= mine, self._patience)
            return self._snapshot

    @property
    def last(self) -> Snapshot:
        """The one that was shown last, without asking."""
        return self._snapshot

    @property
    def wanted(self) -> int:
        """How many have asked so far if one of them waits, else 0: to be given to `show`."""
        return self._asked if self._asked > self._answered else 0

    def show(self, snapshot: Snapshot, asked: int) -> None:
        """A new one, made after so many had asked."""
        with self._changed:
            self._snapshot, self._answered = snapshot, max(self._answered, asked)
            self._changed.notify_all()
