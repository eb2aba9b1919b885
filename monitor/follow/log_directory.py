"""The directory of a log: is it there, was it removed, or is the mount away that holds it?"""

import os
import sys

from msgspec import Struct

from megatron_monitor.follow.context import Context


class LogDirectory(Struct):
    """The directory of one path. A name is only believed absent in the directory that once held it."""

    log: str
    """The path."""
    context: Context
    path: str = ""
    """Where the log lies."""
    missing: bool = False
    """It is not there, and no file is held open, so that the file is left to other names."""
    _device: int | None = None

    def __post_init__(self) -> None:
        self.path = sys.intern(self.log.rpartition("/")[0] or "/")  # of many logs

    def remember(self, device: int) -> None:
        """The file is there, on that device: so is its directory."""
        if self._device is None:
            self._device = self.context.directory_device(self.log, device)

    def forget(self) -> None:
        """Another file stands there, be it through a link to another directory."""
        self._device = None

    def shows_another_mount(self) -> bool:
        """Is the directory there, but not the one that held the file? Raises FileNotFoundError if it is not there."""
        device = self.context.directory_device(self.log)
        return self._device is not None and device != self._device

    def removed(self, device: int) -> bool:
        """The directory is not there. On a local disk it was removed, or renamed, where the nearest one above that is
        there lies on the log's device; a mount that is away shows another. A server may forget a name for a while.
        """
        if not self.context.is_local(device):
            return False
        above = os.path.dirname(self.path)
        while True:
            try:
                return self.context.stat(above).st_dev == device
            except FileNotFoundError:
                if above == os.path.dirname(above):
                    return False
                above = os.path.dirname(above)
