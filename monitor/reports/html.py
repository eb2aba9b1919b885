"""The benchmark as one HTML file with its plots inside: to be mailed, attached, opened from a disk. No script."""

from collections.abc import Sequence
from functools import cache
from html import escape
from pkgutil import get_data

from monitor.reports import svg
from monitor.reports.benchmark import Benchmark, table
from monitor.reports.rows import Row
from monitor.reports.svg import Bar
from monitor.reports.tables import Table

_BARS_SHOWN = 40
_CURVES_SHOWN = 24
_RATES = (
    ("samples_per_second", "Samples per second (higher is better)", "Samples per second", "/s"),
    ("tflops", "TFLOP/s per GPU", "TFLOP/s per GPU by run", "TFLOP/s"),
)


@cache
def _style() -> str:
    return (get_data("monitor.reports", "report.css") or b"").decode()


def page(found: Benchmark, _extra: bool = True) -> str:
    """The whole document. HTML has room: the further columns are always there."""
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width,initial-scale=1"><title>Benchmark report</title>',
        f"<style>\n{_style()}</style></head><body><main><h1>Benchmark report</h1>",
        f"<p>{len(found.rows)} runs. Medians over steady iterations: start-up, evaluation, saving, ramp-up left out.",
        f" Baseline: {escape(found.baseline.run)}." if found.baseline is not None else "",
        "</p>",
    ]
    for name, rows in found.groups:
        parts.append(f"<h2>{escape(name or 'Runs')}</h2>")
        parts.append(_table(table(found, rows, True).filled()))
    if found.warnings:
        items = "".join(f"<li>{escape(text)}</li>" for text in found.warnings)
        parts.append(f"<h2>Before comparing</h2><ul>{items}</ul>")
    parts += [_bars(found.rows), _curves(found.rows), "</main></body></html>\n"]
    return "".join(parts)


def _table(content: Table) -> str:
    numeric = content.numeric()

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=figure' if right else ''}>{escape(value)}</{tag}>"
            for value, right in zip(values, numeric, strict=True)
        )

    head = f"<tr>{cells('th', content.headers)}</tr>"
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in content.rows)
    return f"<div class=scroll tabindex=0><table><thead>{head}</thead><tbody>{body}</tbody></table></div>"


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
            for name, unit, key in (("seconds per iteration", "s", "seconds_per_iteration"), ("loss", "", "lm_loss"))
            if (drawn := svg.line(f"{row.run}: {name}", unit, row.curves[key].stretches))
        ]
        if plots:
            out.append(f"<div class=curves>{''.join(plots)}</div>")
    return "<h2>Over the iterations</h2>" + "".join(out) if out else ""
