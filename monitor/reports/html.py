"""The benchmark, and two runs compared, as one HTML file with its plots inside: to be mailed, opened from a disk. No
script: styles sort the table.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import islice
from pkgutil import get_data
from typing import Any, NamedTuple, TypeAlias

from megatron_monitor.reports import comparison, tables
from megatron_monitor.reports.benchmark import Benchmark, table
from megatron_monitor.reports.rows import Row
from megatron_monitor.reports.tables import Table

# Two plots as SVG text: bars with spread, and a line with its band. No script, no network; colours come from the page.
#
# The page's CSS gives --ink, --quiet, --mark, --band. Every bar and every plot has a <title>, so that a pointer and a
# screen reader get the figure itself.

_WIDTH = 720
_BAR, _GAP, _LABEL = 16, 8, 230


class Bar(NamedTuple):
    """A value with its label; `low` and `high` are where most of the measured values lie."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None


def bars(title: str, unit: str, items: Sequence[Bar]) -> str:
    """Horizontal bars from 0, in the order given."""
    top = 8
    height = top + len(items) * (_BAR + _GAP) + 26
    largest = max((max(item.value, item.high or 0.0) for item in items), default=0.0) or 1.0
    ticks = nice_ticks(0.0, largest)
    end = max(ticks[-1], largest)
    room = _WIDTH - _LABEL - 70

    def x(value: float) -> float:
        return _LABEL + room * value / end

    out = [_open(height, title)]
    for tick in ticks:
        out.append(_line(x(tick), top, x(tick), height - 22, "grid"))
        out.append(_text(x(tick), height - 8, figure(tick), "middle"))
    for place, item in enumerate(items):
        y = top + place * (_BAR + _GAP) + _GAP / 2
        spread = "" if item.low is None or item.high is None else f", {figure(item.low)} to {figure(item.high)}"
        out.append(f"<g><title>{escape(item.label)}: {figure(item.value)} {escape(unit)}{spread}</title>")
        label = item.label if len(item.label) <= 34 else "…" + item.label[-33:]
        out.append(_text(_LABEL - 8, y + 12, label, "end"))
        width = max(1.0, x(item.value) - _LABEL)
        out.append(f'<rect class="bar" x="{_LABEL}" y="{y:.1f}" width="{width:.1f}" height="{_BAR}"/>')
        reach = x(item.value)
        if item.low is not None and item.high is not None and item.high > item.low:
            out.append(_line(x(item.low), y + _BAR / 2, x(item.high), y + _BAR / 2, "spread"))
            reach = max(reach, x(item.high))
        out.append(_text(reach + 6, y + 12, figure(item.value), "start") + "</g>")
    return "".join(out) + "</svg>"


Stretches: TypeAlias = Sequence[Sequence[tuple[int, float, float]]]


def line(title: str, unit: str, stretches: Stretches, height: int = 180, beside: Stretches = ()) -> str:
    """Lowest and highest by bucket of iterations as a band, their middle as a line, a gap between two stretches; those
    `beside` in another colour.

    Empty of fewer than two buckets.
    """
    buckets = [bucket for stretch in (*stretches, *beside) for bucket in stretch]
    if len(buckets) < 2:
        return ""
    firsts, lows, highs = zip(*buckets, strict=True)
    first, last, low, high = int(min(firsts)), int(max(firsts)), float(min(lows)), float(max(highs))
    ticks = nice_ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    left, right, top, bottom = 64, 12, 8, 26
    span = (last - first) or 1

    def x(iteration: float) -> float:
        return left + (_WIDTH - left - right) * (iteration - first) / span

    def y(value: float) -> float:
        return top + (height - top - bottom) * (high - value) / ((high - low) or 1.0)

    out = [_open(height, f"{title}, {figure(low)} to {figure(high)} {unit}, iterations {first} to {last}")]
    for tick in ticks:
        out.append(_line(left, y(tick), _WIDTH - right, y(tick), "grid"))
        out.append(_text(left - 6, y(tick) + 4, figure(tick), "end"))
    marks = [tick for tick in nice_ticks(first, last) if first <= tick <= last]
    out += [_text(x(tick), height - 8, f"{tick:g}", "middle") for tick in marks]
    for number, stretch in enumerate((*stretches, *beside)):
        other = " other" * (number >= len(stretches))
        upper = [_at(x(place), y(most)) for place, _, most in stretch]
        lower = [_at(x(place), y(least)) for place, least, _ in reversed(stretch)]
        middle = [_at(x(place), y((least + most) / 2)) for place, least, most in stretch]
        out.append(f'<polygon class="band{other}" points="{" ".join(upper + lower)}"/>')
        out.append(f'<polyline class="curve{other}" points="{" ".join(middle)}"/>')
    return "".join(out) + "</svg>"


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


def _at(x: float, y: float) -> str:
    return f"{x:.1f},{y:.1f}"


def _open(height: float, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(title)}</title>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


_BARS_SHOWN = 40
_CURVES_SHOWN = 24
_CURVES = (("seconds per iteration", "s", "seconds_per_iteration"), ("loss", "", "lm_loss"))
_IN_VIEW = ("Run", "Iterations", "Notes")
_RATES = (
    ("samples_per_second", "Samples per second (higher is better)", "Samples per second", "/s"),
    ("tflops", "TFLOP/s per GPU", "TFLOP/s per GPU by run", "TFLOP/s"),
)


def page(found: Benchmark, _extra: bool = True) -> str:
    """The whole document. HTML has room: the further columns are always there."""
    groups = [(name, table(found, rows, True)) for name, rows in found.groups]
    base = f" Baseline: {escape(found.baseline.run)}." if found.baseline is not None else ""
    order = groups[0][1].headers if groups else ()
    radio = "<label><input type=radio name=by id=c{}> {}</label>"
    chosen = "".join(radio.format(at, escape(name)) for at, name in enumerate(order))
    rules = "".join(f"main:has(#c{at}:checked) tbody tr{{--o:var(--c{at})}}" for at in range(len(order)))
    parts = [
        f"<p>{len(found.rows)} runs. Medians over steady iterations: start-up, evaluation, saving, ramp-up left out.",
        f"{base}</p><style>{rules}</style><details><summary>Sort by</summary>{chosen}",
        "<label><input type=checkbox id=down> the largest first</label></details>",
        *(f"<h2>{escape(name or 'Runs')}</h2>{_table(content.filled(), order)}" for name, content in groups),
    ]
    if found.warnings:
        items = "".join(f"<li>{escape(text)}</li>" for text in found.warnings)
        parts.append(f"<h2>Before comparing</h2><ul>{items}</ul>")
    return _document("Benchmark report", *parts, _bars(found.rows), _curves(found.rows))


def compared(found: dict[str, Any], a: Row, b: Row) -> str:
    """Two runs: the verdict, their paces and losses in one plot each, and what differs."""
    parts = [f"<p>{escape(text)}</p>" for text in (found["verdict"], *found["notes"])]
    for name, unit, key in _CURVES:
        drawn = line(f"{name} of {a.run}", unit, a.curves[key].stretches, 240, b.curves[key].stretches)
        names = f"{escape(a.run)}, <span class=key>{escape(b.run)}</span>"
        parts.append(f"<h2>{name.capitalize()}: {names}</h2>{drawn}" if drawn else "")
    parts += [f"<h2>{escape(title)}</h2>{_table(content)}" for title, content in comparison.sections(found)]
    return _document(f"{a.run} and {b.run}", *parts)


def _document(title: str, *parts: str) -> str:
    style = (get_data("megatron_monitor.reports", "report.css") or b"").decode()
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport "
        f'content="width=device-width,initial-scale=1"><title>{escape(title)}</title><style>\n{style}</style></head>'
        f"<body><main><h1>{escape(title)}</h1>{''.join(parts)}</main></body></html>\n"
    )


def _table(content: Table, order: Sequence[str] = ()) -> str:
    """Iterations and notes stand in view. Each row knows its place by the columns that can be sorted by."""
    columns = dict(zip(content.headers, zip(*content.rows, strict=True), strict=True))
    figures = dict(zip(content.headers, content.numeric(), strict=True))
    names = sorted(columns, key=lambda name: name not in _IN_VIEW)
    places = {at: tables.places(columns[name]) for at, name in enumerate(order) if name in columns}

    def cells(tag: str, texts: Mapping[str, str]) -> str:
        return "".join(
            f"<{tag} class={'figure' if figures[name] else 'words'}>{escape(texts[name])}</{tag}>" for name in names
        )

    rows = []
    for number, row in enumerate(content.rows):
        style = ";".join(f"--c{at}:{column[number]}" for at, column in places.items())
        rows.append(f'<tr style="{style}">{cells("td", dict(zip(content.headers, row, strict=True)))}</tr>')
    head = f"<tr>{cells('th', {name: name for name in names})}</tr>"
    table = f"<table style='grid-template-columns:repeat({len(names)},auto)'><thead>{head}</thead>"
    return f"<div class=scroll tabindex=0>{table}<tbody>{''.join(rows)}</tbody></table></div>"


def _bars(rows: Sequence[Row]) -> str:
    measured = [row for row in rows if row.seconds_per_iteration is not None][:_BARS_SHOWN]
    if not measured:
        return ""
    seconds = [Bar(row.run, row.seconds_per_iteration or 0.0, row.seconds_low, row.seconds_high) for row in measured]
    out = ["<h2>Seconds per iteration (lower is better)</h2>"]
    out.append("<p>The line over a bar reaches from the fastest to the slowest tenth.</p>")
    out.append(bars("Seconds per iteration by run", "s", seconds))
    for name, heading, title, unit in _RATES:
        rates = [Bar(row.run, rate) for row in measured if (rate := getattr(row, name)) is not None]
        if rates:
            out.append(f"<h2>{heading}</h2>{bars(title, unit, rates)}")
    return "".join(out)


def _curves(rows: Sequence[Row]) -> str:
    plots = (
        "".join(
            f"<figure><h3>{escape(row.run)}: {name}</h3>{drawn}</figure>"
            for name, unit, key in _CURVES
            if (drawn := line(f"{row.run}: {name}", unit, row.curves[key].stretches))
        )
        for row in rows
    )
    out = [f"<div class=curves>{drawn}</div>" for drawn in islice(filter(None, plots), _CURVES_SHOWN)]
    return "<h2>Over the iterations</h2>" + "".join(out) if out else ""
