"""One reading to the end: the daemon's core over files that are read once, and the page that comes of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from monitor.clock import Clock, SystemClock
from monitor.config import Config
from monitor.core import Core
from monitor.follow.crew import read_once
from monitor.follow.messages import Unreadable
from monitor.follow.patterns import Watch
from monitor.incidents import Transition
from monitor.judgement import Judge, Judged
from monitor.metrics import Snapshot
from monitor.rules import custom_rules
from monitor.run.state import RunState
from monitor.serve.text import TextFormat
from parsers.events import LogEvent

# Of the daemon itself a single reading has only what it counted: nothing that changes from one reading to the next.
_TIMELESS = frozenset(
    {
        "megatron_monitor_build_info",
        "megatron_monitor_runs",
        "megatron_monitor_sources",
        "megatron_monitor_lines_total",
        "megatron_monitor_events_total",
        "megatron_monitor_bytes_total",
        "megatron_monitor_malformed_lines_total",
        "megatron_monitor_io_errors_total",
    }
)


"""Lines that say something, still to come: to fold them takes 0.1 s and more, to begin a second process 0.03."""


class Watched(Judge):
    """A judge that shows each run to an onlooker after every event: reports and backfills are made of what it sees."""

    def __init__(self, config: Config, onlooker: Callable[[RunState, LogEvent, float], None]) -> None:
        super().__init__(config)
        self._onlooker = onlooker

    def take(self, run: Judged, entry: LogEvent, source: str, at: float, live: bool) -> list[Transition]:
        """Fold, judge, then show."""
        told = super().take(run, entry, source, at, live)
        self._onlooker(run.state, entry, at)
        return told


def read_all(
    config: Config,
    clock: Clock | None = None,
    onlooker: Callable[[RunState, LogEvent, float], None] | None = None,
    *,
    past: bool = True,
) -> tuple[Core, list[str]]:
    """(the core after everything was read, what a person should know): files that no one can read or that hold no
    training line, patterns that match nothing.
    """
    clock = clock or SystemClock()
    core = Core(config, custom_rules(config), Watched(config, onlooker) if onlooker else None, past=past)
    watches = [Watch(pattern, tuple(watch.exclude)) for watch in config.runs for pattern in watch.paths]
    problems: list[str] = []
    with closing(read_once(watches, clock=clock)) as messages:
        for message in messages:
            if isinstance(message, Unreadable):
                problems.append(f"{message.source}: {message.message}")
            core.handle(message, clock.wall())
    core.flush(clock.wall())
    core.tick(clock.wall())
    if not core.sources and not problems:
        problems.append("no file matches " + ", ".join(watch.pattern for watch in watches))
    for source in core.sources.values():
        run = core.runs.get(source.run)
        if run is None or not run.state.proven:
            problems.append(f"{source.path}: no training line in {source.reader.lines} lines")
    return core, problems


def metrics_page(config: Config, clock: Clock | None = None) -> tuple[str, list[str]]:
    """What `run --once` prints, and what it says beside it."""
    clock = clock or SystemClock()
    core, problems = read_all(config, clock, past=False)
    snapshot = core.snapshot(clock.wall())
    monitor = {name: samples for name, samples in snapshot.monitor.items() if name in _TIMELESS}
    return TextFormat().page(Snapshot(at=snapshot.at, runs=snapshot.runs, monitor=monitor)), problems
