"""What took long to make, kept for the next start: `$XDG_CACHE_HOME/megatron-monitor`, a file each.

C code loads what is read here, so a file is believed only if nobody else can have written it: it and its directory are
this user's, writable by no other, no link leads there, and its checksum holds. Where there is no such place nothing is
kept, and nothing is said: it only takes longer.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


class CacheFiles:
    """Files by their names; the directory is made with the first one."""

    def __init__(self, directory: Path | None = None) -> None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        self.directory = directory or Path(base) / "megatron-monitor"

    def read(self, name: str) -> bytes | None:
        """What was kept under the name; None where there is nothing that can be believed."""
        try:
            with self._opened() as folder:
                descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _FLAGS, dir_fd=folder)
            with open(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not _is_ours(descriptor):
                    return None
                digest, data = file.read(32), file.read()
        except OSError:
            return None
        return data if sha256(data).digest() == digest else None

    def write(self, name: str, data: bytes) -> None:
        """Keep it, whole or not at all."""
        part = f"{name}.{os.getpid()}"
        with contextlib.suppress(OSError):
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._opened() as folder:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS
                with open(os.open(part, flags, 0o600, dir_fd=folder), "wb") as file:
                    file.write(sha256(data).digest() + data)
                os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        try:
            if not _is_ours(folder):
                raise PermissionError(self.directory)
            yield folder
        finally:
            os.close(folder)


def _is_ours(descriptor: int) -> bool:
    found = os.fstat(descriptor)
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022
