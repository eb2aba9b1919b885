"""Reads files once to the end with the daemon's core, for `run --once` and reports."""

import os
import sys
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from megatron_monitor.config import Config
from megatron_monitor.core import Core
from megatron_monitor.core.sources import TOGETHER, unmatched, watches
from megatron_monitor.follow.discovery import DiscoveredPath, find
from megatron_monitor.follow.finite import read_once
from megatron_monitor.follow.messages import Unreadable
from megatron_monitor.follow.mounts import read_mounts
from megatron_monitor.follow.os_layer import OsLayer
from megatron_monitor.identity.naming import named
from megatron_monitor.parsers.redaction import masked_path
from megatron_monitor.prometheus_text import TextFormat
from megatron_monitor.reading import Rules, evaluated_reader, own_rules
from megatron_monitor.snapshot import FIGURES, Snapshot
from megatron_monitor.source_clock import first_stamp_and_step
from megatron_monitor.system.clock import SteadyClock, SystemClock

# The monitor's own metrics of a single reading: only counts that are equal in the next reading.
_COUNTED = (
    "build_info", "runs", "sources", "lines_total", "events_total", "bytes_total", "malformed_lines_total",
    "io_errors_total",
)  # fmt: skip
_HEAD = 1 << 16  # bytes in which a file's first stamp and step are searched
_TIMELESS = frozenset(f"megatron_monitor_{name}" for name in _COUNTED)


def files_of(config: Config) -> tuple[list[DiscoveredPath], list[str]]:
    """Return (the files of the configured paths, a problem for each path or pattern without a file)."""
    found = list(find(watches(config), read_mounts(), OsLayer()))
    missing = unmatched(config, [file.path for file in found])
    return found, [f"{masked_path(pattern)}: no file matches" for pattern in missing]


def read_all(
    config: Config, *, charts: bool = True, found: Iterable[DiscoveredPath] | None = None
) -> tuple[Core, list[str]]:
    """Return (core after reading everything, problems): unreadable files, files without training.

    `max_runs` does not apply. `found`: the files to read, if already known. Files of one run are read in the order of
    their begin.
    """
    config = msgspec.structs.replace(config, max_runs=sys.maxsize)
    clock = SystemClock()
    steady = SteadyClock(clock)
    core = Core(config, charts=charts)
    problems: list[str] = []
    found = files_of(config)[0] if found is None else found
    for message in read_once(_in_order(found, config), clock):
        if isinstance(message, Unreadable):
            problems.append(f"{message.source}: {message.message}")
            core.unreadable[message.source] = message.message  # known: it is not logged as well
        core.handle(message, steady.now())
    core.flush(steady.now())
    core.tick(steady.now())
    for source in core.sources.values():
        run = source.log.runs.get("")
        if run is None or not run.state.proven:
            problems.append(f"{source.name}: no training line in {source.reader.lines} lines")
    return core, problems


def _in_order(found: Iterable[DiscoveredPath], config: Config) -> list[DiscoveredPath]:
    """Return the files, those of one run in the order of their first stamps or else first steps."""
    runs, own = defaultdict[str, list[DiscoveredPath]](list), own_rules(config)
    for one in found:
        runs[named(one.path, config.runs).name].append(one)
    for files in runs.values():
        known = {one: _begins(one.path, own) for one in files} if len(files) > 1 else {}
        for place, least in ((0, TOGETHER), (1, 0.0)):  # stamps are preferred to steps
            values = {one: value for one, beginning in known.items() if (value := beginning[place]) is not None}
            if values and len(values) == len(files):
                if max(values.values()) - min(values.values()) > least:  # otherwise they were written at the same time
                    files.sort(key=values.__getitem__)
                break
    return [one for files in runs.values() for one in files]


def _begins(path: str, own: Rules) -> tuple[float | None, int | None]:
    """Return (first stamp near the begin of a file, first step)."""
    if not os.path.isfile(path):
        return None, None
    try:
        with open(path, "rb") as stream:
            return first_stamp_and_step(evaluated_reader(own).feed(stream.read(_HEAD)))
    except OSError:  # reported when the file is read
        return None, None


def metrics_page(config: Config) -> tuple[str, list[str], bool]:
    """Return (the page of `run --once`, problems, whether a file is missing or unreadable)."""
    found, missing = files_of(config)
    core, problems = read_all(config, charts=False, found=found)
    snapshot = core.snapshot(SystemClock().wall(), FIGURES)
    monitor = {name: samples for name, samples in snapshot.monitor.items() if name in _TIMELESS}
    page = TextFormat().page(Snapshot(at=snapshot.at, runs=snapshot.runs, monitor=monitor))
    return page, missing + problems, bool(missing or core.unreadable)
