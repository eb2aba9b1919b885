"""Which series a site means: the matchers of its settings put into every query of rules, their texts, and dashboards.

What is scraped is chosen by its labels. What the rules record has lost most of them (a run that moves to another daemon
is the same run), so every rule of a chosen set adds the label `scope`, and reads what carries it: two sets of rules in
one Prometheus neither read nor overwrite each other's series.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any


@dataclass(frozen=True)
class Settings:
    """One for rules, what they record, dashboards, manifests and the chart."""

    grafana: str = "https://grafana.example"
    """Address of Grafana."""
    runbook: str = "https://runbooks.example/megatron-monitor/runbook.md"
    """Address of runbook.md, or of a copy of it whose sections have the same anchors."""
    job: str = "(.+/)?megatron-monitor"
    """Regular expression over the label `job` of the daemons' targets; of the Operator: NAMESPACE/megatron-monitor.
    Another one chooses all that is read, and not the daemons' own targets alone."""
    selector: str = ""
    """Label matchers for every scraped series, such as `env="prod"`: where one Prometheus serves several teams."""
    goodput: float = 0.9
    """Objective: effective training time over wall time, of three days."""
    runs: int = 0
    """Runs that should be under way in each cluster; fewer are reported. 0: not reported."""


SCOPE = "scope"
_SCRAPED = r"(?:megatron_\w+|up|process_\w+|scrape_\w+)"
_RECORDED = r"(?:\w+:megatron_\w+(?::\w+)?|megatron:\w+|ALERTS)"
_SERIES = re.compile(rf"(?<![:\w$])(?:(?P<recorded>{_RECORDED})|(?P<scraped>{_SCRAPED}))\b(?![:(])(?P<brace>\{{)?")
_STRING = re.compile(r'("(?:[^"\\]|\\.)*")')
_MATCHER = r'\w+\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"'
_MATCHERS = re.compile(rf"\s*(?:{_MATCHER}(?:\s*,\s*{_MATCHER})*)?\s*,?\s*")
_QUERY = re.compile(r"`([^`]*)`")


def problem(settings: Settings) -> str:
    """What is wrong with the settings; nothing if they can be used."""
    if not _MATCHERS.fullmatch(settings.selector):
        return f'--selector {settings.selector!r} is no list of label matchers such as env="prod", team=~"a|b"'
    try:
        re.compile(settings.job)
    except re.error as error:
        return f"--job {settings.job!r} is no regular expression: {error}"
    return '--job has a " in it' if '"' in settings.job else ""


@dataclass(frozen=True)
class Selection:
    """Matchers for what is scraped, and the scope of what is recorded; both empty where all is meant."""

    matchers: str = ""
    scope: str = ""

    @staticmethod
    @lru_cache(maxsize=8)
    def of(settings: Settings) -> "Selection":
        """As the settings say. The scope is made of them: `job=~"watch", env="prod"` is `watch-env-prod`."""
        named = settings.job != Settings().job
        matchers = [f'job=~"{settings.job}"'] * named + [settings.selector.strip().rstrip(",")]
        text = ", ".join(one for one in matchers if one)
        words = re.findall(r"\w+|!", (settings.job if named else "") + " " + settings.selector)
        return Selection(text, "-".join(words).replace("!", "not"))

    def of_expression(self, text: str) -> str:
        """A PromQL expression, or `label_values(...)` of Grafana."""
        if not self.matchers:
            return text
        parts = _STRING.split(text)  # every second one is a string
        parts[::2] = [_SERIES.sub(self._chosen, part) for part in parts[::2]]
        return "".join(parts)

    def of_template(self, text: str) -> str:
        """A text of an alert, in which queries stand as `printf` takes them."""
        if not self.matchers:
            return text
        escaped = Selection(self.matchers.replace("%", "%%"), self.scope)
        return _QUERY.sub(lambda found: f"`{escaped.of_expression(found[1])}`", text)

    def of_dashboard(self, board: Any) -> Any:
        """All queries of a dashboard's JSON."""
        if isinstance(board, list):
            return [self.of_dashboard(one) for one in board]
        if not isinstance(board, dict):
            return board
        return {
            key: self.of_expression(value)
            if key in ("expr", "query", "definition") and isinstance(value, str)
            else self.of_dashboard(value)
            for key, value in board.items()
        }

    def _chosen(self, found: re.Match[str]) -> str:
        scope = f'{SCOPE}="{self.scope}"'
        matchers = scope if found["recorded"] else self.matchers
        name = found["recorded"] or found["scraped"]
        return f"{name}{{{matchers}, " if found["brace"] else f"{name}{{{matchers}}}"
