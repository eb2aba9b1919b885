"""The table: every scenario of the peers' list by its number, and the functions that play it.

`@scenario(24)` registers a body; it is played for each mode (and writer) against the shared daemon of that mode, many at
once, and each is a test of its own. `own=True`: once, with daemons of its own. Tests outside of this folder that prove a
scenario are named in ELSEWHERE.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.e2e.scenarios.harness import Lab

TITLES: dict[int, str] = {
    1: "append one line", 2: "many lines in one write", 3: "line split at every byte",
    4: "partial last line never ended", 5: "partial line completed after a restart", 6: "CRLF",
    7: "10 MB of bare CR without LF", 8: "CR before the iteration line", 9: "another rank's output mid-line",
    10: "empty lines", 11: "1-byte file", 12: "empty file", 13: "lines at, above and far above the maximum",
    14: "over-long last line is read once", 15: "invalid UTF-8", 16: "UTF-8 split over a read",
    17: "byte order mark", 18: "NUL hole at the head, 10 GB hole", 19: "NULs overwritten in place", 20: "ANSI colours",
    21: "permission lost and regained", 22: "directory, FIFO, socket, device", 23: "binary checkpoint",
    24: "rename", 25: "rename five times within one poll", 26: "late writes to the renamed file",
    27: "rename and compress", 28: "copytruncate smaller", 29: "copytruncate same size", 30: "copytruncate larger",
    31: "truncated, then silent", 32: "atomic replace with the same prefix", 33: "delete",
    34: "delete and recreate with the same inode", 35: "delete and recreate while down", 36: "symlink swap",
    37: "dangling symlink later valid", 38: "symlink to outside", 39: "hard link and two globs",
    40: "two files with one banner", 41: "grows past the fingerprint", 42: "rotation during a restart",
    43: "parent directory renamed", 44: "nested directories appear", 45: "requeue appends", 46: "clock skew of mtime",
    47: "network file system is polled", 48: "size lags", 49: "size ahead of the data", 50: "ESTALE everywhere",
    51: "the mount fails and comes back", 52: "a call that hangs", 53: "device number changes",
    54: "scandir repeats and forgets", 55: ".nfs files and snapshots", 56: "types of file systems",
    57: "SIGKILL at every step of saving", 58: "state file damaged or not writable", 59: "state on NFS",
    60: "two daemons on one state", 61: "state of every released version", 62: "entry of a file gone expires",
    63: "entry of a file unseen stays", 64: "100,000 entries load in a second",
    65: "500 files, 100 descriptors", 66: "no inotify left", 67: "events lost", 68: "10,000 idle files",
    69: "50,000 names", 70: "fair reads", 71: "soak", 72: "deleted files let go", 73: "cardinality is capped",
    74: "path that is no UTF-8", 75: "a collector that raises", 76: "silent TLS client", 77: "200 idle connections",
    78: "formats and gzip", 79: "no series twice", 80: "series of a gone run go", 81: "SIGHUP with a bad file",
    82: "reload keeps offsets and counters", 83: "SIGTERM saves within 5 s", 84: "sd_notify", 85: "check-config",
    86: "replay twice is the same", 87: "alert rules have unit tests", 88: "no bytes raise, no regex hangs",
}  # fmt: skip
ELSEWHERE: dict[int, tuple[str, ...]] = {
    3: ("tests/parsers/test_lines.py",),
    56: ("tests/monitor/follow/test_mounts.py",),
    61: ("tests/monitor/test_store.py",),
    62: ("tests/monitor/test_store.py",),
    64: ("tests/monitor/test_store.py",),
    75: ("tests/monitor/serve/test_http.py",),
    85: ("tests/monitor/test_commands.py",),
    87: ("tests/deploy/test_rules.py",),
    88: ("tests/test_fuzz.py", "tests/test_redos.py"),
}
"""Number -> test files that prove it too, or instead."""
MODES = ("inotify", "poll")
WRITERS = ("keep", "reopen")
Body = Callable[[Lab], None]


@dataclass(frozen=True)
class Case:
    """One play of one scenario."""

    number: int
    variant: str
    body: Body
    mode: str
    writer: str
    own: bool

    @property
    def group(self) -> str:
        """A to F."""
        return next(name for name, last in zip("ABCDEF", (23, 46, 56, 64, 73, 88), strict=True) if self.number <= last)

    @property
    def name(self) -> str:
        """Safe in a path and in a test's name."""
        parts = [f"{self.group}{self.number:02}", self.variant, self.mode, self.writer]
        return "-".join(part for part in parts if part)


CASES: list[Case] = []


def scenario(
    number: int, variant: str = "", *, own: bool = False, writers: tuple[str, ...] = ("reopen",)
) -> Callable[[Body], Body]:
    """Register a body under its number."""

    def register(body: Body) -> Body:
        modes = ("",) if own else MODES
        for mode in modes:
            CASES.extend(
                Case(number, variant, body, mode, writer if len(writers) > 1 else "", own) for writer in writers
            )
        return body

    return register
