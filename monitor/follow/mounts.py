"""Which file system holds a path, and whether this system names what is written there (inotify).

They see this host's writes alone, so on network and parallel file systems they look alive and stay silent. An unknown
type counts as one of those. Only the kernel's table is read: that never hangs.
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
"""Never walked into. autofs is here as the trigger: what it mounts appears under its own type."""
_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(Struct, frozen=True):
    """A mount point, absolute, and its type as the kernel names it."""

    point: str
    file_system: str
    device: int = 0

    @property
    def local(self) -> bool:
        """Only this host writes there, so its events are seen, and one look at the size is the truth."""
        return self.file_system in LOCAL


UNKNOWN = Mount("/", "unknown")


class Mounts:
    """The mount table at one moment."""

    def __init__(self, mounts: Iterable[Mount]) -> None:
        self._by_point = {mount.point: mount for mount in mounts}  # the last one mounted on a point hides the others
        self._by_device = {mount.device: mount for mount in self._by_point.values()}

    def of(self, path: str) -> Mount:
        """The mount of an absolute path, by its text: links are not followed."""
        while True:
            mount = self._by_point.get(path)
            if mount is not None:
                return mount
            if path in ("/", ""):
                return UNKNOWN
            path = path.rpartition("/")[0] or "/"

    def below(self, directory: str) -> list[Mount]:
        """The mounts strictly below a directory that hold files."""
        prefix = directory.rstrip("/") + "/"
        return [
            mount
            for point, mount in sorted(self._by_point.items())
            if point.startswith(prefix) and point != prefix and mount.file_system not in PSEUDO
        ]

    def points(self) -> frozenset[str]:
        """Every mount point."""
        return frozenset(self._by_point)

    def is_local(self, device: int, default: Mount) -> bool:
        """Is the file with this st_dev on a local file system? btrfs has device numbers that no table knows."""
        return self._by_device.get(device, default).local


def parse_mountinfo(text: str) -> Mounts:
    r"""/proc/self/mountinfo (proc(5)): `36 35 98:0 /exported /mnt/a\040b rw,noatime shared:1 - ext3 /dev/root rw`."""
    found = []
    for line in text.splitlines():
        fields = line.split(" ")
        try:
            separator = fields.index("-", 6)
            major, _, minor = fields[2].partition(":")
            found.append(Mount(_unescape(fields[4]), fields[separator + 1], os.makedev(int(major), int(minor))))
        except (ValueError, IndexError):
            continue  # a line of a future kernel: its paths fall to the mount above
    return Mounts(found)


def read_mounts() -> Mounts:
    """The table of this process. Where there is none every path is unknown, and polled."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            return parse_mountinfo(table.read())
    except OSError:
        return Mounts([])


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
