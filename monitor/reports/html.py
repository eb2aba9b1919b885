"""The benchmark as one HTML file with its bars inside: to be mailed, opened from a disk. The markup stands in
report.html.j2.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from megatron_monitor.reports.benchmark import Benchmark, table
from megatron_monitor.reports.rows import Row
from megatron_monitor.reports.tables import Table

_BARS_SHOWN = 40
_IN_VIEW = ("Run", "Iterations", "Notes")
_PLOTS = (
    ("Seconds per iteration (lower is better)", "seconds_per_iteration"),
    ("Samples per second (higher is better)", "samples_per_second"),
    ("TFLOP/s per GPU", "tflops"),
)


def page(found: Benchmark) -> str:
    """The whole document. HTML has room: the further columns are always there."""
    environment = Environment(
        loader=PackageLoader("megatron_monitor.reports", ""), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["figure"] = _figure
    return environment.get_template("report.html.j2").render(
        found=found, table=_in_view(table(found, whole=True).filled()), plots=list(_plots(found.rows))
    )


def _in_view(content: Table) -> Table:
    """Iterations and notes stand in view."""
    headers = content.headers
    return content.only(sorted(range(len(headers)), key=lambda place: headers[place] not in _IN_VIEW))


def _plots(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """A title, and the rows as bars: label, value, its share of the longest bar in percent."""
    measured = [row for row in rows if row.seconds_per_iteration is not None][:_BARS_SHOWN]
    for title, name in _PLOTS:
        values = [(row, value) for row in measured if (value := getattr(row, name))]
        longest = max((value for _, value in values), default=0.0)
        if values:
            yield {"title": title, "bars": [(row.run, value, 100 * value / longest) for row, value in values]}


def _figure(value: float) -> str:
    """Four significant digits at most, no exponent for everyday sizes."""
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.3e}"
