"""The receiver's part of the daemon: it follows the spool, judges by the agents' states, and reports what is read."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from megatron_monitor.config import Config, spool_directory
from megatron_monitor.core.extension import Extension
from megatron_monitor.extensions import Service
from megatron_monitor.pushed import AgentReport, AgentStates
from megatron_monitor.receiver.labels import followed
from megatron_monitor.receiver.spool import READ_OFFSETS
from megatron_monitor.store import read_foreign, replace_file
from megatron_monitor.system.clock import Clock

if TYPE_CHECKING:
    from megatron_monitor.core import Core
    from megatron_monitor.daemon import Daemon
    from megatron_monitor.snapshot import MonitorCounts

_REPORT_STALE = 5.0  # seconds; the report is written each second
_MAX_REPORT = 16 << 20  # bytes: 20,000 agents take up to 8 MiB
_READ_ALL = 2**62  # an offset beyond the end of every file


class AgentReportFile:
    """Reads the agents' states from the receiver's file. The age of the file is measured by the time since it last
    changed, because the clocks of the two processes may differ.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path, self._clock = path, clock
        self._report = AgentReport()
        self._version = (0, 0)
        self._changed_at = clock.monotonic()

    def states(self) -> AgentStates:
        """Return the states now."""
        clock = self._clock
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            status = self._path.stat()
            if self._version != (version := (status.st_ino, status.st_mtime_ns)):
                is_first, self._version = not self._version[0], version
                self._report = msgspec.json.decode(read_foreign(self._path, _MAX_REPORT), type=AgentReport)
                if not is_first or abs(clock.wall() - self._report.written_at) < _REPORT_STALE:
                    self._changed_at = clock.monotonic()
        age, wall = clock.monotonic() - self._changed_at, clock.wall()
        states = self._report.states(wall, age)
        return states._replace(observed_until=wall - age) if age > _REPORT_STALE else states


class PushedStreams(Service):
    """Follows the receiver's directory beside the files that the configuration names."""

    def __init__(self, daemon: Daemon, directory: str) -> None:
        self._daemon, self._directory = daemon, directory
        self._report = AgentReportFile(Path(directory) / "agents.json", daemon.clock)

    def follow(self, config: Config) -> Config:
        """Return the configuration with the directory added."""
        return followed(config, self._directory)

    def start(self) -> None:
        """Make the directory, and judge silence by the agents' states from now on."""
        with contextlib.suppress(OSError):
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
        self._daemon.live.agents = self._report.states

    def count(self, counts: MonitorCounts) -> None:
        """Count the agents by state; `receiver_up` is 1 while the receiver writes its report."""
        states = self._report.states()
        for state, count in states.states.items():
            counts.set("agents", count, state)
        counts.set("receiver_up", float(states.observed_until is None))


class ReadOffsets(Extension):
    """Writes to the receiver's directory how far each stream is read and saved: only these bytes may be removed."""

    def __init__(self, core: Core, *_: object) -> None:
        self._core = core
        self._read: dict[str, tuple[int, int]] = {}
        self._written: dict[str, tuple[int, int]] = {}

    def offered(self) -> None:
        """Note the offsets that the offered state includes."""
        directory = self._core.config.pushed
        if not directory or directory != spool_directory(self._core.config):
            return
        self._read = {
            os.path.relpath(source.path, directory): (
                source.content.inode,
                _READ_ALL if source.failed else source.read_until,
            )
            for source in self._core.sources.values()
            if source.ordered is not None and not source.waiting
        }

    def saved(self) -> None:
        """Write them."""
        if self._read != self._written:
            file = Path(self._core.config.pushed) / READ_OFFSETS
            try:
                replace_file(file, [msgspec.json.encode(self._read)], 0o644, durably=False)
                self._written = self._read
            except OSError:
                self._core.changed = True  # again after the next save


for_core = ReadOffsets


def for_daemon(daemon: Daemon) -> PushedStreams | None:
    """Return the service of the daemon; None unless the configuration has a receiver."""
    directory = spool_directory(daemon.config)
    return PushedStreams(daemon, directory) if directory is not None else None
