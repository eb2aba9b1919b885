"""Messages from the reader threads to the loop: plain frozen values.

Order per source: Opened, then Data..., CaughtUp; Restarted begins the next content of the same path at offset 0.
After Gone and Unreadable any message may follow. Times `at` and `mtime` are Unix seconds.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct, field

from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.parsers.redaction import MASK, masked_path

if TYPE_CHECKING:
    from megatron_monitor.follow.content import Content

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


MAX_FORMER_FILES = 16_384
"""Rotated files remembered per source, 152 bytes of state each. If a pattern also finds a forgotten one, a restart
reads it again. A log that is rotated every hour reaches the bound after 682 days."""


class Opened(Struct, frozen=True):
    """A source is followed from the end of `content` on, which is empty, the proved part of the file, or what another
    name delivered. None: an empty one without a file. `resumed`: its position was proved.
    """

    source: SourceId
    path: str
    content: "Content | None"
    size: int
    mtime: float
    resumed: bool
    owner: int | None = None
    """User id of the file's owner; None: unknown."""
    mount: str = ""
    """The mount point of its reader: while the mount is unobserved (UnobservedTime), silence means nothing."""

    @property
    def offset(self) -> int:
        """The offset of the next byte."""
        return 0 if self.content is None else self.content.offset


class Data(Struct, frozen=True):
    """The next bytes. `offset` is that of data[0] and skips holes.

    `at` is when they were read, `mtime` the file's time stamp; `behind_bytes`: known bytes of the file after them.
    `content`: what was read, with them; None: no file has it.
    """

    source: SourceId
    offset: int
    data: bytes
    mtime: float
    at: float
    behind_bytes: int
    content: "Content | None" = None


class Lines(Struct, frozen=True):
    """The next lines of a finished file, already parsed and dated (source_clock/)."""

    source: SourceId
    entries: Sequence[LogEvent]


class Restarted(Struct, frozen=True):
    """The path has other content: the next Data is its beginning. `left`: the old file if all of it was read."""

    source: SourceId
    reason: RestartReason
    proof: str
    content: "Content | None" = None
    left: Fingerprint | None = None
    at: float = 0.0

    def former(self, known: tuple[Fingerprint, ...]) -> tuple[Fingerprint, ...]:
        """Return the files that the source has left, after those known before."""
        return known if self.left is None else (*known, self.left)[-MAX_FORMER_FILES:]


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
