"""The daemon as it is, with faults at the edge of the system while their flags lie in $SOAK_FLAGS:

blocked   no call on a log returns
full      the state cannot be written
offset    seconds that the wall clock is wrong by
"""

import errno
import os
import sys
import time
from pathlib import Path
from typing import Any

from megatron_monitor import store
from megatron_monitor.cli import main
from megatron_monitor.follow.os_layer import OsLayer
from megatron_monitor.system.clock import SystemClock

FLAGS = Path(os.environ["SOAK_FLAGS"])
_SEEN: list[float] = [-1.0, 0.0]


def _blocking(call: str) -> None:
    real = getattr(OsLayer(), call)

    def late(_layer: OsLayer, *arguments: Any) -> Any:
        while (FLAGS / "blocked").exists():
            time.sleep(0.05)
        return real(*arguments)

    setattr(OsLayer, call, late)


def _wall(_clock: SystemClock) -> float:
    now = time.monotonic()
    if now - _SEEN[0] > 0.2:
        _SEEN[:] = now, float((FLAGS / "offset").read_text())
    return time.time() + _SEEN[1]


class _Disk:
    """`os` for the state file: full while a file says so."""

    def __getattr__(self, name: str) -> Any:
        if name == "pwrite" and (FLAGS / "full").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return getattr(os, name)


if __name__ == "__main__":
    for name in ("stat", "open", "pread", "fstat", "scandir"):
        _blocking(name)
    SystemClock.wall = _wall  # type: ignore[method-assign]
    store.os = _Disk()  # type: ignore[assignment]
    sys.argv[0] = "megatron-monitor"
    main()
