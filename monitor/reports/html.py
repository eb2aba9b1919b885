"""The benchmark, and two runs compared, as one HTML file with its plots inside: to be mailed, opened from a disk. No
script: styles sort the table.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pkgutil import get_data
from typing import Any

from monitor.reports import comparison, svg, tables
from monitor.reports.benchmark import Benchmark, table
from monitor.reports.rows import Row
from monitor.reports.svg import Bar
from monitor.reports.tables import Table

_BARS_SHOWN = 40
_CURVES_SHOWN = 24
_CURVES = (("seconds per iteration", "s", "seconds_per_iteration"), ("loss", "", "lm_loss"))
_IN_VIEW = ("Run", "Iterations", "Notes")
_RATES = (
    ("samples_per_second", "Samples per second (higher is better)", "Samples per second", "/s"),
    ("tflops", "TFLOP/s per GPU", "TFLOP/s per GPU by run", "TFLOP/s"),
)


@cache
def _style() -> str:
    return (get_data("monitor.reports", "report.css") or b"").decode()


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
        drawn = svg.line(f"{name} of {a.run}", unit, a.curves[key].stretches, 240, b.curves[key].stretches)
        names = f"{escape(a.run)}, <span class=key>{escape(b.run)}</span>"
        parts.append(f"<h2>{name.capitalize()}: {names}</h2>{drawn}" if drawn else "")
    parts += [f"<h2>{escape(title)}</h2>{_table(content)}" for title, content in comparison.sections(found)]
    return _document(f"{a.run} and {b.run}", *parts)


def _document(title: str, *parts: str) -> str:
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport "
        f'content="width=device-width,initial-scale=1"><title>{escape(title)}</title><style>\n{_style()}</style></head>'
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
    out.append(svg.bars("Seconds per iteration by run", "s", seconds))
    for name, heading, title, unit in _RATES:
        rates = [Bar(row.run, rate) for row in measured if (rate := getattr(row, name)) is not None]
        if rates:
            out.append(f"<h2>{heading}</h2>{svg.bars(title, unit, rates)}")
    return "".join(out)


def _curves(rows: Sequence[Row]) -> str:
    out: list[str] = []
    for row in rows:
        if len(out) >= _CURVES_SHOWN:
            break
        plots = [
            f"<figure><h3>{escape(row.run)}: {name}</h3>{drawn}</figure>"
            for name, unit, key in _CURVES
            if (drawn := svg.line(f"{row.run}: {name}", unit, row.curves[key].stretches))
        ]
        if plots:
            out.append(f"<div class=curves>{''.join(plots)}</div>")
    return "<h2>Over the iterations</h2>" + "".join(out) if out else ""
