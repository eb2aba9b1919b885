"""Turns YAML text and `--set` into a Document. The only module that uses PyYAML.

Any text yields values, or problems with line and column, in bounded time and memory: depth and the number of values
after aliases are bounded. A duplicate key is a problem.
"""

from pathlib import Path
from typing import Any, Final

import yaml

from megatron_monitor.config.document import ConfigProblem, Document, KeyPath, dotted

_MAX_BYTES: Final = 256 * 1024  # PyYAML takes 10 s per megabyte; a real file has some KB
MAX_VALUES: Final = 20_000
"""Values after aliases are expanded. A real file has a few hundred."""
MAX_DEPTH: Final = 30
_SCALAR_ERRORS = (yaml.YAMLError, ValueError, ArithmeticError)  # an impossible date, an integer of 10,000 digits


def read_file(path: Path) -> Document:
    """Return the document in a file. Never raises."""
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
        if len(data) <= _MAX_BYTES:
            return read_yaml(data.decode("utf-8-sig"))
        problem = ConfigProblem("", f"is longer than {_MAX_BYTES // 1024} KiB")
    except OSError as error:
        problem = ConfigProblem("", error.strerror or str(error))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = ConfigProblem("", f"not UTF-8 text, from byte {error.start}", line)
    return Document(problems=[problem])


def read_yaml(text: str) -> Document:
    """Return the document in `text`; its value is None if the text is empty. Never raises."""
    document = Document()
    try:
        loader = yaml.SafeLoader(text)
        if (node := loader.get_single_node()) is not None:
            document.value = _Reader(document, loader).value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = error.problem or error.context or "not valid YAML"
        line = mark.line + 1 if mark else None
        place = f"line {line}, column {mark.column + 1}" if mark else ""
        document.problems.append(ConfigProblem(place, message, line))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        document.problems.append(ConfigProblem(f"line {line}", "a character that YAML does not allow", line))
    except RecursionError:  # raised by PyYAML's composer before the depth is counted
        document.problems.append(ConfigProblem("", f"nested more than {MAX_DEPTH} deep"))
    return document


def override(document: Document, setting: str) -> None:
    """Set one key from `KEY=VALUE`: KEY with dots, VALUE as YAML. A list is given as a whole."""
    key, equals, text = setting.partition("=")
    if not equals or not key:
        document.problems.append(ConfigProblem(dotted((setting,)), "expected KEY=VALUE after --set"))
        return
    read = read_yaml(text)
    if read.problems:
        document.problems.append(ConfigProblem(key, f"the value is not valid YAML: {read.problems[0].message}"))
        return
    *above, last = key.split(".")
    inside = document.value = {} if document.value is None else document.value
    for part in above:
        if isinstance(inside, dict):
            inside[part] = inside = {} if inside.get(part) is None else inside[part]
    if not isinstance(inside, dict):
        document.problems.append(ConfigProblem(dotted((key,)), "the value above this key is not a mapping"))
        return
    inside[last] = read.value
    path: KeyPath = (*above, last)
    document.lines = {known: line for known, line in document.lines.items() if known[: len(path)] != path}
    for length in range(len(path) + 1):
        document.lines.setdefault(path[:length], None)


class _Reader:
    """Turns nodes into values, and records places and duplicate keys."""

    def __init__(self, document: Document, loader: yaml.SafeLoader) -> None:
        self._document, self._loader, self._values = document, loader, 0

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._values += 1
        if len(path) > MAX_DEPTH:  # also stops at a recursive alias
            raise yaml.MarkedYAMLError(None, None, f"nested more than {MAX_DEPTH} deep", node.start_mark)
        if self._values > MAX_VALUES:
            problem = f"more than {MAX_VALUES} values after its aliases are expanded"
            raise yaml.MarkedYAMLError(None, None, problem, node.start_mark)
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            return self._loader.construct_object(node)
        except _SCALAR_ERRORS as error:
            reason = error.problem if isinstance(error, yaml.MarkedYAMLError) else None
            self._document.problem(path, reason or "a value that YAML cannot read", "put it in quotes")
            return None

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            # The key is the text as written, also for `on:` and `2340723:`.
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(None, None, "a key must be plain text", key_node.start_mark)
            key = key_node.value
            first = self._document.lines.get((*path, key))
            self._document.lines[*path, key] = key_node.start_mark.line + 1
            if key in mapping:
                self._document.problem((*path, key), f"duplicate key, first on line {first}")
            mapping[key] = self.value(value_node, (*path, key))
        return mapping
