"""Regular expressions that are compiled when a line first asks for them: a log has few of the lines that are known, and
compiling all of them took a fifth of a start.
"""

import re
from collections.abc import Iterator
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


def patterned(table: dict[str, Any], rows: str) -> Iterator[tuple[dict[str, Any], re.Pattern[str]]]:
    """Each of a table's `rows` and its pattern, which may stand in pieces; `{NAME}` is its part of that name."""
    for row in table[rows]:
        pattern = "".join(row["pattern"])
        for name, part in table["parts"].items():
            pattern = pattern.replace(f"{{{name}}}", part)
        yield row, lazy(pattern)
