"""What a board's YAML may say, read strictly, errors with the file and the panel's title. The keys of each kind of
series stand in kinds.yaml, beside what they make.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import msgspec

from megatron_monitor.config.yaml_text import read_yaml

FOLDER = Path(__file__).parent
COLUMNS = 24
"""Of Grafana's grid."""

Number = int | float
Steps = tuple[str | dict[float, str], ...]
"""Colours from a value on, the first from the least: `[green, 1.02: dark-yellow, 1.1: orange]`."""
Mapping = dict[float, tuple[str, str]]
"""Number -> its text and colour."""
Overrides = dict[str, dict[str, Any]]
"""Series or column by its name, or by `/a regular expression/` -> Grafana's properties of it."""


class BoardError(ValueError):
    """A board that cannot be built: which file, which panel, why."""


@contextmanager
def within(name: str) -> Iterator[None]:
    """What is wrong in here begins with this name."""
    try:
        yield
    except BoardError as error:
        raise BoardError(f"{name}: {error}") from error


T = TypeVar("T")


def read(name: str, kind: type[T]) -> T:
    """A YAML file of this folder. Raises BoardError with the file and the titles that lead to the fault."""
    document = read_yaml((FOLDER / name).read_text())
    if document.problems:
        problem = document.problems[0]
        raise BoardError(f"{name}:{problem.line}: {problem.message}")
    try:
        return msgspec.convert(document.value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        words, _, path = str(error).partition(" - at ")
        raise BoardError(": ".join([name, *_titles(document.value, path), words])) from error


def _titles(document: Any, path: str) -> list[str]:
    """The titles along a path such as `$.sections[0].lines[2]`; a key that has none by its name."""
    found = []
    for key, place in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        if place == "..." or (key and key not in document):
            break
        document = document[key or int(place)]
        if isinstance(document, dict) and "title" in document:
            found.append(document["title"])
    return found


@cache
def kinds() -> dict[str, Any]:
    """kinds.yaml: Grafana's own words."""
    return read("kinds.yaml", dict[str, Any])


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key that is not known is an error."""


class _Panel(_Strict, frozen=True, kw_only=True, tag_field="kind", tag=str.lower):
    """What every panel has. `width`: of 24 columns; panels without share what the others of their line leave."""

    title: str
    description: str
    width: int = 0
    overrides: Overrides = {}


class _Series(_Panel, frozen=True, kw_only=True):
    """A panel of series: one `query` with its `legend`, or several `queries`, each `legend: query`."""

    query: str = ""
    legend: str = ""
    queries: list[dict[str, str]] = []
    links_to_run: bool = False
    min: Number | None = None
    max: Number | None = None
    decimals: int | None = None

    def __post_init__(self) -> None:
        """Exactly one of the two."""
        if bool(self.query) == bool(self.queries) or any(len(pair) != 1 for pair in self.queries):
            raise ValueError("give one `query`, or several `queries`, each `legend: query`")

    def pairs(self) -> list[tuple[str, str]]:
        """(legend, query) of each."""
        return [pair for one in self.queries for pair in one.items()] or [(self.legend, self.query)]


class Link(_Strict, frozen=True, kw_only=True):
    """Where a click leads."""

    title: str
    url: str


class Column(_Strict, frozen=True, kw_only=True):
    """How a column looks. `steps` colour its text, a `mapping` fills the cell; `shown_as` stands in place of a text."""

    title: str
    unit: str = ""
    width: int | None = None
    decimals: int | None = None
    steps: str | Steps = ()
    mapping: str | Mapping = {}
    centred: bool = False
    wrapped: bool = False
    hidden: bool = False
    shown_as: str = ""
    link: Literal["", "run"] | Link = ""
    empty: str = "–"


class Table(_Panel, frozen=True, kw_only=True):
    """Queries at the end of the shown range, merged into one row a set of labels.

    `queries` are called A, B, ...; `columns`, in their order, are labels or such letters, each with its title; the
    fields in `hidden` are not shown. `transformations`, Grafana's own, take the place of merging and naming.
    """

    queries: dict[str, str]
    columns: dict[str, str | Column]
    hidden: list[str] = []
    sort: str = ""
    ascending: bool = False
    then: str = ""
    pages: bool = True
    empty: str
    transformations: list[dict[str, dict[str, Any]]] = []

    def pairs(self) -> list[tuple[str, str]]:
        """(legend, query) of each."""
        return [("", query) for query in self.queries.values()]

    def __post_init__(self) -> None:
        """Letters in their order."""
        if list(self.queries) != [chr(ord("A") + place) for place in range(len(self.queries))]:
            raise ValueError("call the queries A, B, C ... in this order")


_TYPES: dict[str, Any] = {
    "text": str, "texts": list[str], "flag": bool, "number": Number | None, "steps": str | Steps,
    "mapping": str | Mapping, "mappings": str | Mapping | list[str | Mapping], "colours": str | dict[str, str],
}  # fmt: skip
"""What kinds.yaml calls a type."""


def _series(name: str, has: dict[str, Any]) -> type[msgspec.Struct]:
    """The class of a kind of series, with the keys that it has: a type, or (type, default); words are a choice."""
    keys: list[Any] = []
    for key, told in has.items():
        wanted, *default = told if isinstance(told, list) else [told]
        known: Any = Literal[tuple(wanted)] if isinstance(wanted, list) else _TYPES[wanted]
        keys.append((key, known, *(msgspec.convert(value, known) for value in default)))
    strict: dict[str, Any] = {"frozen": True, "kw_only": True, "forbid_unknown_fields": True}
    return msgspec.defstruct(name.title(), keys, bases=(_Series,), tag_field="kind", tag=name, **strict)


if TYPE_CHECKING:
    Panel: TypeAlias = Any
else:
    of_series = (_series(name, kind["has"]) for name, kind in kinds()["kinds"].items() if "has" in kind)
    Panel = reduce(or_, of_series, Table)


class Line(_Strict, frozen=True, kw_only=True):
    """Panels side by side, `height` in units of Grafana's grid."""

    height: int
    panels: list[Panel]

    def __post_init__(self) -> None:
        """They fill the line."""
        if sum(self.widths()) != COLUMNS or not all(width > 0 for width in self.widths()):
            raise ValueError(f"the widths of {', '.join(panel.title for panel in self.panels)} do not make 24")

    def widths(self) -> list[int]:
        """Columns of each panel."""
        free = [panel.title for panel in self.panels if not panel.width]
        share = (COLUMNS - sum(panel.width for panel in self.panels)) // len(free) if free else 0
        return [panel.width or share for panel in self.panels]


class Section(_Strict, frozen=True, kw_only=True):
    """A row with a title. A collapsed one costs no query until it is opened."""

    title: str
    lines: list[Line]
    collapsed: bool = False


class Variable(_Strict, frozen=True, kw_only=True):
    """A choice above the dashboard: what a query finds, or `choices`: text -> value.

    With `several` it has All, which also matches a label that the site does not set; without `foreign` only what the
    query found.
    """

    name: str
    label: str
    query: str = ""
    choices: dict[str, str] = {}
    several: bool = True
    foreign: bool = True
    description: str = ""


class Annotation(_Strict, frozen=True, kw_only=True):
    """Vertical lines on every chart while the query has a series; `switch`: a person may turn them off and on."""

    name: str
    colour: str
    query: str
    title: str
    text: str
    enabled: bool = True
    switch: bool = True


class Sections(_Strict, frozen=True, kw_only=True):
    """A file of sections, with queries of their own."""

    queries: dict[str, str] = {}
    sections: list[Section]


class Board(Sections, frozen=True, kw_only=True):
    """A dashboard; the sections of the files named in `below` stand below its own."""

    description: str
    variables: list[str | Variable] = []
    annotations: list[Annotation] = []
    below: list[str] = []


class Shared(_Strict, frozen=True, kw_only=True):
    """What boards call by a name."""

    steps: dict[str, Steps]
    mappings: dict[str, Mapping]
    colours: dict[str, dict[str, str]]
    variables: list[Variable]


@cache
def shared() -> Shared:
    """shared.yaml."""
    return read("shared.yaml", Shared)
