"""Regular expressions that are compiled when a line first asks for them: a log has few of the lines that are known, and
compiling all of them took a fifth of a start.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, AnyStr, cast


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
