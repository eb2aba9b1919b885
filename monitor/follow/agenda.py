"""Which file is due when: a pass touches only those that are due, however many are followed. No clock, no calls."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from monitor.follow.source import Source


class Agenda:
    """Sources by `due_at`. Whoever changes `due_at` puts the source in again; its older places are void."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Source]] = []
        self._puts = 0

    def put(self, source: Source) -> None:
        """Due at `source.due_at`; those due at the same time come in the order in which they were put."""
        self._puts += 1
        heapq.heappush(self._heap, (source.due_at, self._puts, source))

    def hasten(self, source: Source, now: float) -> None:
        """Due now, if it was not before."""
        if source.due_at > now:
            source.due_at = now
            self.put(source)

    def hasten_all(self, sources: Iterable[Source], now: float) -> None:
        """All of them due now, in their order."""
        self._heap.clear()
        for source in sources:
            source.due_at = now
            self.put(source)

    def take(self, now: float) -> Iterator[Source]:
        """Those that are due, the longest first. What is put in meanwhile has to wait for the next call."""
        heap, due = self._heap, []
        while heap and heap[0][0] <= now:
            at, _, source = heapq.heappop(heap)
            if source.due_at == at:
                due.append(source)
        return iter(due)

    def next_at(self) -> float:
        """When the first is due; infinite if there is none."""
        heap = self._heap
        while heap and heap[0][0] != heap[0][2].due_at:
            heapq.heappop(heap)
        return heap[0][0] if heap else float("inf")
