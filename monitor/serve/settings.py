"""The settings of a run, beside those of other runs and of its own earlier attempts."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from megatron_monitor.serve.formats import DASH, instant, number
from megatron_monitor.snapshot import RunSnapshot

KINDS = ("topology", "arguments", "environment", "software")
Settings = Mapping[str, Mapping[str, str]]
"""Kind -> name -> value."""


class Setting(NamedTuple):
    """A row of the table."""

    kind: str
    name: str
    values: list[str]
    """Of the run, then of each other column."""
    differs: bool


def settings_of(page: Mapping[str, Any]) -> Settings:
    """Return the settings of a run's present attempt."""
    return {kind: {name: str(value) for name, value in (page.get(kind) or {}).items()} for kind in KINDS}


def attempts_of(run: RunSnapshot) -> dict[str, tuple[str, Settings]]:
    """Return the earlier attempts that had other arguments, latest first: number, counted back from the present
    attempt -> label and settings.
    """
    arguments, attempts = dict(settings_of(run.page)["arguments"]), dict[str, tuple[str, Settings]]()
    for place, (iteration, time, changes) in enumerate(reversed(run.history.changes), 1):
        for name, before, _ in changes:
            arguments.pop(name, None)
            if before:
                arguments[name] = str(before)
        when = "" if time is None else f", {instant(time + run.history.zone)}"
        label = f"the attempt before iteration {number(iteration)}{when}"
        attempts[str(place)] = label, {"arguments": dict(arguments)}
    return attempts


def table(columns: Sequence[Settings]) -> list[Setting]:
    """Return the rows for these columns. A column without any setting of a kind differs in none of that kind."""
    rows = []
    for kind in KINDS:
        known = [column.get(kind) or {} for column in columns]
        for name in dict.fromkeys(name for settings in known for name in settings):
            values = {settings.get(name) for settings in known if settings}
            shown = [settings.get(name, DASH) for settings in known]
            rows.append(Setting(kind, name, shown, len(values) > 1))
    return sorted(rows, key=lambda row: DASH in row.values)  # what some logs do not print comes last
