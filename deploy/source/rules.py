"""The rules as a site has them: prometheus/rules/*.yml with its settings put in, comments and lines kept."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from deploy.source.selection import SCOPE, Selection, Settings

RULES = Path(__file__).parents[1] / "prometheus" / "rules"
_FAST = 5
"""Times as fast as the objective allows: MegatronGoodputBurnsFast."""
Edit = tuple[int, int, str]
"""From and to where in a text, and what stands there instead."""


def files(settings: Settings) -> dict[str, str]:
    """Path below deploy/ -> text; as they are written where the settings are nobody's."""
    return {f"prometheus/rules/{path.name}": _of_site(path, settings) for path in sorted(RULES.glob("*.yml"))}


def groups(settings: Settings) -> list[dict[str, Any]]:
    """All of them, as Prometheus's Operator takes them."""
    made: list[dict[str, Any]] = []
    for text in files(settings).values():
        made += yaml.safe_load(text)["groups"]
    for group in made:
        group["rules"] = [rule | {"expr": rule["expr"].strip()} for rule in group["rules"]]
    return made


def _of_site(path: Path, settings: Settings) -> str:
    text = path.read_text()
    if path.name == "goodput.yml":
        text = _budget(text, settings)
    for begin, end, new in sorted(_edits(text, settings), reverse=True):
        text = text[:begin] + new + text[end:]
    return text


def _budget(text: str, settings: Settings) -> str:
    """The objective in conditions and texts, and the alert that is a comment until a number of runs is set."""
    lost = round(1 - settings.goodput, 6)
    wanted = {
        " < 0.9 ": f" < {settings.goodput:g} ", "90%": f"{settings.goodput:.0%}",
        " > 0.5\n": f" > {_FAST * lost:g}\n", "10%": f"{lost:.0%}",
    }  # fmt: skip
    text = re.sub("|".join(map(re.escape, wanted)), lambda found: wanted[found[0]], text)
    if settings.runs:
        text, begin, rule = text.partition("    # - alert: MegatronFewerRuns")
        text += re.sub("(?m)^    # ", "    ", begin + rule).replace("RUNS", str(settings.runs))
    return text


def _edits(text: str, settings: Settings) -> Iterator[Edit]:
    chosen, usual = Selection.of(settings), Settings()

    def expression(expr: str) -> str:
        return chosen.of_expression(expr.replace(usual.job, settings.job))

    def note(words: str) -> str:
        addressed = words.replace(usual.grafana, settings.grafana).replace(usual.runbook, settings.runbook)
        return chosen.of_template(addressed)

    for group in _fields(yaml.compose(text))["groups"].value:
        for rule in map(_fields, _fields(group)["rules"].value):
            yield from _changed(text, rule["expr"], expression)
            if chosen.scope and "labels" in rule:  # all of them stand on one line, in braces
                at = rule["labels"].end_mark.index - len("}")
                yield at, at, f", {SCOPE}: '{chosen.scope}'"
            elif chosen.scope:
                at = rule["record"].end_mark.index
                yield at, at, f"\n      labels: {{{SCOPE}: '{chosen.scope}'}}"
            for words in _fields(rule["annotations"]).values() if "annotations" in rule else ():
                yield from _changed(text, words, note)


def _fields(mapping: Any) -> dict[str, Any]:
    return {key.value: value for key, value in mapping.value}


def _changed(text: str, scalar: Any, change: Callable[[str], str]) -> Iterator[Edit]:
    """A block keeps its lines; what stood plain or quoted is quoted."""
    begin, end = scalar.start_mark.index, scalar.end_mark.index
    block = scalar.style in ("|", ">")
    before = text[begin:end] if block else scalar.value
    after = change(before)
    if after != before:
        yield begin, end, after if block else "'" + after.replace("'", "''") + "'"
