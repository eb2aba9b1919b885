"""The observer's side of the receiver: the files that it follows, the agents' states, and what it has read so far."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from megatron_monitor.config import Config, spool_directory
from megatron_monitor.core.extension import Extension, Runtime
from megatron_monitor.extensions import Service
from megatron_monitor.pushed import AgentReport, AgentStates
from megatron_monitor.receiver.labels import followed
from megatron_monitor.receiver.spool import READ
from megatron_monitor.system.clock import Clock

if TYPE_CHECKING:
    from megatron_monitor.core import Core
    from megatron_monitor.daemon import Daemon
    from megatron_monitor.snapshot import MonitorCounts

_STALE = 5.0  # seconds after which the report is old: it is written each second
_EVERY = 1.0  # seconds between two statements of what is read
_ALL = 2**62  # an offset behind each content


class Report:
    """The agents' states, by the receiver's file. Its age is measured by the time since it last changed: the clocks of
    two processes need not agree.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path, self._clock = path, clock
        self._report = AgentReport()
        self._version = (0, 0)
        self._changed_at = clock.monotonic()

    def states(self) -> AgentStates:
        """Now."""
        clock = self._clock
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            status = self._path.stat()
            if self._version != (version := (status.st_ino, status.st_mtime_ns)):
                report = msgspec.json.decode(self._path.read_bytes(), type=AgentReport)
                is_first, self._report, self._version = not self._version[0], report, version
                if not is_first or abs(clock.wall() - report.written_at) < _STALE:
                    self._changed_at = clock.monotonic()
        age, wall = clock.monotonic() - self._changed_at, clock.wall()
        states = self._report.states(wall, age)
        return states._replace(observed_until=wall - age) if age > _STALE else states


class PushedStreams(Service):
    """Follows the directory of the receiver beside what the configuration names."""

    def __init__(self, daemon: Daemon, directory: str) -> None:
        self._daemon, self._directory = daemon, directory
        self._report = Report(Path(directory) / "agents.json", daemon.clock)

    def follow(self, config: Config) -> Config:
        """With the directory."""
        return followed(config, self._directory)

    def start(self) -> None:
        """Silence is judged by the states of the agents from now on."""
        with contextlib.suppress(OSError):
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
        self._daemon.live.agents = self._report.states

    def count(self, counts: MonitorCounts) -> None:
        """How many agents are active, stale or without heartbeat, and whether the receiver is alive."""
        states = self._report.states()
        for state, many in states.states.items():
            counts.set("agents", many, state)
        counts.set("receiver_up", float(states.observed_until is None))


class ReadOffsets(Extension):
    """Writes to the receiver's directory how far each of its streams is read and saved: only that may be removed."""

    def __init__(self, core: Core, runtime: Runtime) -> None:
        self._core, self._clock = core, runtime.clock
        self._read: dict[str, tuple[int, int]] = {}
        self._written: dict[str, tuple[int, int]] = {}
        self._looked_at = float("-inf")

    def look(self, now: float) -> None:  # noqa: ARG002
        """Write what was read when the state was last saved, then note what is read now."""
        clock = self._clock.monotonic()
        directory = self._core.config.pushed
        if (
            not directory
            or directory != spool_directory(self._core.config)
            or clock - self._looked_at < _EVERY
            or (self.kept and self.saved < self.stamp)
        ):
            return
        self._looked_at = clock
        if self._read != self._written and _write(Path(directory) / READ, self._read):
            self._written = self._read
        before = self._read
        self._read = {
            os.path.relpath(source.path, directory): (source.marker.inode, _ALL if source.failed else source.read_until)
            for source in self._core.sources.values()
            if source.ordered is not None and not source.waiting
        }
        if self._read != before:
            self.stamp += 1
            self._core.changed = True


def _write(path: Path, read: dict[str, tuple[int, int]]) -> bool:
    try:
        temporary = path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(read))
        os.replace(temporary, path)
    except OSError:
        return False
    return True


def for_core(core: Core, runtime: Runtime) -> ReadOffsets:
    """Of each core; it does nothing where no stream is pushed."""
    return ReadOffsets(core, runtime)


def for_daemon(daemon: Daemon) -> PushedStreams | None:
    """None unless the configuration has a receiver."""
    directory = spool_directory(daemon.config)
    return PushedStreams(daemon, directory) if directory is not None else None
