"""A rule, a group of rules, and their YAML, which people read: comments stay, expressions keep their lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import dedent, indent
from typing import Any

from deploy.source.selection import Selection
from deploy.source.settings import Settings


@dataclass(frozen=True)
class Rule:
    """An alert, or a recorded series."""

    name: str
    expr: str
    comment: str = ""
    wait: str = ""
    """`for`: alerts only."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    """None: a recorded series."""

    def data(self, settings: Settings) -> dict[str, Any]:
        """As Prometheus takes it."""
        kind = "alert" if self.annotations else "record"
        chosen = Selection.of(settings)
        made: dict[str, Any] = {kind: self.name, "expr": chosen.of_expression(dedent(self.expr).strip())}
        if self.wait:
            made["for"] = self.wait
        labels = {**self.labels, **chosen.labels}
        if labels:
            made["labels"] = labels
        if self.annotations:
            made["annotations"] = {name: chosen.of_template(text) for name, text in self.annotations.items()}
        return made


@dataclass(frozen=True)
class Group:
    """Rules that are evaluated one after the other."""

    name: str
    rules: Sequence[Rule]
    comment: str = ""
    interval: str = ""

    def data(self, settings: Settings) -> dict[str, Any]:
        """As Prometheus takes it."""
        made: dict[str, Any] = {"name": self.name}
        if self.interval:
            made["interval"] = self.interval
        return made | {"rules": [rule.data(settings) for rule in self.rules]}


def yaml_text(groups: Sequence[Group], settings: Settings, head: str) -> str:
    """A rule file."""
    lines = [*_comment(head, ""), "groups:"]
    for group in groups:
        lines += [*_comment(group.comment, "  "), f"  - name: {group.name}"]
        if group.interval:
            lines.append(f"    interval: {group.interval}")
        lines.append("    rules:")
        for number, rule in enumerate(group.rules):
            lines += [""] if number and (rule.annotations or rule.comment) else []
            lines += _rule(rule, settings)
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _rule(rule: Rule, settings: Settings) -> list[str]:
    made = rule.data(settings)
    kind = next(iter(made))
    lines = [*_comment(rule.comment, "    "), f"    - {kind}: {rule.name}"]
    if "\n" in made["expr"]:
        lines += ["      expr: |", *indent(made["expr"], " " * 8).splitlines()]
    else:
        lines.append(f"      expr: {_plain(made['expr'])}")
    if rule.wait:
        lines.append(f"      for: {rule.wait}")
    if "labels" in made:
        lines.append(
            "      labels: {" + ", ".join(f"{name}: {_plain(text)}" for name, text in made["labels"].items()) + "}"
        )
    if rule.annotations:
        lines.append("      annotations:")
        lines += [f"        {name}: {_quoted(text)}" for name, text in made["annotations"].items()]
    return lines


def _comment(text: str, margin: str) -> list[str]:
    return [f"{margin}# {line}".rstrip() for line in text.strip().splitlines()]


def _plain(text: str) -> str:
    """Quoted where YAML would not read it as the same text."""
    return (
        text
        if re.fullmatch(r"[A-Za-z][\w:]*(?:[\w ()>\[\]{}=~\"|+.,*/!-]|:(?=\w))*", text) and ": " not in text
        else _quoted(text)
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
