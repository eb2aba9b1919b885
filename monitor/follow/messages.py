"""Messages from the reader threads to the loop: plain frozen values.

Order per source: Opened, then Data..., CaughtUp; Restarted begins the next content of the same path at offset 0.
After Gone and Unreadable any message may follow. Times `at` and `mtime` are Unix seconds.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, field

from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.parsers.redaction import MASK, masked_path

SourceId: TypeAlias = str
"""The absolute path as configured or discovered, in valid UTF-8: the key of a source, safe as a label."""

RestartReason: TypeAlias = Literal["rotated", "truncated", "replaced"]
"""rotated: the old file was read to its end first. truncated: the same file was cut. replaced: another file has the
name, and the rest of the old one could not be read."""


class Fingerprint(Struct, frozen=True, omit_defaults=True, gc=False):
    """The proof that a file is the same that was read up to `offset`.

    `head_bytes` and `tail_bytes` count the hashed bytes: the first of the file and the last before `offset`. `unread`:
    bytes before `offset` that are read again, because their line was not complete.
    """

    device: int
    inode: int
    head_bytes: int
    head_hash: str
    offset: int
    tail_bytes: int
    tail_hash: str
    unread: int = 0

    @property
    def start(self) -> int:
        """The offset of the next byte to read."""
        return self.offset - self.unread


class Position(Fingerprint, frozen=True, omit_defaults=True, gc=False):
    """The proof that the state file keeps per source to resume from."""

    former: tuple[Fingerprint, ...] = ()
    """Files that the source read to their ends and left: found under another name, only their new bytes are read."""
    written: float = 0.0
    """Time stamp of the bytes read last, Unix seconds; 0: unknown."""


SMALL_BYTES = 1 << 16
"""Most bytes of a small message."""


class Opened(Struct, frozen=True):
    """A source is followed from `offset` on: 0, the proved position, or the end of bytes that another name delivered.

    `resumed`: `position` was proved. `head` and `tail` are the file's first bytes and those before `offset`, for the
    Marker.
    """

    source: SourceId
    path: str
    position: Position | None
    size: int
    mtime: float
    resumed: bool
    offset: int = 0
    device: int = 0
    inode: int = 0
    head: bytes = b""
    tail: bytes = b""
    owner: int | None = None
    """User id of the file's owner; None: unknown."""
    mount: str = ""
    """The mount point of its reader: while the mount is unobserved (UnobservedTime), silence means nothing."""


class Data(Struct, frozen=True):
    """The next bytes. `offset` is that of data[0] and skips holes.

    `at` is when they were read, `mtime` the file's time stamp; `behind_bytes`: known bytes of the file after them.
    """

    source: SourceId
    offset: int
    data: bytes
    mtime: float
    at: float
    behind_bytes: int


class Lines(Struct, frozen=True):
    """The next lines of a finished file, already parsed and dated (source_clock/)."""

    source: SourceId
    entries: Sequence[LogEvent]


class Restarted(Struct, frozen=True):
    """The path has other content: the next Data is its beginning. `former`: the old file if all of it was read."""

    source: SourceId
    reason: RestartReason
    proof: str
    device: int = 0
    inode: int = 0
    former: Fingerprint | None = None
    at: float = 0.0


class CaughtUp(Struct, frozen=True):
    """The source was read to its end for the first time."""

    source: SourceId
    at: float


class Unreadable(Struct, frozen=True):
    """The file could not be observed several times in a row; it may still exist."""

    source: SourceId
    errno: int | None
    message: str
    at: float


class Readable(Struct, frozen=True):
    """After Unreadable or Gone: the file can be read again."""

    source: SourceId
    at: float


class Gone(Struct, frozen=True):
    """The path was deleted (its directory can be read without it) and the file was read to its end."""

    source: SourceId
    at: float


class UnobservedTime(Struct, frozen=True):
    """The mount was not observed for `seconds` until now: a call did not return, or the monitor did not run.

    Precedes the bytes that were written meanwhile.
    """

    mount: str
    seconds: float
    at: float


class Scanned(Struct, frozen=True):
    """A walk over the patterns of one mount has ended. Counts are since the walk before."""

    mount: str
    at: float
    stats: int = 0
    """Calls that asked for attributes."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """I/O errors by name (EIO, ESTALE, ...)."""
    forgotten: tuple[SourceId, ...] = ()
    """Sources that were gone for a day and are no longer followed; a new file of that name begins with Opened."""


Message: TypeAlias = (
    Opened | Data | Lines | Restarted | CaughtUp | Unreadable | Readable | Gone | UnobservedTime | Scanned
)


def source_id(path: str) -> SourceId:
    r"""Return the path as valid UTF-8 for labels, log lines and JSON: other bytes become `\xNN`, secrets are masked.

    A second file whose name holds that escape literally gets the same key and is not followed.
    """
    path = masked_path(path)
    return path if path.isascii() else path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_path(source: SourceId) -> bool:
    """Return True if the id is the path itself, with nothing escaped or masked."""
    return MASK not in source and "\\x" not in source
