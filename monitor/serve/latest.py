"""The Snapshot that other threads read: made by the loop when somebody asks, and only then.

Who asks waits for the loop's next turn, so that a page shows all that was folded before the question. A loop that is
busy (a backlog, a machine that swaps) is waited for a moment only: then the last page must do.

A scrape asks for figures: pages and charts are not made for it, and those of the Snapshot that it gets may be old.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from monitor.metrics import Snapshot

_PATIENCE = 0.25  # seconds: a batch of a backlog takes 0.2; a scrape has 10 s as a rule
_PAGE_PATIENCE = 4  # times as long for a page: the last one may be of yesterday, where nobody has looked since


class Latest:
    """Called by any thread for a Snapshot; `wanted` and `show` are the loop's."""

    def __init__(self, first: Snapshot, knock: Callable[[], None], patience: float = _PATIENCE) -> None:
        """`knock` makes the loop turn now."""
        self._snapshot = first
        self._knock = knock
        self._patience = patience
        self._changed = threading.Condition()
        self._asked = self._answered = 0
        self._pages_asked = self._pages_answered = 0  # the number of the last question for a page, of questions

    def __call__(self) -> Snapshot:
        """One made after this question, or the last one if the loop does not turn in time."""
        with self._changed:
            self._asked = self._pages_asked = mine = self._asked + 1
        self._knock()
        with self._changed:
            self._changed.wait_for(lambda: self._pages_answered >= mine, _PAGE_PATIENCE * self._patience)
            return self._snapshot

    def figures(self) -> Snapshot:
        """The same, of which only samples and counts are asked for."""
        with self._changed:
            self._asked = mine = self._asked + 1
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
        return self._asked if self._asked > self._answered or self.pages_wanted else 0

    @property
    def pages_wanted(self) -> bool:
        """Does one of them wait for pages?"""
        return self._pages_asked > self._pages_answered

    def show(self, snapshot: Snapshot, asked: int, *, pages: bool = True) -> None:
        """A new one, made after so many had asked; `pages`: with the pages as they are now."""
        with self._changed:
            self._snapshot, self._answered = snapshot, max(self._answered, asked)
            if pages:
                self._pages_answered = max(self._pages_answered, asked)
            self._changed.notify_all()
