"""Path patterns, component by component: `*`, `?`, `[...]` within a name, `**` for any depth. Pure.

A pattern is a small automaton whose states are positions in its parts, so that a walk prunes directories that cannot
match and can be continued below a mount point. Names that begin with a dot match only a part that does too.
"""

from __future__ import annotations

import functools
import os
import re
from fnmatch import translate
from typing import TypeAlias

from msgspec import Struct

States: TypeAlias = frozenset[int]

_MAGIC = re.compile(r"[*?[]")
ANY_DEPTH = "**"


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
    def parse(cls, path: str) -> Pattern:
        """From text; runs of `**` say no more than one."""
        return cls(_parts(absolute(path)))

    def tree(self) -> Pattern:
        """Everything below this path."""
        return Pattern((*self.parts, ANY_DEPTH))

    @property
    def fixed(self) -> str:
        """The directory above the first part with magic: where a walk starts."""
        count = next((i for i, part in enumerate(self.parts) if has_magic(part)), len(self.parts))
        return "/" + "/".join(self.parts[:count])

    @property
    def any_depth(self) -> bool:
        """Does it end in `**`, so that directories are no matches of their own?"""
        return self.parts[-1:] == (ANY_DEPTH,)

    def start(self) -> States:
        """The state at the root directory."""
        return self._closed({0})

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
        return self._closed(found)

    def below(self, states: States, relative: str) -> States:
        """The state after several directories."""
        for name in relative.split("/"):
            if name:
                states = self.after(states, name)
        return states

    def accepts(self, states: States) -> bool:
        """Is what led here a match?"""
        return len(self.parts) in states

    def matches(self, path: str) -> bool:
        """Would a walk find a file with this absolute path?"""
        return self.accepts(self.below(self.start(), path))

    def _closed(self, states: set[int]) -> States:
        closed = set(states)
        for state in states:
            if state < len(self.parts) and self.parts[state] == ANY_DEPTH:
                closed.add(state + 1)
        return frozenset(closed)


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
    if name.startswith(".") and not part.startswith("."):
        return False
    return part == name or (has_magic(part) and _compiled(part).match(name) is not None)


@functools.lru_cache(maxsize=512)
def _compiled(part: str) -> re.Pattern[str]:
    return re.compile(translate(part))
