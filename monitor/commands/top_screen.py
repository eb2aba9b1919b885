"""What `top` shows, from the data of the API: a table for a terminal, lines for a pipe. Pure: time is an argument.

A log's texts are made printable first: an escape sequence in a name or a line never reaches the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from monitor.serve.formats import DASH, SYMBOLS, Figure, duration, figures, instant, number, percent
from monitor.snapshot import clean_label

_STYLES = {
    "hung": "bold red", "crashed": "bold red", "lost": "yellow", "training": "green", "finished": "green",
    "critical": "bold red", "warning": "yellow", "info": "", "bad": "bold red", "warn": "yellow", "": "",
}  # fmt: skip
_RANK = {"critical": 0, "warning": 1, "info": 2}
_WIDE = 104  # columns from which TFLOPs and work at risk have room
_WIDER = 136  # from which samples per second, loss scale and memory have room too
_INCIDENTS = 20  # shown one by one

PLAIN_COLUMNS = (
    "RUN", "STATE", "ITERATION", "TOTAL", "S/ITERATION", "NORMAL", "TFLOPS", "MFU", "SAMPLES/S", "LOSS", "LOSS_SCALE",
    "MEMORY", "SILENCE", "BUDGET", "ENDS_IN", "AT_RISK", "INCIDENTS",
)  # fmt: skip


def in_order(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that need a look first, then by name."""
    return sorted(runs, key=lambda run: (min((_rank(item) for item in run["incidents"]), default=3), run["run"]))


def _rank(incident: dict[str, Any]) -> int:
    return _RANK.get(incident["severity"], 3)


def screen(runs: list[dict[str, Any]], now: float, where: str, width: int, problem: str = "") -> RenderableType:
    """The whole screen."""
    runs = in_order(runs)
    states: dict[str, int] = {}
    for run in runs:
        states[run["state"]] = states.get(run["state"], 0) + 1
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "no training run seen yet"
    head = Text(f"{instant(now)}  {counts}  ", style="bold", no_wrap=True, overflow="ellipsis")
    head.append(clean_label(where), style="dim")
    parts: list[RenderableType] = [head]
    if problem:
        parts.append(Text(f"▲ {clean_label(problem)}; figures are old", style="yellow"))
    if runs:
        parts.append(_table(runs, now, width >= _WIDE, width >= _WIDER))
    incidents = sorted((item for run in runs for item in run["incidents"]), key=_rank)
    parts.extend(_incident(item, now) for item in incidents[:_INCIDENTS])
    if len(incidents) > _INCIDENTS:
        parts.append(Text(f"and {len(incidents) - _INCIDENTS} incidents more", style="dim"))
    return Group(*parts)


def _table(runs: list[dict[str, Any]], now: float, wide: bool, wider: bool) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("Run", min_width=6, max_width=40 if wide else 16, overflow="fold")
    table.add_column("State", no_wrap=True)
    for name in ("Iteration", "Done", "s/it", "vs normal"):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("TFLOPs", justify="right", no_wrap=True)
        table.add_column("MFU", justify="right", no_wrap=True)
    names = ("Samples/s", "Loss", "Scale", "Memory") if wider else ("Loss",)
    for name in (*names, "Silent", "Ends in"):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("At risk", justify="right", no_wrap=True)
    for run in runs:
        table.add_row(*_cells(run, now, wide, wider))
    return table


def _state(run: dict[str, Any], shown: Figure, wide: bool) -> Text:
    """The state, and where there is room what it says beside it: the phase, or why it crashed."""
    text = Text(shown.text, style=_STYLES.get(run["state"], ""))
    return text.append(f" {clean_label(shown.note)}", style="dim") if wide and shown.note else text


def _cells(run: dict[str, Any], now: float, wide: bool, wider: bool) -> list[Text]:
    shown = figures(run, now)
    iteration, total = run.get("iteration"), run.get("train_iterations")
    seconds, normal = run.get("seconds_per_iteration"), run.get("baseline_seconds")
    silence = shown["progress_at"]
    cells = [
        Text(clean_label(run["run"])),
        _state(run, shown["state"], wide),
        Text(number(iteration)),
        Text(percent(iteration / total) if iteration is not None and total else DASH),
        Text(number(seconds)),
        Text(f"{100 * (seconds / normal - 1):+.1f} %" if isinstance(seconds, int | float) and normal else DASH),
    ]
    if wide:
        cells += [Text(number(run.get("tflops"))), Text(percent(run.get("mfu")))]
    if wider:
        cells.append(Text(shown["samples_per_second"].text))
    cells.append(Text(number(run.get("lm_loss"))))
    if wider:
        cells += [Text(shown["loss_scale"].text), Text(shown["max_memory_bytes"].text)]
    cells += [
        Text(silence.text.removesuffix(" ago"), style=_STYLES[silence.tone]),
        Text(shown["eta"].text),
    ]
    return [*cells, Text(shown["at_risk_seconds"].text)] if wide else cells


def _incident(incident: dict[str, Any], now: float) -> Text:
    severity = incident["severity"]
    text = Text(f"\n{SYMBOLS.get(severity, '')} {incident['incident']} ", style=_STYLES.get(severity, ""))
    text.append(f"{clean_label(incident['run'])}, {severity}, for {duration(now - incident['since'])}\n", style="bold")
    text.append(f"  {clean_label(incident['summary'])}", style="default not bold")
    return text


def plain(runs: list[dict[str, Any]], now: float) -> str:
    """Aligned columns without blanks inside, `-` where nothing is known: seconds and ratios as numbers."""
    rows = [PLAIN_COLUMNS, *(_plain_row(run, now) for run in in_order(runs))]
    widths = [max(len(row[place]) for row in rows) for place in range(len(PLAIN_COLUMNS))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows
    )


def _plain_row(run: dict[str, Any], now: float) -> tuple[str, ...]:
    progress, eta = run.get("progress_at"), run.get("eta")
    values = (
        run["run"], run["state"], run.get("iteration"), run.get("train_iterations"), run.get("seconds_per_iteration"),
        run.get("baseline_seconds"), run.get("tflops"), run.get("mfu"), run.get("samples_per_second"),
        run.get("lm_loss"), run.get("loss_scale"), run.get("max_memory_bytes"),
        None if progress is None else round(max(0.0, now - progress), 1), run.get("budget_seconds"),
        None if eta is None else round(eta - now), run.get("at_risk_seconds"),
        ",".join(f"{item['incident']}:{item['severity']}" for item in run["incidents"]) or None,
    )  # fmt: skip
    return tuple(_plain_cell(value) for value in values)


def _plain_cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "_".join(clean_label(str(value)).split()) or "-"
