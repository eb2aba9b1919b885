"""What crosses from the reader threads to the loop: plain frozen values, nothing else.

Order, per source: Opened, then Data..., CaughtUp; Restarted begins the next content of the same path at offset 0.
Gone and Unreadable end nothing: the source may go on with any message.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, field

from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.parsers.redaction import MASK, masked_path

SourceId: TypeAlias = str
"""The path as given or discovered, absolute, in valid UTF-8: the key of an endless source, safe as a label."""

RestartReason: TypeAlias = Literal["rotated", "truncated", "replaced"]
"""rotated: the old file was read to its end first. truncated: the same file was cut. replaced: another file stands
there and what the old one still held, if anything, could not be read."""


class Fingerprint(Struct, frozen=True, gc=False):
    """What proves that a file is the one that was read up to `offset`.

    `head_bytes` and `tail_bytes` count what was hashed: the first bytes of the file and the last before `offset`.
    """

    device: int
    inode: int
    head_bytes: int
    head_hash: str
    offset: int
    tail_bytes: int
    tail_hash: str


class Position(Fingerprint, frozen=True, omit_defaults=True, gc=False):
    """What the state file keeps per source, so that a resume can be proved right. Plain values only."""

    former: tuple[Fingerprint, ...] = ()
    """Files that the source read to their ends and left: met under another name they are continued, not read again."""
    written: float = 0.0
    """When what was read last had been written, by its time stamp. Unix seconds; 0: not known."""


SMALL_BYTES = 1 << 16
"""A message with so much text at most is small."""


class Opened(Struct, frozen=True):
    """A source is followed from `offset` on: 0, or the proved position, or the end of what another name delivered.

    `resumed` says that `position` was proved; else `proof` is the reason (empty if there was none). `head` and `tail`
    are the file's first bytes and those before `offset`, for the Marker. `mtime` is Unix seconds, `size` bytes.
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
    proof: str = ""
    owner: int | None = None
    """The user id that the file system gives it."""
    mount: str = ""
    """The mount whose reader reads it: its silence means nothing while that one cannot hear (Unheard)."""


class Data(Struct, frozen=True):
    """The next bytes. `offset` is that of data[0]; it jumps over holes.

    `at` is when they were read, `mtime` when the file system says they were written (Unix seconds); `behind_bytes` is
    what the file is known to hold after them.
    """

    source: SourceId
    offset: int
    data: bytes
    mtime: float
    at: float
    behind_bytes: int


class Lines(Struct, frozen=True):
    """The next lines of a finished file, read and dated already (source_clock/): each bears an instant of its own."""

    source: SourceId
    entries: Sequence[LogEvent]


class Restarted(Struct, frozen=True):
    """The path shows other content: the next Data is its beginning. `former`: the file left behind, if all was read, or
    what was read of the one that was cut.
    """

    source: SourceId
    reason: RestartReason
    proof: str
    device: int = 0
    inode: int = 0
    former: Fingerprint | None = None
    at: float = 0.0


class CaughtUp(Struct, frozen=True):
    """The content was read to its end for the first time."""

    source: SourceId
    at: float


class Unreadable(Struct, frozen=True):
    """The file could not be observed several times in a row: nothing is known to be gone."""

    source: SourceId
    errno: int | None
    message: str
    at: float


class Readable(Struct, frozen=True):
    """After Unreadable or Gone: the file is there and can be read again."""

    source: SourceId
    at: float


class Gone(Struct, frozen=True):
    """The path was deleted (its directory can be seen without it) and what it held has been read."""

    source: SourceId
    at: float


class UnobservedTime(Struct, frozen=True):
    """For so many seconds, until now, nobody listened to this mount: a call did not return, or the monitor did not run.

    Before whatever was written meanwhile.
    """

    mount: str
    seconds: float
    at: float


class Scanned(Struct, frozen=True):
    """One walk over the patterns of one mount has ended. Counts are since the walk before."""

    mount: str
    at: float
    stats: int = 0
    """Calls that ask for a file's attributes."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """I/O errors by name (EIO, ESTALE, ...)."""
    forgotten: tuple[SourceId, ...] = ()
    """Sources gone for so long that they are followed no more: what comes under their names begins with Opened."""


Message: TypeAlias = (
    Opened | Data | Lines | Restarted | CaughtUp | Unreadable | Readable | Gone | UnobservedTime | Scanned
)


def source_id(path: str) -> SourceId:
    r"""The path as valid UTF-8: a byte that is none is written `\xNN`, a secret is masked. Any label, log line or JSON
    may carry it.

    Risk left: a second file whose name holds that escape literally gets the same key; the first one wins.
    """
    path = masked_path(path)
    return path if path.isascii() else path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_path(source: SourceId) -> bool:
    """Whether the id is the path itself, with nothing of it escaped or masked."""
    return MASK not in source and "\\x" not in source
