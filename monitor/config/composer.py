"""A document's text: YAML's nodes -> plain values and the place of each. The only module that knows PyYAML."""

from __future__ import annotations

from typing import Any, Final

import yaml

from monitor.config.document import Document
from monitor.config.problems import ConfigProblem, Path

MAX_VALUES: Final = 20_000
"""Values after aliases are expanded; a real file has a few hundred."""
MAX_DEPTH: Final = 30

_PLAIN_TAGS: Final = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_SCALAR_TROUBLE = (yaml.YAMLError, ValueError, ArithmeticError)  # a date that is none, an integer of 10,000 digits


def compose(document: Document, text: str) -> None:
    """Puts what `text` says, or what is wrong with it, into the empty `document`. Never raises."""
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
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                raise _refusal(key_node, "a key must be plain text")
            place = (*path, key)
            mark = key_node.start_mark
            if key in mapping:
                first = self._document.places[place][0]
                self._document.places[place] = (mark.line + 1, mark.column + 1)
                self._document.problem(place, f"this key stands twice, first on line {first}")
            else:
                self._document.places[place] = (mark.line + 1, mark.column + 1)
            mapping[key] = self.value(value_node, place)
        return merged | mapping
