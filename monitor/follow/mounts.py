"""The mount table: which file system holds a path, and if inotify reports every write there.

inotify only reports writes of this host, so network and parallel file systems must be polled; an unknown type counts
as one of these. Only the kernel's table is read, which never hangs.
"""

import os
import re
from collections.abc import Iterable

from msgspec import Struct

LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "ramfs", "overlay", "zfs", "f2fs", "bcachefs"})
PSEUDO = frozenset(
    {"autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs"}
    | {"fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs"}
    | {"tracefs"}
)
"""Types that are never searched. autofs is only the trigger: the file system it mounts appears with its own type."""
_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(Struct, frozen=True):
    """A mount point (absolute path), its type as the kernel names it, and its st_dev."""

    point: str
    file_system: str
    device: int = 0

    @property
    def local(self) -> bool:
        """True if only this host writes there: inotify reports all writes and one stat is reliable."""
        return self.file_system in LOCAL


class Mounts:
    """The mount table at one moment."""

    def __init__(self, mounts: Iterable[Mount]) -> None:
        self._by_point = {mount.point: mount for mount in mounts}  # the last one mounted on a point hides the others
        self.points = frozenset(self._by_point)
        self._by_device = {mount.device: mount for mount in self._by_point.values()}

    def of(self, path: str) -> Mount:
        """Return the mount of an absolute path, by its text: links are not followed."""
        while (mount := self._by_point.get(path)) is None:
            if path in ("/", ""):
                return Mount("/", "unknown")
            path = path.rpartition("/")[0] or "/"
        return mount

    def below(self, directory: str) -> list[Mount]:
        """Return the mounts strictly below a directory, without pseudo file systems."""
        prefix = directory.rstrip("/") + "/"
        return [
            mount
            for point, mount in sorted(self._by_point.items())
            if point.startswith(prefix) and point != prefix and mount.file_system not in PSEUDO
        ]

    def is_local(self, device: int, default: Mount) -> bool:
        """Return True if this st_dev is on a local file system. Some devices of btrfs are not in the table."""
        return self._by_device.get(device, default).local


def parse_mountinfo(text: str) -> Mounts:
    r"""Parse mountinfo (proc(5)): `36 35 98:0 /exported /mnt/a\040b rw,noatime shared:1 - ext3 /dev/root rw`."""
    mounts = []
    for line in text.splitlines():
        fields = line.split(" ")
        try:
            separator = fields.index("-", 6)
            major, _, minor = fields[2].partition(":")
            point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
            mounts.append(Mount(point, fields[separator + 1], os.makedev(int(major), int(minor))))
        except (ValueError, IndexError):
            continue  # a line of a future kernel: its paths count to the mount above
    return Mounts(mounts)


def read_mounts() -> Mounts:
    """Return the table of this process. Without one, every path has an unknown type and is polled."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            return parse_mountinfo(table.read())
    except OSError:
        return Mounts([])
