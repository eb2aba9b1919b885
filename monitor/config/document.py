"""A configuration between its text and its settings: plain values, the place of each, and what is wrong with them.

Law: nobody stops at the first problem; `ConfigError` carries all of one file, in the file's order.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

Path = tuple[str | int, ...]
"""Keys and list indices from the document's root."""


class ConfigProblem(Struct, frozen=True):
    """One mistake. `line` and `column` count from 1; None for what `--set` brought."""

    path: str
    message: str
    suggestion: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = self.path or (f"line {self.line}, column {self.column}" if self.line else "")
        text = f"{place}: {self.message}" if place else self.message
        return f"{text} ({self.suggestion})" if self.suggestion else text


class ConfigError(Exception):
    """A configuration that cannot be used, with everything that is wrong with it."""

    def __init__(self, errors: Sequence[ConfigProblem], source: str | None = None) -> None:
        self.errors = list(errors)
        self.source = source
        """The file's name, None for text."""
        super().__init__("\n".join(self._placed(problem) for problem in self.errors))

    def _placed(self, problem: ConfigProblem) -> str:
        if self.source is None:
            return str(problem)
        line = f"{problem.line}:" if problem.line else ""
        return f"{self.source}:{line} {problem}"


def dotted(path: Path) -> str:
    """The path as a person writes it: `runs.0.paths`; what cannot be printed stands escaped."""
    return ".".join("".join(c if c.isprintable() else repr(c)[1:-1] for c in str(part))[:100] for part in path)


class Document(Struct):
    """`value` is what the YAML holds; `places` gives line and column of each path; `problems` what is wrong so far."""

    value: Any = None
    places: dict[Path, tuple[int, int]] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)
    overridden: list[Path] = field(default_factory=list)
    """What `--set` brought, which stands on no line of the text."""
    base: str = ""
    """The directory at which relative paths start; empty: the working directory."""

    def problem(self, path: Path, message: str, suggestion: str | None = None) -> None:
        """Notes a problem at `path`, with the place of the nearest value that has one."""
        line, column = self._place(path)
        self.problems.append(ConfigProblem(dotted(path), message, suggestion, line, column))

    def _place(self, path: Path) -> tuple[int, int] | tuple[None, None]:
        below = path not in self.places and any(brought[: len(path)] == path for brought in self.overridden)
        if below or any(path[: len(brought)] == brought for brought in self.overridden):
            return None, None
        above = (path[:length] for length in range(len(path), -1, -1))
        return next((self.places[place] for place in above if place in self.places), (None, None))
