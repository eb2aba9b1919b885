"""Named queries in PromQL: `last_known(megatron_iteration)` and words in capitals are filled in from YAML."""

import re
from collections.abc import Mapping

from grafana.source.schema import BoardError

_MARK = re.compile(r'"(?:[^"\\]|\\.)*"|[(\[{}\])]|, ')
"""What tells where an argument ends: strings, brackets, and the comma with its blank between two arguments."""


class Queries:
    """Named queries of several tables: `name(PARAMETER, ...)` or `WORD` -> PromQL, in which others may stand."""

    def __init__(self, *tables: Mapping[str, str]) -> None:
        self._known: dict[str, tuple[list[str], str]] = {}
        for table in tables:
            for head, text in table.items():
                name, bracket, parameters = head.removesuffix(")").partition("(")
                self._known[name + bracket] = (parameters.split(", ") if parameters else [], text)
        names = (re.escape(name) if name.endswith("(") else rf"{name}\b" for name in self._known)
        self._name = re.compile(rf"\b(?:{'|'.join(names)})")

    def filled(self, text: str) -> str:
        """The PromQL that a text stands for. Raises BoardError where a call has too few or too many arguments."""
        made, at = "", 0
        while found := self._name.search(text, at):
            parameters, body = self._known[found[0]]
            arguments, end = _arguments(text, found.end()) if found[0].endswith("(") else ([], found.end())
            if not parameters and arguments == [""]:
                arguments = []
            if len(arguments) != len(parameters):
                raise BoardError(f"{text[found.start() : end]} has {len(arguments)} arguments, not {len(parameters)}")
            made += text[at : found.start()] + self.filled(_replaced(body, parameters, arguments))
            at = end
        return made + text[at:]


def _replaced(body: str, parameters: list[str], arguments: list[str]) -> str:
    values = dict(zip(parameters, arguments, strict=True))
    return re.sub(rf"\b(?:{'|'.join(parameters)})\b", lambda word: values[word[0]], body) if values else body


def _arguments(text: str, begin: int) -> tuple[list[str], int]:
    """The arguments behind an opening bracket, and where the text goes on."""
    arguments, start, depth = [], begin, 1
    for mark in _MARK.finditer(text, begin):
        if mark[0] in ("(", "[", "{"):
            depth += 1
        elif mark[0] in (")", "]", "}"):
            depth -= 1
        if depth == 0 or (depth == 1 and mark[0] == ", "):
            arguments.append(text[start : mark.start()])
            start = mark.end()
        if depth == 0:
            return arguments, start
    raise BoardError(f"a bracket is not closed: {text[begin - 20 :]}")
