"""Which files are followed: path patterns, names that can be no log, contents that can be none. Pure.

`*`, `?` and `[...]` match within a name, `**` any depth. Names that begin with a dot match only a part that does too.
A pattern also tells of a directory whether a match may lie below it, so that a walk leaves out what cannot.
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
"""Before the name of a directory that is a link: `**` enters none (loops)."""
_NEVER = re.compile(
    r"\.nfs[0-9a-fA-F]+$"  # a deleted file that some client still holds open on NFS
    r"|events\.out\.tfevents\.",  # TensorBoard
    re.IGNORECASE,
)
_NEVER_ENDING = re.compile(
    r"pt|pth|bin|safetensors|ckpt|distcp|idx|npy|npz|gz|bz2|xz|zst|lz4|zip|tar|tgz|7z|pkl|pickle|parquet|arrow"
    r"|feather|h5|hdf5|so|o|a|pyc|whl|png|jpe?g|gif|pdf|mp4|sqlite3?|db|nsys-rep|qdrep|swp|core",
    re.IGNORECASE,
)
_NOT_IN_A_TREE = re.compile(
    r"py|ipynb|c|cc|cpp|cu|cuh|h|hpp|json|jsonl|ya?ml|toml|ini|cfg|md|rst|html?|css|js|sh|bash|slurm|sbatch|csv|tsv"
    r"|lock|patch|diff|tex|model|vocab|merges",
    re.IGNORECASE,
)
_SKIPPED_DIRECTORIES = frozenset({".snapshot", "lost+found", "__pycache__", "node_modules", "site-packages"})
_CONTROL = bytes(set(range(1, 32)) - set(b"\a\b\t\n\v\f\r\x1b"))
_BINARY = (b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh", b"\x7fELF", b"\x93NUMPY", b"\x89HDF")


class WatchedPath(Struct, frozen=True):
    """What to follow: a file, a directory (all logs below it) or a pattern; `exclude` holds patterns of what not.

    An exclude without a slash is matched with the name of every file and directory, one with a slash with whole paths.
    """

    pattern: str
    exclude: tuple[str, ...] = ()


def absolute(path: str) -> str:
    """`~` expanded, absolute, without `.` and `..`."""
    return os.path.abspath(os.path.expanduser(path))


def has_magic(path: str) -> bool:
    """Does the path hold a character that patterns use?"""
    return _MAGIC.search(path) is not None


class PathPattern(Struct, frozen=True):
    """Absolute, as parts: `/logs/**/*.out` is ("logs", "**", "*.out")."""

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, path: str) -> "PathPattern":
        """From text."""
        return cls(tuple(part for part in absolute(path).split("/") if part))

    def tree(self) -> "PathPattern":
        """Everything below this path."""
        return PathPattern((*self.parts, ANY_DEPTH))

    @property
    def fixed(self) -> str:
        """The directory above the first part with magic: where a walk starts."""
        count = next((i for i, part in enumerate(self.parts) if has_magic(part)), len(self.parts))
        return "/" + "/".join(self.parts[:count])

    @property
    def finds(self) -> Callable[[str], object]:
        """Is a file with this absolute path a match? Truth by being something."""
        return _compiled(self.parts)[0].fullmatch

    @property
    def leads(self) -> Callable[[str], object]:
        """May a match lie below a directory with this absolute path? `/` is the empty one."""
        return _compiled(self.parts)[1].fullmatch


@functools.lru_cache(maxsize=512)
def _compiled(parts: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Of the files that the parts find, and of the directories on the way to them: these match the first parts."""
    names = [_expression(part) for part in parts]
    above = ""
    for name in reversed(names if parts[-1:] == (ANY_DEPTH,) else names[:-1]):
        above = f"(?:{name}{above})?"
    return re.compile("".join(names)), re.compile(above if parts else "(?!)")


def _expression(part: str) -> str:
    """Of a name, with the slash before it. Linear: what stands between two `*` is found once, as early as it can be."""
    if part == ANY_DEPTH:
        return rf"(?:/(?![.{LINK}])[^/]++)*"
    pieces = [""]
    for one in _PIECE.findall(part):
        if one[0] == "*":
            pieces.append("")
        else:
            pieces[-1] += "[^/]" if one == "?" else f"(?!/){translate(one)[4:-3]}" if one[1:] else re.escape(one)
    first, *between = pieces
    glob = first + "".join(f"(?>[^/]*?{one})" for one in between[:-1]) + "".join(f"[^/]*{one}" for one in between[-1:])
    hidden = "" if part.startswith(".") else r"(?!\.)"
    literal = rf"{re.escape(part)}(?![^/])|" if has_magic(part) else ""  # a name that looks like the pattern is one
    return rf"/{LINK}?+(?:{literal}{hidden}{glob})"


def excluded(excludes: tuple[str, ...], path: str, name: str) -> bool:
    """Does any of the patterns name this file or directory?"""
    return any(
        PathPattern.parse(exclude).finds(path) if "/" in exclude else PathPattern((exclude,)).finds(f"/{name}")
        for exclude in excludes
    )


def may_be_log(name: str, *, in_tree: bool) -> bool:
    """`in_tree`: a directory was given, so everything below it is offered: source code and data are no logs."""
    _, dot, ending = name.rpartition(".")
    return not dot or not (_NEVER.match(name) or _is_of_no_log(ending, in_tree))


@functools.lru_cache(maxsize=512)
def _is_of_no_log(ending: str, in_tree: bool) -> bool:
    return bool(_NEVER_ENDING.fullmatch(ending) or (in_tree and _NOT_IN_A_TREE.fullmatch(ending)))


def may_hold_logs(name: str) -> bool:
    """Directories worth a walk: none that hold programs. Hidden ones the pattern itself leaves out."""
    return name not in _SKIPPED_DIRECTORIES


def looks_binary(head: bytes) -> bool:
    """More than a 32nd of control characters that no terminal knows, or a known magic number. NULs are holes."""
    text = head.replace(b"\0", b"")
    if text.startswith(_BINARY):
        return True
    return len(text) - len(text.translate(None, _CONTROL)) > len(text) // 32
