"""The real daemon with the system calls of its follower in our hands: `CONTROL run ...`, each a fork (../forks.py).

CONTROL is a JSON file, read again whenever it changes:
`mounts`: {path: type} shown instead of /proc/self/mountinfo (at the start only);
`faults`: [{call, path, error | hang | size | plus | device | repeat | hide}]; `call` is stat, fstat, open, pread or
scandir, `path` a part of the path. `error` is an errno's name; `hang` blocks until the fault is gone.
`deaf`: events of directories never arrive; `no_inotify`: their observer cannot start. `patience`: FollowSettings by name.
`kill_at`: SIGKILL before this change of the state's directory; `state_error`: these fail while `state_error_file`
exists; `no_locks`: flock is not supported. `descriptors`: so many may be open. `clock`: seconds that the wall clock is off.
Each overflow line is counted, also one that says what another has said: so a unit that is read twice shows.
Nothing else of the daemon is touched.
"""

import errno
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from megatron_monitor import daemon, live, saving, store
from megatron_monitor.cli import main as command
from megatron_monitor.commands import run  # noqa: F401 - what is imported here is not imported by each fork
from megatron_monitor.follow import follower, waker
from megatron_monitor.follow.mounts import Mount, Mounts
from megatron_monitor.follow.os_layer import Entry, OsLayer
from megatron_monitor.follow.settings import FollowSettings
from megatron_monitor.run.steps.copies import Overflows
from megatron_monitor.system import clock
from tests.e2e.forks import forked


class Control:
    """The file, as it is now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: Any = None
        self._value: dict[str, Any] = {}

    def get(self, name: str, default: Any = None) -> Any:
        """One key."""
        status = os.stat(self._path)
        stamp = status.st_mtime_ns, status.st_ino
        if stamp != self._stamp:
            self._value = json.loads(self._path.read_text())
            self._stamp = stamp
        return self._value.get(name, default)

    def fault(self, call: str, path: str) -> dict[str, Any] | None:
        """The first that fits; one that hangs is waited for."""
        while True:
            for one in self.get("faults", ()):
                if call in one["call"] and one["path"] in path:
                    if "hang" not in one:
                        return dict(one)
                    break
            else:
                return None
            time.sleep(0.02)


class FaultyOs(OsLayer):
    """The real calls, after CONTROL had its say."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}

    def _ask(self, call: str, path: str) -> dict[str, Any]:
        fault = CONTROL.fault(call, path) or {}
        if "error" in fault:
            number = getattr(errno, fault["error"])
            raise OSError(number, os.strerror(number), path)
        return fault

    @staticmethod
    def _doctored(status: os.stat_result, fault: dict[str, Any]) -> os.stat_result:
        values = list(status)
        values[2] += fault.get("device", 0)
        values[6] = fault.get("size", values[6] + fault.get("plus", 0))
        return os.stat_result(
            values, dict(zip(("st_mtime_ns", "st_ctime_ns"), (status.st_mtime_ns, status.st_ctime_ns), strict=True))
        )

    def stat(self, path: str) -> os.stat_result:
        fault = self._ask("stat", path)
        status = super().stat(path)
        return self._doctored(status, fault) if fault else status

    def open(self, path: str) -> int:
        self._ask("open", path)
        descriptor = super().open(path)
        self.paths[descriptor] = path
        return descriptor

    def close(self, descriptor: int) -> None:
        self.paths.pop(descriptor, None)
        super().close(descriptor)

    def fstat(self, descriptor: int) -> os.stat_result:
        fault = self._ask("fstat", self.paths.get(descriptor, ""))
        status = super().fstat(descriptor)
        return self._doctored(status, fault) if fault else status

    def pread(self, descriptor: int, count: int, offset: int) -> bytes:
        self._ask("pread", self.paths.get(descriptor, ""))
        return super().pread(descriptor, count, offset)

    def scandir(self, path: str) -> Iterator[Entry]:
        fault = self._ask("scandir", path)
        for entry in super().scandir(path):
            if fault.get("hide") and fault["hide"] in entry.name:
                continue
            yield from [entry] * (2 if fault.get("repeat") else 1)


class DyingOs:
    """`os` for the store: dies before the change of that number. What reads, syncs or closes leaves the same files."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __getattr__(self, name: str) -> Any:
        value = getattr(os, name)
        if name not in ("open", "pwrite", "write", "replace"):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            self._left -= name != "open" or bool(arguments[1] & os.O_EXCL)
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return value(*arguments, **options)

        return call


class FullOs:
    """`os` for the store: what writes fails while a file says so."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(os, name)
        if name not in ("open", "pwrite", "write", "fsync", "replace"):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            lock = name == "open" and str(arguments[0]).endswith("lock")
            if os.path.exists(CONTROL.get("state_error_file")) and not lock:
                number = getattr(errno, CONTROL.get("state_error"))
                raise OSError(number, os.strerror(number))
            return value(*arguments, **options)

        return call


class SkewedClock(clock.SystemClock):
    """The wall clock is off by what CONTROL says."""

    def wall(self) -> float:
        return super().wall() + float(CONTROL.get("clock", 0.0))


def _mounts() -> Mounts:
    return Mounts([Mount("/", "overlay"), *(Mount(*one) for one in CONTROL.get("mounts", {}).items())])


def main() -> None:
    """Replace, then be the command."""
    if CONTROL.get("descriptors"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (CONTROL.get("descriptors"),) * 2)
    follower.OsLayer = FaultyOs  # type: ignore[misc]
    if CONTROL.get("mounts"):
        follower.Follower.__init__.__kwdefaults__["mounts"] = _mounts
    live.FollowSettings = partial(FollowSettings, **CONTROL.get("patience", {}))  # type: ignore[misc,assignment]
    saving._SHARE = 400  # a slow machine's saves are not a minute apart
    if CONTROL.get("deaf"):
        waker.Waker.on_any_event = lambda *_: None  # type: ignore[method-assign]
    if CONTROL.get("no_inotify"):

        def refuse(*_: Any) -> None:
            raise OSError(errno.EMFILE, "inotify instance limit reached")

        waker.Observer = refuse  # type: ignore[assignment]
    if CONTROL.get("kill_at"):
        store.os = DyingOs(CONTROL.get("kill_at"))  # type: ignore[assignment]
    if CONTROL.get("state_error"):
        store.os = FullOs()  # type: ignore[assignment]
    if CONTROL.get("no_locks"):

        def no_locks(*_: Any) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        store.fcntl.flock = no_locks  # type: ignore[assignment]
    if CONTROL.get("clock") is not None:
        daemon.SystemClock = SkewedClock  # type: ignore[misc]
    Overflows.take_line = lambda *_: True  # type: ignore[method-assign,assignment]
    command()


if __name__ == "__main__":
    control, *sys.argv[1:] = forked(int(sys.argv[1]))
    sys.argv[0] = "megatron-monitor"
    CONTROL = Control(Path(control))
    main()
