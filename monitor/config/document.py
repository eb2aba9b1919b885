"""YAML text -> plain values with the place of each (composer.py), and `--set` on top of them. Knows no key of ours.

Law: any text gives a Document or problems with line and column, in bounded time and memory: the size, the depth and
the number of values after aliases are bounded, and a key that stands twice is a problem, not a silent loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from monitor.config.problems import ConfigProblem, Path, dotted

MAX_CHARACTERS: Final = 1_000_000


@dataclass(slots=True)
class Document:
    """`value` is what YAML says; `places` gives line and column of each path; `problems` what was wrong so far."""

    value: Any = None
    places: dict[Path, tuple[int, int]] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)
    overridden: list[Path] = field(default_factory=list)
    """What `--set` brought, which stands on no line of the text."""

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


def read_yaml(text: str) -> Document:
    """The document in `text`, None if it is empty. Never raises."""
    document = Document()
    if len(text) > MAX_CHARACTERS:
        document.problems.append(ConfigProblem("", f"the text is longer than {MAX_CHARACTERS} characters"))
    elif text:
        from monitor.config.composer import compose  # PyYAML is a tenth of a start, and most starts have no text

        compose(document, text)
    return document


def override(document: Document, setting: str) -> None:
    """Sets one key from `KEY=VALUE`: KEY by dots and list indices, VALUE as YAML; an index at the end appends."""
    key, equals, text = setting.partition("=")
    if not equals or not key:
        document.problems.append(ConfigProblem(dotted((setting,)), "expected KEY=VALUE after --set"))
        return
    path: Path = tuple(key.split("."))
    read = read_yaml(text)
    if read.problems:
        document.problems.append(ConfigProblem(key, f"the value is not valid YAML: {read.problems[0].message}"))
        return
    document.value = _placed(document, document.value, path, 0, read.value)


def _placed(document: Document, inside: Any, path: Path, depth: int, value: Any) -> Any:
    """A copy of `inside` with `value` at the rest of the path; the document itself is not changed half-way."""
    here = path[: depth + 1]
    if depth == len(path):
        document.overridden.append(path)
        return value
    part = str(path[depth])
    if isinstance(inside, list):
        if not (part.isascii() and part.isdigit() and int(part[:6]) <= len(inside)):
            document.problems.append(ConfigProblem(dotted(here), f"expected an index from 0 to {len(inside)}"))
            return inside
        index = int(part[:6])
        fixed = (*path[:depth], index, *path[depth + 1 :])
        items = inside if index < len(inside) else [*inside, None]
        placed = _placed(document, items[index], fixed, depth + 1, value)
        return [*items[:index], placed, *items[index + 1 :]]
    if inside is None:
        inside = [] if part == "0" else {}
        return _placed(document, inside, path, depth, value)
    if not isinstance(inside, Mapping):
        document.problems.append(ConfigProblem(dotted(here), "there is a plain value above this key, not a mapping"))
        return inside
    return {**inside, part: _placed(document, inside.get(part), path, depth + 1, value)}
