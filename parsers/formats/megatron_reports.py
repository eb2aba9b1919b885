"""Megatron's reports (memory, timers, stragglers), and DeepSpeed's timers, which have their form.

MB are MiB, the power labelled W is milliwatts.
Timers come in four forms (`--timing-log-option`): one rank's in a line, and blocks of several lines with each timer's
least and most over the ranks, its most alone, or each rank's.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

from msgspec import field

from megatron_monitor.parsers.engine.fields import finite, mebibytes, milliseconds, milliseconds_range
from megatron_monitor.parsers.engine.scan import Gatherer, Line, Rule
from megatron_monitor.parsers.engine.spans import Spanned
from megatron_monitor.parsers.events import (
    Event,
    MemoryReported,
    StragglerReported,
    TimersReported,
)
from megatron_monitor.parsers.patterns import lazy

# `[Rank 7] (after 20 iterations) memory (MB) | allocated: 21633.08 | max allocated: 24432.0 | reserved: ... | max ...`
# `after 1 iterations memory (MB) | allocated: ...` of v1.1.5; several may be glued in one line without a newline.
_MEMORY = lazy(
    r"(?:\[Rank (\d{1,7})\][ ]{0,2})?\(?((?:after|before)[^|()\[\]]{0,80}?)\)?[ ]{1,4}memory \(MB\)(?=[ ]{0,4}\||\s*$)"
)
_ITERATION = lazy(r"(\d{1,12})")
_MEMORY_FIELD = lazy(
    r"\|[ ]{0,4}(max allocated|allocated|max reserved|reserved|total device memory used):"
    r"[ ]{0,4}(\d{1,12}(?:\.\d{1,20})?)"
)
_MEMORY_NAMES = {
    "allocated": "allocated_bytes",
    "max allocated": "max_allocated_bytes",
    "reserved": "reserved_bytes",
    "max reserved": "max_reserved_bytes",
    "total device memory used": "device_used_bytes",
}
# `time (ms) | forward-compute: 306.62 | backward-compute: 527.58`
_TIMER = lazy(r"\|[ ]{0,4}([A-Za-z][\w/ .-]{0,80}?):[ ]{0,4}(\d{1,12}(?:\.\d{1,12})?)")
# `time (ms) | fwd_microstep: 101.92 | bwd_microstep: 107.56` of DeepSpeed's engine
_ENGINE_TIMER = lazy(r"\|[ ]{0,4}(\w{1,80}):[ ]{0,4}([-+]?(?:\d{1,15}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,4})?|nan|inf))")
# `    forward-backward ...............................: (4714.98, 4715.22)`
_SPREAD = lazy(r"^[ ]{2,8}([A-Za-z][\w/.-]{0,80})[ ]\.{2,80}:[ ]\(([\d.]{1,20}, [\d.]{1,20})\)\s*$")
# `    forward-backward ...............................: 4715.22` under `max time across ranks (ms):`
_MOST = lazy(r"^[ ]{2,8}([A-Za-z][\w/.-]{0,80})[ ]\.{2,80}:[ ]([\d.]{1,20})\s*$")
# `  forward-compute:` and `     rank  3: 306.62` under `times across ranks (ms):`
_NAMED = lazy(r"^[ ]{2}([A-Za-z][\w/ .-]{0,80}):\s*$")
_OF_RANK = lazy(r"^[ ]{5}rank[ ]{1,6}(\d{1,7}): (\d{1,12}\.\d{1,12})\s*$")
_MOST_RANKS = 100_000  # of one timer: the longest report that is believed
# `| MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 | MnPwr/Rnk: 601796W/8 | MnEtpt/Rnk: 296.02TF/0`
_STRAGGLER = lazy(r"\b(M[nx]\w{1,10})/Rnk: ([\d.]{1,20})(ms|W|TF|C|MHz|%)?/(\d{1,7})")


def read_memory(line: Line) -> Iterator[Spanned]:
    """Every memory report in the line: ranks print at once, and their newlines come later."""
    matches = list(_MEMORY.finditer(line.text))
    for index, match in enumerate(matches):
        end = matches[index + 1].start() if index + 1 < len(matches) else len(line.text)
        found = list(_MEMORY_FIELD.finditer(line.text, match.end(), end))
        iteration = _ITERATION.search(line.text, *match.span(2))
        values: dict[str, Any] = {_MEMORY_NAMES[field[1]]: line.span(field.span(2), mebibytes) for field in found}
        values["iteration"] = line.span(iteration.span(1), int) if iteration else None
        values["occasion"] = line.span((match.start(2), match.start(2) + len(match[2].rstrip())), str)
        rank = {"rank": line.span(match.span(1), int)} if match[1] else {}
        if found:
            yield Spanned(MemoryReported, values | line.origin_spans | rank)


def timers_of(speaker: Literal["megatron", "deepspeed"], form: re.Pattern[str], line: Line) -> Iterator[Spanned]:
    """A `time (ms)` line: DeepSpeed's is behind its logger, or `rank=0 time (ms) | ...`, Megatron's is neither."""
    text = line.text
    at = text.find("time (ms) |")
    by_engine = line.prefix.location is not None or "rank=" in text[:at]
    if at < 0 or by_engine != (speaker == "deepspeed"):
        return
    found = {match[1].strip(): match for match in form.finditer(text, at + len("time (ms) "))}
    spans = {name: line.span(match.span(2), milliseconds_range) for name, match in found.items()}
    timers = {name: span for name, span in spans.items() if span.value is not None}
    if timers:
        yield Spanned(TimersReported, {"speaker": speaker, "timers": timers} | line.origin_spans)


def read_spread(line: Line) -> Iterator[Spanned]:
    """One line under `(min, max) time across ranks (ms):` or `max time across ranks (ms):`."""
    match = _SPREAD.match(line.text)
    most = None if match else _MOST.match(line.text)
    found = match or most
    took = line.span(found.span(2), milliseconds_range) if found else None
    if found and took and took.value is not None:
        values = {"speaker": "megatron", "timers": {found[1]: took}, "across": "maximum" if most else "range"}
        yield Spanned(TimersReported, values | line.origin_spans)


class RankTimesGatherer(Gatherer):
    """`times across ranks (ms):` and what follows: the names of timers, and below each the time of each rank."""

    name: str = ""
    ranks: list[tuple[int, float]] = field(default_factory=list)

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """An event a timer; the first line that is neither a name nor a rank's ends it."""
        match = _OF_RANK.match(line.text)
        if match and self.name:
            took = milliseconds(match[2])
            if took is not None and len(self.ranks) < _MOST_RANKS:
                self.ranks.append((int(match[1]), took))
            return [], True, False
        named = _NAMED.match(line.text)
        found = self.close()
        self.name, self.ranks = (named[1] if named else ""), []
        return found, named is not None, named is None

    def close(self) -> list[Event]:
        """The timer whose ranks were read last."""
        if not self.name or not self.ranks:
            return []
        times = [took for _, took in self.ranks]
        took = {self.name: (min(times), max(times))}
        return [TimersReported(speaker="megatron", timers=took, across="range", ranks=dict(self.ranks))]


def read_all_ranks(line: Line) -> Iterator[Event | Gatherer]:
    """The heading of a report of each rank's times."""
    if line.text.strip() == "times across ranks (ms):":
        yield RankTimesGatherer()


def read_straggler(line: Line) -> Iterator[Event]:
    """StragglerDetector's report: milliseconds become seconds, milliwatts watts."""
    scale = {"ms": 1e-3, "W": 1e-3}
    values = {
        name: (round(float(value) * scale.get(unit, 1.0), 9), int(rank))
        for name, value, unit, rank in _STRAGGLER.findall(line.text)
        if finite(value) is not None and value.count(".") <= 1
    }
    if values:
        yield StragglerReported(values=values, **line.origin)


RULES: tuple[Rule, ...] = (
    Rule("megatron.memory", (b"memory (MB)",), read_memory, by_shape=True),
    Rule("deepspeed.timers", (b"time (ms) |",), partial(timers_of, "deepspeed", _ENGINE_TIMER), by_shape=True),
    Rule("megatron.timers", (b"time (ms) |",), partial(timers_of, "megatron", _TIMER), by_shape=True),
    Rule("megatron.timer_spread", (b".: (", b"...: 0"), read_spread, by_shape=True),
    Rule("megatron.rank_times", (b"times across ranks (ms):",), read_all_ranks, opens=RankTimesGatherer),
    Rule("megatron.straggler", (b"/Rnk: ",), read_straggler),
)
