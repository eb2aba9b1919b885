"""What a PromQL expression uses, and which labels its result has, against the catalogue.

Grafana's variables are filled in first. Problems come back as sentences; no problem is an empty list.
"""

import functools
import re
from dataclasses import dataclass, field
from typing import Any

import promql_parser as parser

from tests.grafana.history import KNOWN, base_name

SITE = frozenset({"cluster", "job", "instance"})
"""Labels that a scrape configuration may add to any series."""
# For a day sampled every minute: $__rate_interval is four samples.
BUILT_IN = {
    "__rate_interval": "4m",
    "__interval": "1m",
    "__range": "21600s",
}
SET_OPERATORS = {"and", "unless"}
KEEP_LABELS = {"topk", "bottomk"}


def fill(text: str, values: dict[str, str]) -> str:
    """The text with $name and ${name[:format]} replaced, as Grafana does; a name that is not known is an error."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        known = {**BUILT_IN, **values}
        if name not in known:
            raise KeyError(f"${name} is no variable of the dashboard")
        return known[name]

    return re.sub(r"\$(?:\{(\w+)(?::\w+)?\}|([a-z_]\w*))", value, text)  # $1 is a group of label_replace


@dataclass
class Usage:
    """What an expression uses."""

    metrics: set[str] = field(default_factory=set)
    bare_counters: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    labels: frozenset[str] = frozenset()


@functools.cache
def study(expression: str) -> Usage:
    """Parse and walk; a syntax error is a problem like another. Most dashboards that are looked at are the same."""
    usage = Usage()
    try:
        tree = parser.parse(expression)
    except ValueError as error:
        usage.problems.append(f"does not parse: {error}")
        return usage
    usage.labels = _labels(tree, usage, "")
    return usage


def _labels(node: Any, usage: Usage, function: str) -> frozenset[str]:
    kind = type(node).__name__
    if kind in ("NumberLiteral", "StringLiteral"):
        return frozenset()
    if kind in ("ParenExpr", "UnaryExpr", "SubqueryExpr"):
        return _labels(node.expr, usage, function)
    if kind == "MatrixSelector":
        return _labels(node.vector_selector, usage, function)
    if kind == "VectorSelector":
        return _selector(node, usage, function)
    if kind == "Call":
        return _call(node, usage)
    if kind == "AggregateExpr":
        return _aggregation(node, usage)
    assert kind == "BinaryExpr", kind
    return _binary(node, usage)


def _selector(node: Any, usage: Usage, function: str) -> frozenset[str]:
    name = base_name(node.name or "")
    if name not in KNOWN:
        usage.problems.append(f"no metric is called {node.name}")
        return frozenset()
    usage.metrics.add(name)
    kind, labels = KNOWN[name]
    known = SITE | set(labels) | ({"le"} if node.name.endswith("_bucket") else set())
    for matcher in node.matchers.matchers:
        if matcher.name not in known:
            usage.problems.append(f"{node.name} has no label {matcher.name}")
    if kind == "counter" and function not in ("rate", "increase", "irate", "resets", "changes"):
        usage.bare_counters.add(name)
    return frozenset(known)


def _call(node: Any, usage: Usage) -> frozenset[str]:
    labels = frozenset().union(*(_labels(argument, usage, node.func.name) for argument in node.args))
    if node.func.name == "label_replace":
        return labels | {node.args[1].val}
    return labels - {"le"} if node.func.name == "histogram_quantile" else labels


def _aggregation(node: Any, usage: Usage) -> frozenset[str]:
    inner = _labels(node.expr, usage, "")
    if str(node.op) in KEEP_LABELS:
        return inner
    by = frozenset(node.modifier.labels) if node.modifier else frozenset()
    if node.modifier and str(node.modifier.type).endswith("Without"):
        by = inner - by
    _need(by, inner, f"{node.op} by", usage)
    return by | ({node.param.val} if str(node.op) == "count_values" else frozenset())


def _binary(node: Any, usage: Usage) -> frozenset[str]:
    left, right = _labels(node.lhs, usage, ""), _labels(node.rhs, usage, "")
    scalar = {"NumberLiteral"}
    if type(node.lhs).__name__ in scalar:
        return right
    if type(node.rhs).__name__ in scalar or node.modifier is None or node.modifier.matching is None:
        return left | right if str(node.op) == "or" else left or right
    on = frozenset(node.modifier.matching.labels)
    if str(node.modifier.matching.type).endswith("Exclude"):
        on = (left | right) - on - {"le"} if str(node.op) not in SET_OPERATORS | {"or"} else frozenset()
    _need(on, left, f"{node.op} on, left", usage)
    _need(on, right, f"{node.op} on, right", usage)
    if str(node.op) in SET_OPERATORS:
        return left
    if str(node.op) == "or":
        return left | right
    extra = frozenset(node.modifier.group_labels or ())
    many = str(node.modifier.card)
    if many.endswith("ManyToOne"):
        _need(extra, right, "group_left", usage)
        return left | extra
    if many.endswith("OneToMany"):
        _need(extra, left, "group_right", usage)
        return right | extra
    return on


def _need(wanted: frozenset[str], there: frozenset[str], where: str, usage: Usage) -> None:
    for label in sorted(wanted - there - SITE):
        usage.problems.append(f"{where}: no label {label} there")
