"""The table of all runs: rows and their order, as the query of the address chooses them."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlencode

from megatron_monitor.detectors.base import RANK
from megatron_monitor.serve.formats import SYMBOLS
from megatron_monitor.serve.settings import KINDS
from megatron_monitor.snapshot import RunSnapshot

_ROWS = 50  # at first and per click: 500 are too many for a phone
_RECENT_SECONDS = 86400.0  # a run that died is sorted to the top for so long after its last progress
_DEAD = ("crashed", "lost")


def worst_first(runs: Iterable[RunSnapshot], now: float) -> list[RunSnapshot]:
    """Return runs in the order: critical, died in the last day, with a warning, alive, over."""
    return sorted(runs, key=lambda run: _order(run.page, now))


def _order(page: dict[str, Any], now: float) -> tuple[int, float, str]:
    severities = {item["severity"] for item in page["incidents"]}
    state, last, name = page["state"], page.get("progress_at") or 0.0, page["run"]
    if "critical" in severities or state == "hung":
        return 0, 0.0, name
    if state in (*_DEAD, "stopped", "finished"):
        return (1 if state in _DEAD and now - last < _RECENT_SECONDS else 4), -last, name  # latest end first
    return (2 if "warning" in severities else 3), 0.0, name


class Choice(NamedTuple):
    """What a reader has chosen. Fields have the names of the query's parameters."""

    q: str = ""
    state: tuple[str, ...] = ()
    sort: str = ""
    """Key of a column, after `-` if the largest value is first; "" is the default order."""
    rows: int = _ROWS

    @classmethod
    def of(cls, query: str) -> Self:
        """Return the choice in the query of an address; unknown values are ignored."""
        given = parse_qs(query[:4000], errors="replace")
        first = {name: values[0] for name, values in given.items()}
        rows = first.get("rows", "")
        count = min(int(rows), 10_000) if rows.isascii() and rows.isdigit() and len(rows) < 9 else _ROWS
        return cls(first.get("q", ""), tuple(given.get("state", ())), first.get("sort", ""), count)

    def address(self, **changed: Any) -> str:
        """Return the query of this choice with some values changed."""
        values, usual = self._replace(**changed)._asdict(), Choice()._asdict()
        return "?" + urlencode({name: value for name, value in values.items() if value != usual[name]}, doseq=True)

    def next_sort(self, key: str) -> str:
        """Return the address after a click on a heading: largest first, smallest first, then the default order."""
        return self.address(sort={f"-{key}": key, key: ""}.get(self.sort, f"-{key}"))

    def rows_of(self, runs: Iterable[RunSnapshot], now: float) -> tuple[list[RunSnapshot], int, list[tuple[str, int]]]:
        """Return the runs to show, how many more fit, and the number of runs by state."""
        ordered = worst_first(runs, now)
        states = Counter(run.page["state"] for run in ordered) | Counter(dict.fromkeys(self.state, 0))
        fitting = self._sorted([run for run in ordered if self._fits(run.page)])
        in_order = sorted(states.items(), key=lambda item: (*SYMBOLS, item[0]).index(item[0]))
        rest = max(0, len(fitting) - self.rows)
        return fitting[: self.rows], rest, in_order

    def _fits(self, page: dict[str, Any]) -> bool:
        in_state = not self.state or page["state"] in self.state
        return in_state and all(_matches(page, word) for word in self.q.lower().split())

    def _sorted(self, runs: list[RunSnapshot]) -> list[RunSnapshot]:
        if not self.sort:
            return runs
        key = self.sort.removeprefix("-")
        known = [(value, run) for run in runs if (value := _value(run.page, key)) is not None]
        known.sort(key=lambda item: item[0], reverse=self.sort.startswith("-"))
        return [run for _, run in known] + [run for run in runs if _value(run.page, key) is None]


def _value(page: dict[str, Any], key: str) -> Any:
    """Return the value by which a column is sorted; None if it is unknown."""
    if key in ("run", "state"):
        return page[key]
    if key == "incidents":
        return max((RANK[item["severity"]] for item in page["incidents"]), default=-1)
    value = page.get("slowdown_ratio" if key == "over_normal" else key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return -value if key == "progress_at" else value  # the longest silence is the largest


def _matches(page: dict[str, Any], word: str) -> bool:
    """Return True if the word is part of the run's name, or is `NAME=VALUE` of one of its settings."""
    if word in page["run"].lower():
        return True
    name, equals, value = word.partition("=")
    settings = (item for kind in KINDS for item in (page.get(kind) or {}).items()) if equals else ()
    plain = name.lstrip("-").replace("-", "_")
    return any(key.lower().replace("-", "_") == plain and _same(str(found), value) for key, found in settings)


def _same(found: str, wanted: str) -> bool:
    """Compare as numbers if both are; an empty value is any value."""
    try:
        return float(found) == float(wanted)
    except ValueError:
        return not wanted or found.lower() == wanted
