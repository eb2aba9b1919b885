"""Finds the optional parts that are installed. Nothing of the observer imports one of them by name.

A package that holds `extension.py` is one: `for_core(core, runtime)` gives an Extension of a core,
`for_daemon(daemon)` a Service of the daemon. Commands name the part that they need (monitor/cli.py).
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_monitor.config import Config
from megatron_monitor.core import Core
from megatron_monitor.core.extension import Extension, Runtime
from megatron_monitor.snapshot import MonitorCounts, Snapshot

if TYPE_CHECKING:
    from megatron_monitor.daemon import Daemon


class Service:
    """One part beside the daemon's loop, for the loop's thread. A hook that a part does not override does nothing."""

    fixed: tuple[str, ...] = ()
    """Keys of the configuration that cannot change while it runs."""
    ready = True
    """Is what it has to read at the start read?"""
    waits = False
    """Does `take` wait in place of the loop?"""
    notice = ""
    """What every page begins with, if it is not empty."""

    def follow(self, config: Config) -> Config:
        """The configuration with what it adds to the files that are followed."""
        return config

    def start(self) -> None:
        """The daemon is about to follow files. Raises StartError."""

    def take(self, wait: float) -> None:
        """Take what came within `wait` seconds."""

    def cores(self) -> list[tuple[Core, float]]:
        """Cores of its own, each with its instant."""
        return []

    def count(self, counts: MonitorCounts) -> None:
        """Into `counts`: what it counts of itself."""

    def show(self, snapshots: list[Snapshot]) -> list[Snapshot]:
        """The snapshots of all cores, with what it adds."""
        return snapshots

    def configure(self, config: Config) -> None:
        """Go on by another configuration."""

    def close(self) -> None:
        """End its threads and connections."""


def _modules() -> Iterator[Any]:
    for file in sorted(Path(__file__).parent.glob("*/extension.py")):
        yield import_module(f"megatron_monitor.{file.parent.name}.extension")


def extend(core: Core, runtime: Runtime) -> None:
    """Give the core an Extension of each part that has one."""
    for module in _modules():
        if make := getattr(module, "for_core", None):
            extension: Extension = make(core, runtime)
            core.extensions.append(extension)


def services(daemon: "Daemon") -> list[Service]:
    """A Service of each part that has one and is configured."""
    found = (getattr(module, "for_daemon", lambda _: None)(daemon) for module in _modules())
    return [service for service in found if service is not None]
