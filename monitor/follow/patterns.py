"""Which files are followed: path patterns, names that can be no log, contents that can be none. Pure.

Patterns go component by component: `*`, `?`, `[...]` within a name, `**` for any depth.

A pattern is a small automaton whose states are positions in its parts, so that a walk prunes directories that cannot
match and can be continued below a mount point. Names that begin with a dot match only a part that does too.
"""

import functools
import os
import re
from collections.abc import Callable
from fnmatch import translate
from typing import TypeAlias

from msgspec import Struct

States: TypeAlias = frozenset[int]

_MAGIC = re.compile(r"[*?[]")
ANY_DEPTH = "**"
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


class Watch(Struct, frozen=True):
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


class Pattern(Struct, frozen=True):
    """Absolute, as parts: `/logs/**/*.out` is ("logs", "**", "*.out")."""

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, path: str) -> "Pattern":
        """From text; runs of `**` say no more than one."""
        return cls(_parts(absolute(path)))

    def tree(self) -> "Pattern":
        """Everything below this path."""
        return Pattern((*self.parts, ANY_DEPTH))

    @property
    def fixed(self) -> str:
        """The directory above the first part with magic: where a walk starts."""
        count = next((i for i, part in enumerate(self.parts) if has_magic(part)), len(self.parts))
        return "/" + "/".join(self.parts[:count])

    def start(self) -> States:
        """The state at the root directory."""
        return self.closed({0})

    def after(self, states: States, name: str, *, link: bool = False) -> States:
        """The state below a directory called `name`, or at a file of that name. `**` enters no link: loops."""
        found: set[int] = set()
        for state in states:
            if state == len(self.parts):
                continue
            part = self.parts[state]
            if part == ANY_DEPTH:
                if not link and not name.startswith("."):
                    found.add(state)
            elif _matches(part, name):
                found.add(state + 1)
        return self.closed(found)

    def below(self, states: States, relative: str) -> States:
        """The state after several directories."""
        for name in relative.split("/"):
            if name:
                states = self.after(states, name)
        return states

    def accepts(self, states: States) -> bool:
        """Is what led here a match?"""
        return len(self.parts) in states

    def names(self, states: States) -> Callable[[str], object]:
        """Is a file of a name a match, in a directory with these states?"""
        return _names(self, states).match

    def matches(self, path: str, states: States | None = None) -> bool:
        """Would a walk find a file with this absolute path, or, from `states` on, one that lies so far below?"""
        directory, _, name = path.rpartition("/")
        return _names_in(self, states, directory).match(name) is not None

    def closed(self, states: set[int]) -> States:
        """With what `**` lets pass."""
        closed = set(states)
        for state in states:
            if state < len(self.parts) and self.parts[state] == ANY_DEPTH:
                closed.add(state + 1)
        return frozenset(closed)


@functools.lru_cache(maxsize=512)
def _names_in(pattern: Pattern, states: States | None, directory: str) -> re.Pattern[str]:
    return _names(pattern, pattern.below(pattern.start() if states is None else states, directory))


@functools.lru_cache(maxsize=512)
def _names(pattern: Pattern, states: States) -> re.Pattern[str]:
    """Those that lead from there to a match."""
    ahead = [(pattern.parts[state], state) for state in states if state < len(pattern.parts)]
    last = [part for part, at in ahead if pattern.accepts(pattern.closed({at + (part != ANY_DEPTH)}))]
    return re.compile("|".join(_expression(part) for part in last) or "(?!)")


@functools.lru_cache(maxsize=512)
def _parts(path: str) -> tuple[str, ...]:
    parts: list[str] = []
    for part in path.split("/"):
        if part and not (part == ANY_DEPTH and parts[-1:] == [ANY_DEPTH]):
            parts.append(part)
    return tuple(parts)


def excluded(excludes: tuple[str, ...], path: str, name: str) -> bool:
    """Does any of the patterns name this file or directory?"""
    return any(
        Pattern.parse(exclude).matches(path) if "/" in exclude else _matches(exclude, name) for exclude in excludes
    )


def _matches(part: str, name: str) -> bool:
    return part == name or _compiled(part).match(name) is not None


def _expression(part: str) -> str:
    hidden = "" if part.startswith(".") else r"(?!\.)"
    literal = rf"{re.escape(part)}\Z|" if has_magic(part) else ""  # a name that looks like the pattern is one
    return f"{literal}{hidden}{translate(part)}"


@functools.lru_cache(maxsize=512)
def _compiled(part: str) -> re.Pattern[str]:
    return re.compile(_expression(part))


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
