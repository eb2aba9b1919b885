"""A rule, a group of rules, and their YAML, which people read: comments stay, expressions keep their lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import dedent, indent
from typing import Any

_METRIC = re.compile(r"(?<![:\w])((?:megatron_\w+)|up|process_start_time_seconds)\b(?![:(])(\{)?")
_STRING = re.compile(r'("(?:[^"\\]|\\.)*")')


@dataclass(frozen=True)
class Settings:
    """What a site sets: everything else in the rules is the same everywhere."""

    grafana: str = "https://grafana.example"
    """Address of Grafana."""
    runbook: str = "https://runbooks.example/megatron-monitor/runbook.md"
    """Address of runbook.md, or of a copy of it whose sections have the same anchors."""
    job: str = "(.+/)?megatron-monitor"
    """Regular expression over the label `job` of the daemons' targets; of the Operator: NAMESPACE/megatron-monitor."""
    selector: str = ""
    """Label matchers for every scraped series, such as `env="prod"`: where one Prometheus serves several teams."""
    goodput: float = 0.9
    """Objective: effective training time over wall time, of three days."""
    runs: int = 0
    """Runs that should be under way in each cluster; fewer are reported. 0: not reported."""


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
        made: dict[str, Any] = {kind: self.name, "expr": selected(dedent(self.expr).strip(), settings.selector)}
        if self.wait:
            made["for"] = self.wait
        if self.labels:
            made["labels"] = dict(self.labels)
        if self.annotations:
            made["annotations"] = dict(self.annotations)
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


def selected(expr: str, selector: str) -> str:
    """The expression with the matchers added to each scraped series; recorded ones (a:b:c) have been chosen already."""
    if not selector:
        return expr
    parts = _STRING.split(expr)  # every second one is a string
    for index in range(0, len(parts), 2):
        parts[index] = _METRIC.sub(
            lambda found: f"{found[1]}{{{selector}, " if found[2] else f"{found[1]}{{{selector}}}", parts[index]
        )
    return "".join(parts)


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
    if rule.labels:
        lines.append(
            "      labels: {" + ", ".join(f"{name}: {_plain(text)}" for name, text in rule.labels.items()) + "}"
        )
    if rule.annotations:
        lines.append("      annotations:")
        lines += [f"        {name}: {_quoted(text)}" for name, text in rule.annotations.items()]
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
