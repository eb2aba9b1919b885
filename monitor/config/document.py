"""A configuration between text and settings: plain values, their places in the text, and their problems.

Rule: reading continues after a problem, so `ConfigError` has all problems of a file, in the file's order.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

KeyPath = tuple[str | int, ...]
"""Keys and list indices from the document's root."""


class ConfigProblem(Struct, frozen=True):
    """One mistake. `line` counts from 1; None for a value of `--set`."""

    path: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(Exception):
    """A configuration that cannot be used, with all its problems."""

    def __init__(self, errors: Sequence[ConfigProblem], source: str | None = None) -> None:
        self.errors = list(errors)
        self.source = source
        """The file's name; None for text."""
        super().__init__("\n".join(self._placed(problem) for problem in self.errors))

    def _placed(self, problem: ConfigProblem) -> str:
        if self.source is None:
            return str(problem)
        line = f"{problem.line}:" if problem.line else ""
        return f"{self.source}:{line} {problem}"


def dotted(path: KeyPath) -> str:
    """Return the path as people write it, such as `runs.0.paths`, with unprintable characters escaped."""
    return ".".join("".join(c if c.isprintable() else repr(c)[1:-1] for c in str(part))[:100] for part in path)


class Document(Struct):
    """The content of a YAML text (`value`), the line of each path, and the problems found so far."""

    value: Any = None
    lines: dict[KeyPath, int | None] = field(default_factory=dict)
    """None: set by `--set`."""
    problems: list[ConfigProblem] = field(default_factory=list)
    base: str = ""
    """Directory at which relative paths start. Empty: the working directory."""

    def problem(self, path: KeyPath, message: str, suggestion: str | None = None) -> None:
        """Add a problem at `path`, with the line of the nearest enclosing value that has one."""
        above = (path[:length] for length in range(len(path), -1, -1))
        line = next((self.lines[place] for place in above if place in self.lines), None)
        self.problems.append(ConfigProblem(dotted(path), f"{message} ({suggestion})" if suggestion else message, line))
