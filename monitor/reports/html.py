"""The benchmark as one HTML file with its plots inside: to be mailed, opened from a disk. The markup stands in
report.html.j2.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined

from megatron_monitor.reports.benchmark import Benchmark, table
from megatron_monitor.reports.rows import Point, Row
from megatron_monitor.reports.tables import Table

_BARS_SHOWN = 40
_CURVES_SHOWN = 24
_CURVES = (("seconds per iteration", "s", "seconds_per_iteration"), ("loss", "", "lm_loss"))
_IN_VIEW = ("Run", "Iterations", "Notes")
_RATES = (
    ("Samples per second (higher is better)", "/s", "samples_per_second"),
    ("TFLOP/s per GPU", "TFLOP/s", "tflops"),
)
_WIDTH = 720
_BAR, _GAP, _LABEL = 16, 8, 230
_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 180, 64, 12, 8, 26  # of the plot of a line, and what lies around its area

Plot: TypeAlias = dict[str, Any]
"""What the template draws: texts and coordinates."""


class Bar(NamedTuple):
    """A value with its label; `low` and `high` are where most of the measured values lie."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None


def page(found: Benchmark) -> str:
    """The whole document. HTML has room: the further columns are always there."""
    environment = Environment(
        loader=PackageLoader("megatron_monitor.reports", ""), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"figure": figure, "px": "{:.1f}".format}
    return environment.get_template("report.html.j2").render(
        found=found,
        table=_in_view(table(found, whole=True).filled()),
        bars=list(_bars(found.rows)),
        curves=list(islice(filter(None, map(_curves, found.rows)), _CURVES_SHOWN)),
        width=_WIDTH, bar=_BAR, gap=_GAP, left=_LABEL, height=_HEIGHT,
    )  # fmt: skip


def _in_view(content: Table) -> Table:
    """Iterations and notes stand in view."""
    headers = content.headers
    return content.only(sorted(range(len(headers)), key=lambda place: headers[place] not in _IN_VIEW))


def _bars(rows: Iterable[Row]) -> Iterator[Plot]:
    measured = [row for row in rows if row.seconds_per_iteration is not None][:_BARS_SHOWN]
    seconds = [Bar(row.run, row.seconds_per_iteration or 0.0, row.seconds_low, row.seconds_high) for row in measured]
    yield from bars("Seconds per iteration (lower is better)", "s", seconds)
    for title, unit, name in _RATES:
        yield from bars(title, unit, [Bar(row.run, getattr(row, name)) for row in measured if getattr(row, name)])


def bars(title: str, unit: str, items: Sequence[Bar]) -> Iterator[Plot]:
    """Horizontal bars from 0, in the order given; none of no items."""
    if items:
        largest = max(max(item.value, item.high or 0.0) for item in items) or 1.0
        ticks = nice_ticks(0.0, largest)
        scale = (_WIDTH - _LABEL - 70) / max(ticks[-1], largest)
        yield {"title": title, "unit": unit, "items": items, "ticks": ticks, "x": lambda value: _LABEL + scale * value}


def _curves(row: Row) -> list[Plot]:
    plots = (line(f"{row.run}: {name}", unit, row.curves[key].stretches) for name, unit, key in _CURVES)
    return [plot for plot in plots if plot]


def line(title: str, unit: str, stretches: Sequence[Sequence[Point]]) -> Plot:
    """Lowest and highest by bucket of iterations as a band, their middle as a line, a gap between two stretches.

    Empty of fewer than two buckets.
    """
    buckets = [bucket for stretch in stretches for bucket in stretch]
    if len(buckets) < 2:
        return {}
    first, last = min(buckets)[0], max(buckets)[0]
    lowest, highest = min(low for _, low, _ in buckets), max(high for _, _, high in buckets)
    ticks = nice_ticks(lowest, highest)
    low, high = min(lowest, ticks[0]), max(highest, ticks[-1])

    def x(iteration: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (iteration - first) / ((last - first) or 1)

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / ((high - low) or 1.0)

    def points(places: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{x(iteration):.1f},{y(value):.1f}" for iteration, value in places)

    return {
        "title": title, "unit": unit, "first": first, "last": last, "low": lowest, "high": highest,
        "x": x, "y": y, "ticks": ticks, "left": _LEFT, "right": _WIDTH - _RIGHT,
        "marks": [tick for tick in nice_ticks(first, last) if first <= tick <= last],
        "bands": [
            f"{points((at, most) for at, _, most in stretch)} {points((at, least) for at, least, _ in stretch[::-1])}"
            for stretch in stretches
        ],
        "middles": [points((at, (least + most) / 2) for at, least, most in stretch) for stretch in stretches],
    }  # fmt: skip


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values (1, 2, 5 times a power of ten) that reach from below `low` to above `high`."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    start, end = math.floor(low / step), math.ceil(high / step - 1e-9)
    return [round(place * step, 12) for place in range(start, end + 1)]


def figure(value: float) -> str:
    """Four significant digits at most, no exponent for everyday sizes."""
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.3e}"
