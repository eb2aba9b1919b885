"""What can be wrong with a configuration: a problem has a place, a message, and a suggestion where there is one.

Law: nobody stops at the first problem; `ConfigError` carries all of one file, in the file's order.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

Path = tuple[str | int, ...]
"""Keys and list indices from the document's root, as `--set` takes them when joined by dots."""


class ConfigProblem(Struct, frozen=True):
    """One thing to mend. `line` and `column` count from 1; None for what `--set` brought."""

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
