"""The monitor with its waker taken out, as on a network mount: everything is found by polling."""

from monitor.cli import main
from monitor.follow.waker import Waker


def _watch(self: Waker, directories: object) -> None:
    """No directory is watched."""


if __name__ == "__main__":
    Waker.watch = _watch  # type: ignore[method-assign, assignment]
    main(prog_name="megatron-monitor")
