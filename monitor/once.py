"""One reading to the end: the daemon's core over files that are read once, and the page that comes of it."""

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import TypeAlias

import msgspec

from megatron_monitor.config import Config
from megatron_monitor.core import Core
from megatron_monitor.core.sources import watches
from megatron_monitor.follow.discovery import Found
from megatron_monitor.follow.messages import Unreadable
from megatron_monitor.follow.readers import read_once
from megatron_monitor.incidents import Transition
from megatron_monitor.judgement import Judge, Judged
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.parsers.redaction import masked_path
from megatron_monitor.prometheus_text import TextFormat
from megatron_monitor.snapshot import Snapshot
from megatron_monitor.system.clock import Clock, SteadyClock, SystemClock

# Of the daemon itself a single reading has only what it counted: nothing that changes from one reading to the next.
_COUNTED = (
    "build_info", "runs", "sources", "lines_total", "events_total", "bytes_total", "malformed_lines_total",
    "io_errors_total",
)  # fmt: skip
_TIMELESS = frozenset(f"megatron_monitor_{name}" for name in _COUNTED)


Onlooker: TypeAlias = Callable[[str, Sequence[LogEvent], str], None]
"""It is shown (run, events of a delivery, stream): reports need more of them than a run's state keeps."""


class Watched(Judge):
    """A judge that shows what it has folded to an onlooker."""

    def __init__(self, config: Config, onlooker: Onlooker) -> None:
        super().__init__(config)
        self._onlooker = onlooker

    def take(self, run: Judged, entries: Sequence[LogEvent], source: str, at: float, live: bool) -> list[Transition]:
        """Fold, judge, then show."""
        transitions = super().take(run, entries, source, at, live)
        self._onlooker(run.state.name, entries, source)
        return transitions


def read_all(
    config: Config, clock: Clock | None = None, onlooker: Onlooker | None = None,
    *, charts: bool = True, found: Iterable[Found] | None = None,
) -> tuple[Core, list[str]]:  # fmt: skip
    """(the core after everything was read, what a person should know): files that no one can read or that hold no
    training line, patterns that match nothing. However many runs there are: `max_runs` is for those that go on. Where
    files were `found` before, these are read.
    """
    config = msgspec.structs.replace(config, max_runs=sys.maxsize)
    clock = clock or SystemClock()
    steady = SteadyClock(clock)
    core = Core(config, Watched(config, onlooker) if onlooker else None, charts=charts)
    problems: list[str] = []
    with closing(read_once(watches(config), clock=clock, found=found)) as messages:
        for message in messages:
            if isinstance(message, Unreadable):
                problems.append(f"{message.source}: {message.message}")
            core.handle(message, steady.now())
    core.flush(steady.now())
    core.tick(steady.now())
    if not core.sources and not problems:
        problems.append("no file matches " + ", ".join(masked_path(watch.pattern) for watch in watches(config)))
    for source in core.sources.values():
        run = core.runs.get(source.run)
        if run is None or not run.state.proven:
            problems.append(f"{source.name}: no training line in {source.reader.lines} lines")
    return core, problems


def metrics_page(config: Config) -> tuple[str, list[str], bool]:
    """What `run --once` prints, what it reports beside it, and whether a file was missing or could not be read."""
    core, problems = read_all(config, charts=False)
    snapshot = core.snapshot(SystemClock().wall())
    monitor = {name: samples for name, samples in snapshot.monitor.items() if name in _TIMELESS}
    page = TextFormat().page(Snapshot(at=snapshot.at, runs=snapshot.runs, monitor=monitor))
    return page, problems, not core.sources or bool(core.unreadable)
