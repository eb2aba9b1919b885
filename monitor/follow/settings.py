"""Settings of the follower: intervals, budgets and bounds, from the configuration or from a test."""

from msgspec import Struct

QUEUE_SIZE = 32
"""Messages between the readers and the loop: at most 32 MiB of log in memory, and 1 MiB of each reader that waits."""
READ_BYTES = 1 << 20
OLD_SECONDS = 900.0
"""A newly found file of at least this age is read after the walk and after all files that changed later."""
UNOBSERVED_AFTER = 2.0
"""Seconds by which a reader may be late. If it is later, the time counts as unobserved: a call takes milliseconds,
and a reader pauses for half a second."""
STOP_SECONDS = 2.0
"""Default time in which `Follower.stop` waits for threads; a thread on a hung mount never ends and is abandoned."""


class FollowSettings(Struct, frozen=True):
    """Seconds, bytes and counts; the same for every mount."""

    poll_interval: float = 0.5
    """Seconds between two looks at an active file. A run prints a line every few seconds at most."""
    idle_interval: float = 10.0
    """Longest seconds between two looks at a silent file, a sixth of the shortest progress timeout (60 s), and seconds
    between two walks over the patterns: the first iteration of a new run takes longer than that.
    """
    stats_per_second: float = 500.0
    """Budget per mount of looks at files that are silent or were never seen to grow: each may be an RPC. 5,000 files
    use it up at an interval of 10 s."""
    entries_per_slice: int = 2000
    """Directory entries walked between two looks at the files: some 10 ms, so a huge tree does not delay the files."""
    read_bytes: int = READ_BYTES
    """Most bytes read from one file per pass, so that a fast file does not delay others. Larger reads gain nothing."""
    max_open_files: int = 64
    """Descriptors held per mount; live.py grants an eighth of the process limit. A reopen costs 40 us."""
