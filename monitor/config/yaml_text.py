"""YAML text -> a Document, and `--set` on top of it. The only module that knows PyYAML. Knows no key of ours.

Law: any text gives values or problems with line and column, in bounded time and memory: the size, the depth and the
number of values after aliases are bounded, and a key that stands twice is a problem, not a silent loss.
"""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from megatron_monitor.config.document import ConfigProblem, Document, Path, dotted

MAX_CHARACTERS: Final = 1_000_000
MAX_VALUES: Final = 20_000
"""Values after aliases are expanded; a real file has a few hundred."""
MAX_DEPTH: Final = 30


def read_yaml(text: str) -> Document:
    """The document in `text`, None if it is empty. Never raises."""
    document = Document()
    if len(text) > MAX_CHARACTERS:
        document.problems.append(ConfigProblem("", f"the text is longer than {MAX_CHARACTERS} characters"))
    elif text:
        _compose(document, text)
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
        return _placed(document, [] if part == "0" else {}, path, depth, value)
    if not isinstance(inside, Mapping):
        document.problems.append(ConfigProblem(dotted(here), "there is a plain value above this key, not a mapping"))
        return inside
    return {**inside, part: _placed(document, inside.get(part), path, depth + 1, value)}


_PLAIN_TAGS: Final = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_SCALAR_TROUBLE = (yaml.YAMLError, ValueError, ArithmeticError)  # a date that is none, an integer of 10,000 digits


def _compose(document: Document, text: str) -> None:
    """Put the values of `text`, or what is wrong with it, into the empty `document`. Never raises."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is not None:
            document.value = _Reader(document, loader).value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = error.problem or error.context or "not valid YAML"
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        document.problems.append(ConfigProblem("", message, None, line, column))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        document.problems.append(ConfigProblem("", "a character that YAML does not allow", None, line, column))
    except RecursionError:  # the composer itself recurses, before we can count the depth
        document.problems.append(ConfigProblem("", f"nested more than {MAX_DEPTH} deep"))


def _refusal(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, problem, node.start_mark)


class _Reader:
    """Turns nodes into values, and notes places and keys that stand twice."""

    def __init__(self, document: Document, loader: yaml.SafeLoader) -> None:
        self._document = document
        self._loader = loader
        self._values = 0

    def value(self, node: yaml.Node, path: Path) -> Any:
        self._count(node, path)
        mark = node.start_mark
        self._document.places.setdefault(path, (mark.line + 1, mark.column + 1))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            return self._loader.construct_object(node)
        except _SCALAR_TROUBLE as error:
            problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else None
            self._document.problem(path, problem or "a value that YAML cannot read", "put it in quotes")
            return None

    def _count(self, node: yaml.Node, path: Path) -> None:
        self._values += 1
        if len(path) > MAX_DEPTH:  # an alias to what it stands in ends here too
            raise _refusal(node, f"nested more than {MAX_DEPTH} deep")
        if self._values > MAX_VALUES:
            raise _refusal(node, f"more than {MAX_VALUES} values after its aliases are expanded")
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
            raise _refusal(node, f"could not determine a constructor for the tag {node.tag!r}")

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                for base in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    if not isinstance(base, yaml.MappingNode):
                        self._document.problem((*path, "<<"), "expected a mapping to merge")
                        continue
                    self._count(base, path)
                    merged = self._mapping(base, path) | merged
                continue
            # The text as written, so that `on:` and `2340723:` are the keys that the reader of the file sees.
            if not isinstance(key_node, yaml.ScalarNode):
                raise _refusal(key_node, "a key must be plain text")
            key, mark = key_node.value, key_node.start_mark
            place = (*path, key)
            first = self._document.places[place] if key in mapping else None
            self._document.places[place] = (mark.line + 1, mark.column + 1)
            if first is not None:
                self._document.problem(place, f"this key stands twice, first on line {first[0]}")
            mapping[key] = self.value(value_node, place)
        return merged | mapping
