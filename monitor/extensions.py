"""Finds the installed optional parts. The observer imports none of them by name.

A package with `extension.py` is an optional part: `for_core(core, clock)` returns an Extension of a core,
`for_daemon(daemon)` a Service of the daemon. Commands import the part that they need (monitor/cli.py).
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_monitor.config import Config
from megatron_monitor.core import Core
from megatron_monitor.core.extension import Extension
from megatron_monitor.snapshot import MonitorCounts, Snapshot
from megatron_monitor.system.clock import Clock

if TYPE_CHECKING:
    from megatron_monitor.daemon import Daemon


class Service:
    """An optional part of the daemon, called by the loop's thread. A hook that is not overridden does nothing."""

    ready = True
    """True if its backlog is read."""
    waits = False
    """True if `take` waits instead of the loop."""
    notice = ""
    """Text for the top of every page, if not empty."""

    def follow(self, config: Config) -> Config:
        """Return the configuration with the paths that it adds."""
        return config

    def start(self) -> None:
        """Called before the daemon follows files. Raises StartError."""

    def take(self, wait: float) -> None:
        """Process input, waiting at most `wait` seconds."""

    def cores(self) -> list[tuple[Core, float]]:
        """Return its own cores, each with its instant."""
        return []

    def count(self, counts: MonitorCounts) -> None:
        """Add its own counters to `counts`."""

    def show(self, snapshots: list[Snapshot]) -> list[Snapshot]:
        """Return the snapshots of all cores with its additions."""
        return snapshots

    def configure(self, config: Config) -> None:
        """Use another configuration."""

    def close(self) -> None:
        """End its threads and connections."""


def _modules() -> Iterator[Any]:
    for file in sorted(Path(__file__).parent.glob("*/extension.py")):
        yield import_module(f"megatron_monitor.{file.parent.name}.extension")


def extend(core: Core, clock: Clock) -> None:
    """Add the Extension of each optional part to the core."""
    for module in _modules():
        if make := getattr(module, "for_core", None):
            extension: Extension = make(core, clock)
            core.extensions.append(extension)


def services(daemon: "Daemon") -> list[Service]:
    """Return the Service of each configured optional part."""
    found = (getattr(module, "for_daemon", lambda _: None)(daemon) for module in _modules())
    return [service for service in found if service is not None]
