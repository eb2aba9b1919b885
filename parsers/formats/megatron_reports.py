"""Reads Megatron's report of the times of each rank, one block per timer. megatron.yaml reads the other reports."""

from collections.abc import Iterator

from msgspec import field

from megatron_monitor.parsers.engine.fields import milliseconds
from megatron_monitor.parsers.engine.scan import Gatherer, Line, Rule
from megatron_monitor.parsers.events import Event, TimersReported
from megatron_monitor.parsers.patterns import lazy

# `  forward-compute:` and `     rank  3: 306.62` under `times across ranks (ms):`
_NAMED = lazy(r"^[ ]{2}([A-Za-z][\w/ .-]{0,80}):\s*$")
_OF_RANK = lazy(r"^[ ]{5}rank[ ]{1,6}(\d{1,7}): (\d{1,12}\.\d{1,12})\s*$")
_MOST_RANKS = 100_000  # maximum ranks of one timer


class RankTimesGatherer(Gatherer):
    """`times across ranks (ms):` and the lines after it: timer names, and below each the time of each rank."""

    name: str = ""
    ranks: list[tuple[int, float]] = field(default_factory=list)

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """Return one event per timer. The first line that is neither a name nor a rank's time ends the report."""
        match = _OF_RANK.match(line.text)
        if match and self.name:
            duration = milliseconds(match[2])
            if duration is not None and len(self.ranks) < _MOST_RANKS:
                self.ranks.append((int(match[1]), duration))
            return [], True, False
        named = _NAMED.match(line.text)
        found = self.close()
        self.name, self.ranks = (named[1] if named else ""), []
        return found, named is not None, named is None

    def close(self) -> list[Event]:
        """Return the timer whose ranks were read last."""
        if not self.name or not self.ranks:
            return []
        times = [duration for _, duration in self.ranks]
        timers = {self.name: (min(times), max(times))}
        return [TimersReported(speaker="megatron", timers=timers, across="range", ranks=dict(self.ranks))]


def read_all_ranks(line: Line) -> Iterator[Event | Gatherer]:
    """Open a report of each rank's times."""
    if line.text.strip() == "times across ranks (ms):":
        yield RankTimesGatherer()


RULES: tuple[Rule, ...] = (
    Rule("megatron.rank_times", (b"times across ranks (ms):",), read_all_ranks, opens=RankTimesGatherer),
)
