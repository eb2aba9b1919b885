"""Rules for which files are followed: path patterns, names that are never logs, and binary contents. Pure.

`*`, `?` and `[...]` match within a name, `**` matches any depth. A name that begins with a dot only matches a part of
the pattern that begins with a dot. A pattern can also decide if a match may lie below a directory, so a walk can skip
the directory.
"""

import functools
import os
import re
from collections.abc import Callable
from fnmatch import translate

from msgspec import Struct

_MAGIC = re.compile(r"[*?[]")
_PIECE = re.compile(r"\*+|\[!?\]?[^\]]*\]|.", re.DOTALL)
ANY_DEPTH = "**"
LINK = "\0"
"""Marks the name of a directory that is a link: `**` does not enter links, which may form loops."""
_NON_LOG_NAME = re.compile(
    r"\.nfs[0-9a-fA-F]+$"  # a deleted file that some client still holds open on NFS
    r"|events\.out\.tfevents\.",  # TensorBoard
    re.IGNORECASE,
)
_NON_LOG_SUFFIX = re.compile(
    r"pt|pth|bin|safetensors|ckpt|distcp|idx|npy|npz|gz|bz2|xz|zst|lz4|zip|tar|tgz|7z|pkl|pickle|parquet|arrow"
    r"|feather|h5|hdf5|so|o|a|pyc|whl|png|jpe?g|gif|pdf|mp4|sqlite3?|db|nsys-rep|qdrep|swp|core",
    re.IGNORECASE,
)
_NON_LOG_SUFFIX_IN_TREE = re.compile(
    r"py|ipynb|c|cc|cpp|cu|cuh|h|hpp|json|jsonl|ya?ml|toml|ini|cfg|md|rst|html?|css|js|sh|bash|slurm|sbatch|csv|tsv"
    r"|lock|patch|diff|tex|model|vocab|merges",
    re.IGNORECASE,
)
SKIPPED_DIRECTORIES = frozenset({".snapshot", "lost+found", "__pycache__", "node_modules", "site-packages"})
_CONTROL = bytes(set(range(1, 32)) - set(b"\a\b\t\n\v\f\r\x1b"))
_SIGNATURES = (b"\x1f\x8b", b"PK\x03\x04", b"(\xb5/\xfd", b"\xfd7zXZ", b"BZh", b"\x7fELF", b"\x93NUMPY", b"\x89HDF")


class WatchedPath(Struct, frozen=True):
    """A file, a directory (all logs below it) or a pattern to follow, and patterns to exclude.

    An exclude without a slash is matched against names of files and directories, one with a slash against whole paths.
    """

    pattern: str
    exclude: tuple[str, ...] = ()


def absolute(path: str) -> str:
    """Return the path made absolute, with `~`, `.` and `..` resolved."""
    return os.path.abspath(os.path.expanduser(path))


def has_magic(path: str) -> bool:
    """Return True if the path contains a character with a meaning in patterns."""
    return _MAGIC.search(path) is not None


class PathPattern(Struct, frozen=True):
    """An absolute pattern as its parts: `/logs/**/*.out` is ("logs", "**", "*.out")."""

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, path: str) -> "PathPattern":
        """Return the pattern of this text."""
        return cls(tuple(part for part in absolute(path).split("/") if part))

    def tree(self) -> "PathPattern":
        """Return the pattern that matches everything below this path."""
        return PathPattern((*self.parts, ANY_DEPTH))

    @property
    def fixed(self) -> str:
        """The directory above the first part with a wildcard: a walk starts there."""
        count = next((i for i, part in enumerate(self.parts) if has_magic(part)), len(self.parts))
        return "/" + "/".join(self.parts[:count])

    @property
    def matches(self) -> Callable[[str], object]:
        """Called with the absolute path of a file: returns a true object if the path matches."""
        return _compiled(self.parts)[0].fullmatch

    @property
    def may_match_below(self) -> Callable[[str], object]:
        """Called with the absolute path of a directory: a true object if files below may match. `/` is written ""."""
        return _compiled(self.parts)[1].fullmatch


@functools.lru_cache(maxsize=512)
def _compiled(parts: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the expressions for matching files and for directories that may lead to one."""
    names = [_expression(part) for part in parts]
    above = ""
    for name in reversed(names if parts[-1:] == (ANY_DEPTH,) else names[:-1]):
        above = f"(?:{name}{above})?"
    return re.compile("".join(names)), re.compile(above if parts else "(?!)")


def _expression(part: str) -> str:
    """Return the expression for one name with its slash. Linear: text between two `*` is matched once, at the left."""
    if part == ANY_DEPTH:
        return rf"(?:/(?![.{LINK}])[^/]++)*"
    pieces = [""]
    for piece in _PIECE.findall(part):
        if piece[0] == "*":
            pieces.append("")
        else:
            one_character = "[^/]" if piece == "?" else re.escape(piece)
            pieces[-1] += f"(?!/){translate(piece)[4:-3]}" if piece[1:] else one_character
    first, *rest = pieces
    glob = first + "".join(f"(?>[^/]*?{text})" for text in rest[:-1]) + "".join(f"[^/]*{text}" for text in rest[-1:])
    hidden = "" if part.startswith(".") else r"(?!\.)"
    literal = rf"{re.escape(part)}(?![^/])|" if has_magic(part) else ""  # a name that is spelled like the pattern
    return rf"/{LINK}?+(?:{literal}{hidden}{glob})"


def excluded(excludes: tuple[str, ...], path: str, name: str) -> bool:
    """Return True if any of the patterns matches this file or directory."""
    return any(
        PathPattern.parse(exclude).matches(path) if "/" in exclude else PathPattern((exclude,)).matches(f"/{name}")
        for exclude in excludes
    )


def may_be_log(name: str, *, in_tree: bool) -> bool:
    """Return False for names that are never logs; with `in_tree` (a whole directory is followed) also for source code
    and data.
    """
    _, dot, suffix = name.rpartition(".")
    return not dot or not (_NON_LOG_NAME.match(name) or _is_non_log_suffix(suffix, in_tree))


@functools.lru_cache(maxsize=512)
def _is_non_log_suffix(suffix: str, in_tree: bool) -> bool:
    return bool(_NON_LOG_SUFFIX.fullmatch(suffix) or (in_tree and _NON_LOG_SUFFIX_IN_TREE.fullmatch(suffix)))


BINARY_CHECK_BYTES = 1024
"""Bytes of a file that `looks_binary` needs."""


def looks_binary(head: bytes) -> bool:
    """Return True for a known signature, or if over 1/32 are control characters unused by terminals. NULs are holes."""
    text = head.replace(b"\0", b"")
    if text.startswith(_SIGNATURES):
        return True
    return len(text) - len(text.translate(None, _CONTROL)) > len(text) // 32
