"""Every number of the follower, its default and the reason for it."""

from msgspec import Struct


class FollowSettings(Struct, frozen=True):
    """Seconds, bytes and counts; the same for every mount."""

    poll_interval: float = 0.5
    """Seconds between two looks at an active file. A run prints a line every few seconds at most."""
    idle_interval: float = 10.0
    """Longest seconds between two looks at a silent file: a sixth of the shortest hang budget (60 s)."""
    idle_divisor: float = 20.0
    """A file silent for t seconds is looked at every t / 20: a late look costs at most 5 % of the silence."""
    stats_per_second: float = 500.0
    """Budget per mount of looks at files that are silent or were never seen to grow: each may be an RPC. 5,000 files
    reach it at 10 s."""
    discovery_interval: float = 10.0
    """Seconds between two walks over the patterns: a new run is seen 10 s late, its first iteration takes longer."""
    relist_interval: float = 600.0
    """Seconds after which a directory is listed again although its time stamp says that nothing changed in it."""
    discovery_soonest: float = 1.0
    """Seconds that must lie between two walks when a wake-up names a path that is not known."""
    entries_per_slice: int = 2000
    """Directory entries walked between two looks at the files: some 10 ms, so a huge tree does not stop the tailing."""
    least_read: int = 1 << 16
    """Bytes asked for beyond what a file is known to hold: to make room for `read_bytes` takes 13 us, for this 0.4."""
    old_seconds: float = 900.0
    """Age of a file that, met for the first time, waits until the walk is over and those that moved later are read, and
    of which a proof is kept in place of its first and last bytes."""
    old_slice: float = 0.25
    """Seconds for which such files are read before the others are looked at again."""
    read_bytes: int = 1 << 20
    """At most so much of one file per pass: a file in a hurry does not starve the others; larger reads gain nothing."""
    queue_size: int = 32
    """Messages between the readers and the loop: at most 32 MiB of log in memory."""
    max_open_files: int = 64
    """Descriptors held per mount; the daemon has an eighth of its limit (live.py). To open one again costs 40 us."""
    recheck_seconds: float = 2.0
    """The bytes before the offset are compared again until a file has been quiet for this long: a change within one
    tick of the file system's time stamps (up to 1 s on old servers) leaves size and times as they were."""
    recheck_local: float = 0.02
    """The same, after the time stamp itself, for local files whose stamps have parts of seconds: these tick with the
    kernel, every 10 ms or more often, and agree with the clock that we ask."""
    late: float = 0.5
    """Seconds without a look where one was due, after which the runs of the mount are judged no further."""
    lapse: float = 2.0
    """Seconds without a look where one was due, after which nobody is said to have listened: a call takes milliseconds,
    and a reader waits for half a second."""
    catch_up_seconds: float = 10.0
    """Seconds after a lapse for which a file that has more to read at once keeps its mount unheard, and no longer."""
    confirm_seconds: float = 3.0
    """On a network mount a truncation is believed when two fresh opens this far apart show it: acregmin, the least time
    that an NFS client keeps attributes, is 3 s."""
    rotation_grace: float = 1.0
    """Seconds that the old file is still read after its name shows another: writers move over one after the other."""
    gone_grace: float = 2.0
    """Seconds that a name must be absent: a rotation leaves it absent between its rename and its create."""
    renamed_seconds: float = 300.0
    """Seconds for which a file that was renamed, not deleted, is read on under its old name although it is silent."""
    hole_seconds: float = 2.0
    """Seconds that a run of NULs ending at a page boundary may take to be filled on a network mount: a client writes
    its dirty pages back in any order."""
    failures_reported: int = 2
    """Failures in a row before a source is called unreadable: one lost RPC is no news."""
    failure_interval: float = 30.0
    """Longest seconds between two tries at an unreadable file."""
    forget_gone: float = 86_400.0
    """Seconds after which a deleted file that a glob found is forgotten, so that dated log names do not add up."""
    resolve_seconds: float = 2.0
    """How long the path of a pattern may take to resolve at the start; then its text alone decides the mount."""
    stop_seconds: float = 2.0
    """How long `stop` waits for threads by default: one on a hung mount never ends and is left behind."""

    @classmethod
    def polling(cls, interval: float, max_open_files: int) -> "FollowSettings":
        """With this poll interval in seconds, and those that follow from it: a file system that may be asked half as
        often is searched half as often.
        """
        return cls(
            poll_interval=interval, idle_interval=20 * interval, discovery_interval=20 * interval,
            max_open_files=max_open_files,
        )  # fmt: skip

    def once(self) -> "FollowSettings":
        """The same for one reading to the end: nothing is waited for."""
        return FollowSettings(
            read_bytes=self.read_bytes,
            max_open_files=self.max_open_files,
            old_seconds=float("inf"),
            rotation_grace=0.0,
            gone_grace=0.0,
            confirm_seconds=0.0,
            hole_seconds=0.0,
            renamed_seconds=0.0,
            failures_reported=1,
        )
