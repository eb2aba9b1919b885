"""What may differ between one following of files and another: the configuration's keys, the tests', one reading."""

from msgspec import Struct
from msgspec.structs import replace

QUEUE_SIZE = 32
"""Messages between the readers and the loop: at most 32 MiB of log in memory."""
OLD_SECONDS = 900.0
"""Age of a file that, met for the first time, waits until the walk is over and those that moved later are read."""
LAPSE = 2.0
"""Seconds without a look where one was due, after which nobody is said to have listened: a call takes milliseconds, and
a reader waits for half a second."""
STOP_SECONDS = 2.0
"""How long `Follower.stop` waits for threads by default: one on a hung mount never ends and is left behind."""


class FollowSettings(Struct, frozen=True):
    """Seconds, bytes and counts; the same for every mount."""

    poll_interval: float = 0.5
    """Seconds between two looks at an active file. A run prints a line every few seconds at most."""
    idle_interval: float = 10.0
    """Longest seconds between two looks at a silent file: a sixth of the shortest hang budget (60 s)."""
    discovery_interval: float = 10.0
    """Seconds between two walks over the patterns: a new run is seen 10 s late, its first iteration takes longer."""
    stats_per_second: float = 500.0
    """Budget per mount of looks at files that are silent or were never seen to grow: each may be an RPC. 5,000 files
    reach it at 10 s."""
    entries_per_slice: int = 2000
    """Directory entries walked between two looks at the files: some 10 ms, so a huge tree does not stop the tailing."""
    read_bytes: int = 1 << 20
    """At most so much of one file per pass: a file in a hurry does not starve the others; larger reads gain nothing."""
    max_open_files: int = 64
    """Descriptors held per mount; the daemon has an eighth of its limit (live.py). To open one again costs 40 us."""
    once: bool = False
    """One reading to the end: nothing is waited for, and no file is looked at again."""

    @classmethod
    def polling(cls, interval: float, max_open_files: int) -> "FollowSettings":
        """With this poll interval in seconds, and those that follow from it: a file system that may be asked half as
        often is searched half as often.
        """
        return cls(
            poll_interval=interval, idle_interval=20 * interval, discovery_interval=20 * interval,
            max_open_files=max_open_files,
        )  # fmt: skip

    def for_one_reading(self) -> "FollowSettings":
        """The same for one reading to the end."""
        return replace(self, once=True)
