"""Regular expressions that are compiled when a line first asks for them: a log has few of the lines that are known, and
compiling all of them took a fifth of a start.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, AnyStr, cast

_TIMEOUT_SECONDS = 0.05
_MAX_TIMEOUTS = 3
_MAX_CHARACTERS = 64 * 1024


class Lazy:
    """A pattern that is not compiled yet: its first use makes it whole."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.pattern, self.flags = pattern, flags

    def __getattr__(self, name: str) -> Any:
        """What the compiled one has; its methods are kept here, so that further uses cost no call more."""
        if name.startswith("__"):
            raise AttributeError(name)
        compiled = re.compile(self.pattern, self.flags)
        for method in ("search", "match", "fullmatch", "finditer", "findall", "sub", "split", "groupindex"):
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


def lazy(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """`re.compile` at the first use."""
    return cast("re.Pattern[AnyStr]", Lazy(pattern, flags))


def filled(pattern: str, parts: Mapping[str, str]) -> str:
    """The pattern with its parts: `{NAME}` is the one of that name."""
    for name, part in parts.items():
        pattern = pattern.replace(f"{{{name}}}", part)
    return pattern


def patterned(table: dict[str, Any], rows: str) -> Iterator[tuple[dict[str, Any], re.Pattern[str]]]:
    """Each of a table's `rows` and its pattern, which may stand in pieces and have the table's parts."""
    return ((row, lazy(filled("".join(row["pattern"]), table["parts"]))) for row in table[rows])


class Guarded:
    """A regular expression that somebody wrote, on text that anybody may write: each search has a time-out, and what
    has run into it three times is switched off.
    """

    def __init__(self, pattern: str) -> None:
        import regex  # few configurations hold one

        self._compiled, self.timeouts = regex.compile(pattern), 0
        self.groupindex = self._compiled.groupindex

    def search(self, text: str) -> Any:
        """The first match."""
        return next(self.finditer(text), None)

    def finditer(self, text: str) -> Iterator[Any]:
        """All matches, of as much of the text as is looked at."""
        if self.timeouts < _MAX_TIMEOUTS:
            try:
                yield from self._compiled.finditer(text[:_MAX_CHARACTERS], timeout=_TIMEOUT_SECONDS)
            except TimeoutError:
                self.timeouts += 1
