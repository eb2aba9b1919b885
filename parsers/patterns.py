"""Regular expressions that are compiled at their first use. A log contains few of the known lines, and compiling all
patterns took a fifth of the start.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, AnyStr, cast

_TIMEOUT_SECONDS = 0.05
_MAX_TIMEOUTS = 3
_MAX_CHARACTERS = 64 * 1024


class Lazy:
    """A pattern that is compiled at its first use."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.pattern, self.flags = pattern, flags

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the compiled pattern. Its methods are stored here, so that later calls cost nothing
        extra.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        compiled = re.compile(self.pattern, self.flags)
        for method in ("search", "match", "fullmatch", "finditer", "findall", "sub", "split", "groupindex"):
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


def lazy(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return `re.compile` of the pattern, delayed until its first use."""
    return cast("re.Pattern[AnyStr]", Lazy(pattern, flags))


def filled(pattern: str, parts: Mapping[str, str]) -> str:
    """Return the pattern with `{NAME}` replaced by the part of that name."""
    for name, part in parts.items():
        pattern = pattern.replace(f"{{{name}}}", part)
    return pattern


def patterned(table: dict[str, Any], rows: str) -> Iterator[tuple[dict[str, Any], re.Pattern[str]]]:
    """Return each of a table's `rows` with its pattern, which may consist of pieces and contain the table's parts."""
    return ((row, lazy(filled("".join(row["pattern"]), table["parts"]))) for row in table[rows])


class Guarded:
    """A user's regular expression on text from strangers: each search has a time-out, and after three time-outs the
    expression is disabled.
    """

    def __init__(self, pattern: str) -> None:
        import regex  # few configurations contain one

        self._compiled, self.timeouts = regex.compile(pattern), 0
        self.groupindex = self._compiled.groupindex

    def search(self, text: str) -> Any:
        """Return the first match."""
        return next(self.finditer(text), None)

    def finditer(self, text: str) -> Iterator[Any]:
        """Return all matches in the part of the text that is searched."""
        if self.timeouts < _MAX_TIMEOUTS:
            try:
                yield from self._compiled.finditer(text[:_MAX_CHARACTERS], timeout=_TIMEOUT_SECONDS)
            except TimeoutError:
                self.timeouts += 1
