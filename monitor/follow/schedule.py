"""When each file is looked at next: soon while something is going on, less and less often while it is silent.

A pass over a mount touches only the files that are due, however many are followed. No clock, no calls.
"""

import heapq
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from megatron_monitor.follow.settings import FollowSettings

_SILENT_SECONDS = 60.0  # a file that grew so lately is looked at in time whatever the budget of looks
_SPREAD = 0.1  # share of a pause by which the phases of files differ


class Backoff(Struct, gc=False):
    """The pauses between the looks at one file. Monotonic seconds throughout."""

    settings: FollowSettings
    phase: float = 0.0
    """0 to 1, another for each file: those that fell silent together are not looked at together for ever."""
    changed_at: float = float("-inf")
    """When the file was last seen to change; at first, as long ago as its time stamp says; before that never."""
    recheck_until: float = 0.0
    """Until a look at or after this its bytes are compared although its size and times stay the same."""
    grown: bool = False
    """It was seen to change after it had been read to its end: somebody writes it."""

    def first_seen(self, now: float, age_seconds: float) -> None:
        """The file is as silent as its time stamp says; a stamp from the future (another host's clock) says nothing."""
        if self.changed_at == float("-inf"):
            self.changed_at = now - max(0.0, age_seconds)

    def changed(self, now: float, *, recheck_seconds: float, grown: bool) -> None:
        """Size, times or content are not what they were. `grown`: it had been read to its end before."""
        self.changed_at = now
        self.recheck_until = now + recheck_seconds
        self.grown = self.grown or grown

    def pause(self, now: float, *, quiet_since: float, soon: bool, spread_seconds: float) -> float:
        """Seconds to the next look. `spread_seconds`: what all files looked at once in turn need within the budget."""
        settings = self.settings
        if soon or now < self.recheck_until:
            return settings.poll_interval
        quiet = now - quiet_since
        pause = min(max(quiet / settings.idle_divisor, settings.poll_interval), settings.idle_interval)
        return pause if self.grown and quiet <= _SILENT_SECONDS else self.among(pause, spread_seconds)

    def among(self, pause: float, spread_seconds: float) -> float:
        """A pause within the budget of looks, out of step with the other files."""
        return max(pause * (1.0 - _SPREAD * self.phase), spread_seconds * (1.0 + _SPREAD * self.phase))

    def after_failure(self, failures: int) -> float:
        """Seconds to the next try after so many failures in a row: doubling."""
        return min(self.settings.failure_interval, self.settings.poll_interval * 2.0 ** min(failures - 1, 16))


class Due(Protocol):
    """What a schedule keeps."""

    due_at: float
    """When it is to be looked at."""


D = TypeVar("D", bound=Due)


class Schedule(Generic[D]):
    """By `due_at`. Whoever changes `due_at` puts the source in again; its older places are void."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, D]] = []
        self._puts = 0

    def put(self, source: D) -> None:
        """Due at `source.due_at`; those due at the same time come in the order in which they were put."""
        self._puts += 1
        heapq.heappush(self._heap, (source.due_at, self._puts, source))

    def hasten(self, source: D, now: float) -> None:
        """Due now, if it was not before."""
        if source.due_at > now:
            source.due_at = now
            self.put(source)

    def hasten_all(self, sources: Iterable[D], now: float) -> None:
        """All of them due now, in their order."""
        self._heap.clear()
        for source in sources:
            source.due_at = now
            self.put(source)

    def take(self, now: float) -> Iterator[D]:
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
