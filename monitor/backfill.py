"""The history of finished logs as Prometheus would have scraped it: the run on its own clock, looked at every step.

A log that prints times is dated by them: programs print none with a zone, so the caller names the zone. One that prints
none is dated from `start`, the instant of its first line, by the sum of its iterations' times.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from monitor.config import Config
from monitor.core.view import view_of
from monitor.judgement import Judge
from monitor.metrics import Histogram, Sample, samples_of
from monitor.replay import Players, Replay, SourceClock, clocked
from parsers.events import LogEvent

Samples = Mapping[str, tuple[Sample, ...] | Histogram]
Reading = Callable[[], Iterable[LogEvent]]
"""Reads one source from its beginning; it is read twice."""


class UndatedError(Exception):
    """No line of the run prints a time, and no start was given."""


@dataclass(frozen=True, slots=True)
class Moment:
    """All that one run shows at one instant, Unix seconds."""

    run: str
    at: float
    samples: Samples


def history(
    config: Config, judge: Judge, name: str, sources: Mapping[str, Reading], step: float, zone: tzinfo,
    start: float | None = None,
) -> Iterator[Moment]:  # fmt: skip
    """The run every `step` seconds from its first line to its last, and at the last, and so each of the experiments in
    its log, one after the other. Nothing of what is no training.
    """
    begins = {source: _beginning(read()) for source, read in sources.items()}
    dated = [begin for begin in begins.values() if begin is not None]
    if not dated and start is None:
        raise UndatedError(name)
    run_begin = min(dated) if dated else 0.0
    shift: Callable[[float], float] = (
        (lambda at: _in_zone(at, zone)) if dated else (lambda at: at + (start if start is not None else 0.0))
    )
    streams = []
    for source, read in sources.items():
        begin = begins[source]
        streams.append(_placed(clocked(read(), source), begin if begin is not None else run_begin))
    players = Players(judge, name, sources)
    player = players.current()
    player.dated = bool(dated)
    due: float | None = None
    shown: Samples | None = None
    for at, entry, source in heapq.merge(*streams, key=lambda item: item[0]):
        if due is None:
            due = at
        while due < at < float("inf"):
            transitions = list(player.pass_until(due))
            if transitions or shown is None:
                shown = _samples(config, player)
            if player.run.state.proven:
                yield Moment(player.run.state.name, shift(due), _shifted(shown, shift))
            due += step
        before = player
        for _ in players.play(at, entry, source):
            pass
        player, shown = players.current(), None
        if player is not before and before.run.state.proven and before.now > due - step:  # its last
            yield _moment(config, before, shift)
    for _ in players.finish(0.0):
        pass
    if due is not None and player.run.state.proven:
        yield _moment(config, player, shift)


def _moment(config: Config, player: Replay, shift: Callable[[float], float]) -> Moment:
    return Moment(player.run.state.name, shift(player.now), _shifted(_samples(config, player), shift))


def _beginning(entries: Iterable[LogEvent]) -> float | None:
    """The time of the source's first line: of its first dated line less the iterations before it. None if undated."""
    clock = SourceClock()
    for entry in entries:
        before = clock.now or 0.0
        clock.at(entry.event)
        if clock.dated and clock.now is not None:
            return clock.now - before
    return None


def _placed(items: Iterator[tuple[float, LogEvent, str]], begin: float) -> Iterator[tuple[float, LogEvent, str]]:
    """Times counted from 0, before the first dated line, made times of the day."""
    for at, entry, source in items:
        yield (at + begin if at < begin else at), entry, source


def _in_zone(at: float, zone: tzinfo) -> float:
    """A printed time, which was read as UTC, as the instant that it is in its zone."""
    return datetime.fromtimestamp(at, UTC).replace(tzinfo=zone).timestamp()


def _samples(config: Config, player: Replay) -> Samples:
    return samples_of(view_of(player.run, config))


def _shifted(samples: Samples, shift: Callable[[float], float]) -> Samples:
    """Instants that are values (`..._timestamp_seconds`) stand on the same clock as the samples."""
    out = dict(samples)
    for name, found in samples.items():
        if name.endswith("_timestamp_seconds") and not isinstance(found, Histogram):
            out[name] = tuple(Sample(sample.labels, shift(sample.value)) for sample in found)
    return out
