"""What `top` shows, from the data of the API: a table for a terminal, lines for a pipe. Pure: time is an argument.

A log's texts are made printable first: an escape sequence in a name or a line never reaches the terminal.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.table import Table
from rich.text import Text

from megatron_monitor.reports.tables import fitting
from megatron_monitor.serve.formats import DASH, LABELS, SYMBOLS, Figure, duration, figures, instant, number, percent
from megatron_monitor.snapshot import clean_label

_STYLES = {
    "hung": "bold red", "crashed": "bold red", "lost": "yellow", "training": "green", "finished": "green",
    "critical": "bold red", "warning": "yellow", "info": "", "bad": "bold red", "warn": "yellow", "": "",
}  # fmt: skip
_RANK = {"critical": 0, "warning": 1, "info": 2}
_WIDE = 104  # columns from which TFLOPs and work at risk have room
_WIDER = 136  # from which samples per second, loss scale and memory have room too
_INCIDENTS = 20  # shown one by one
_NAME = 12  # columns of a name for which others go without
_GIVEN_UP = ("Done", "Loss", "Ends in")
_BELOW = 5  # lines for the incidents of the chosen run
_TOLD = (("Do", "advice"), ("Command", "command"), ("Line", "line"))


def in_order(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that need a look first, then by name."""
    return sorted(runs, key=lambda run: (min((_rank(item) for item in run["incidents"]), default=3), run["run"]))


def _rank(incident: dict[str, Any]) -> int:
    return _RANK.get(incident["severity"], 3)


def _head(runs: Iterable[dict[str, Any]], now: float, where: str, problem: str) -> list[RenderableType]:
    states = sorted(Counter(run["state"] for run in runs).items())
    counts = ", ".join(f"{count} {state}" for state, count in states) or "no training run seen yet"
    head = Text(f"{instant(now)}  {counts}  ", style="bold", no_wrap=True, overflow="ellipsis")
    head.append(clean_label(where), style="dim")
    old = Text(f"▲ figures are old: {clean_label(problem)}", style="yellow")
    return [head, old] if problem else [head]


def screen(runs: list[dict[str, Any]], now: float, where: str, width: int, problem: str = "") -> RenderableType:
    """All of it, for a terminal that scrolls."""
    runs = in_order(runs)
    parts = _head(runs, now, where, problem)
    if runs:
        parts.append(_table(runs, now, width))
    incidents = sorted((item for run in runs for item in run["incidents"]), key=_rank)
    parts.extend(_incident(item, now) for item in incidents[:_INCIDENTS])
    if len(incidents) > _INCIDENTS:
        parts.append(Text(f"and {len(incidents) - _INCIDENTS} incidents more", style="dim"))
    return Group(*parts)


def room_of(height: int) -> int:
    """Rows that a screen of this height has room for, beside its head, its foot and the incidents."""
    return max(1, height - 4 - _BELOW)


def page(
    runs: list[dict[str, Any]], rows: list[dict[str, Any]], bar: int, now: float, where: str, size: tuple[int, int],
    problem: str, foot: str,
) -> RenderableType:  # fmt: skip
    """A screen of (width, height): `rows` around the one at `bar`, with the incidents of that one below."""
    room = room_of(size[1])
    first = max(0, min(bar - room // 2, len(rows) - room))
    chosen = sorted(rows[bar]["incidents"], key=_rank) if rows else []
    hidden = f", {first} above and {len(rows) - first - room} below hidden" if len(rows) > room else ""
    whole = Layout()
    whole.split_column(
        Layout(Group(*_head(runs, now, where, problem)), size=2),
        Layout(_table(rows, now, size[0], (first, first + room, bar)) if rows else Text("no such run")),
        Layout(Group(*(_incident(item, now) for item in chosen)), size=_BELOW),
        Layout(Text(f"{len(rows)} of {len(runs)} runs{hidden}  {foot}", style="reverse", no_wrap=True), size=1),
    )
    return whole


def opened(run: dict[str, Any], now: float) -> RenderableType:
    """One run: its incidents with what to do, its last line, its figures."""
    shown = figures(run, now)
    told = [f"{label}: {shown[key].text} {shown[key].note}" for key, label in LABELS.items() if shown[key].text != DASH]
    title = f"{clean_label(run['run'])}  {shown['state'].text}  (Escape: all runs)"
    parts: list[RenderableType] = [Text(title, style="bold")]
    for item in sorted(run["incidents"], key=_rank):
        parts.append(_incident(item, now))
        parts += [Text(f"  {word}: {clean_label(str(item[key]))}") for word, key in _TOLD if item.get(key)]
    last = Text(f"\n{clean_label(run.get('last_line') or '')}\n", style="dim")
    return Group(*parts, last, Columns(told, padding=(0, 3)))


Run = dict[str, Any]


def _done(run: Run, _shown: dict[str, Figure]) -> str:
    iteration, total = run.get("iteration"), run.get("train_iterations")
    return percent(iteration / total) if iteration is not None and total else DASH


_FIGURES: tuple[tuple[str, int, Callable[[Run, dict[str, Figure]], str | Figure]], ...] = (
    ("Iteration", 0, lambda run, _: number(run.get("iteration"))),
    ("Done", 0, _done),
    ("s/it", 0, lambda run, _: number(run.get("seconds_per_iteration"))),
    ("vs normal", 0, lambda _, shown: shown["over_normal"]),
    ("TFLOPs", _WIDE, lambda run, _: number(run.get("tflops"))),
    ("MFU", _WIDE, lambda run, _: percent(run.get("mfu"))),
    ("Samples/s", _WIDER, lambda _, shown: shown["samples_per_second"].text),
    ("Loss", 0, lambda run, _: number(run.get("lm_loss"))),
    ("Scale", _WIDER, lambda _, shown: shown["loss_scale"].text),
    ("Memory", _WIDER, lambda _, shown: shown["max_memory_bytes"].text),
    ("Silent", 0, lambda _, shown: shown["progress_at"]),
    ("Ends in", 0, lambda _, shown: shown["eta"].text),
    ("At risk", _WIDE, lambda _, shown: shown["at_risk_seconds"].text),
)
"""Heading, the width of the terminal from which it has room, and the cell."""


def _table(runs: list[Run], now: float, width: int, part: tuple[int, int, int] | None = None) -> Table:
    """All runs, names folded; or a line each of those from the first to before the second place, the third chosen."""
    first, last, bar = part or (0, len(runs), -1)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim", expand=part is not None)
    if part is None:
        table.add_column("Run", min_width=6, max_width=40 if width >= _WIDE else 16, overflow="fold")
    else:
        table.add_column("Run", min_width=6, no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("State", no_wrap=True)
    lines = []
    for run in runs[first:last]:
        shown = figures(run, now)
        cells = {name: _cell(read(run, shown)) for name, least, read in _FIGURES if width >= least}
        lines.append((Text(clean_label(run["run"])), _state(run, shown["state"], width >= _WIDE), cells))
    longest = min(max(len(run["run"]) for run in runs), _NAME * (1 if part is None else 2))
    widths = {"Run": longest, "State": max(len(state) for _, state, _ in lines)}
    widths |= {name: max(len(name), *(len(cells[name]) for _, _, cells in lines)) for name in lines[0][2]}
    kept = fitting(widths, [name for name in widths if name not in _GIVEN_UP], width, 1)[2:]
    for name in kept:
        table.add_column(name, justify="right", no_wrap=True)
    for at, (run_name, state, cells) in enumerate(lines, first):
        table.add_row(run_name, state, *(cells[name] for name in kept), style="reverse" if at == bar else None)
    return table


def _cell(told: str | Figure) -> Text:
    if isinstance(told, str):
        return Text(told)
    return Text(told.text.removesuffix(" ago").replace("\u00a0", " "), style=_STYLES[told.tone])


def _state(run: Run, shown: Figure, wide: bool) -> Text:
    """The state, and where there is room what it says beside it: the phase, or why it crashed."""
    text = Text(shown.text, style=_STYLES[shown.tone] or _STYLES.get(run["state"], ""))
    return text.append(f" {clean_label(shown.note)}", style="dim") if wide and shown.note else text


def _incident(incident: dict[str, Any], now: float) -> Text:
    severity = incident["severity"]
    text = Text(f"\n{SYMBOLS.get(severity, '')} {incident['incident']} ", style=_STYLES.get(severity, ""))
    text.append(f"{clean_label(incident['run'])}, {severity}, for {duration(now - incident['since'])}\n", style="bold")
    text.append(f"  {clean_label(incident['summary'])}", style="default not bold")
    return text


_PLAIN: dict[str, str | Callable[[Run, float], Any]] = {
    "RUN": "run", "STATE": "state", "ITERATION": "iteration", "TOTAL": "train_iterations",
    "S/ITERATION": "seconds_per_iteration", "NORMAL": "baseline_seconds", "TFLOPS": "tflops", "MFU": "mfu",
    "SAMPLES/S": "samples_per_second", "LOSS": "lm_loss", "LOSS_SCALE": "loss_scale", "MEMORY": "max_memory_bytes",
    "SILENCE": lambda run, now: None if (at := run.get("progress_at")) is None else round(max(0.0, now - at), 1),
    "BUDGET": "budget_seconds",
    "ENDS_IN": lambda run, now: None if run.get("eta") is None else round(run["eta"] - now),
    "AT_RISK": "at_risk_seconds",
    "INCIDENTS": lambda run, _: ",".join(f"{item['incident']}:{item['severity']}" for item in run["incidents"]),
}  # fmt: skip
"""Column -> the run's key, or what is read of it."""
PLAIN_COLUMNS = tuple(_PLAIN)


def plain(runs: list[Run], now: float) -> str:
    """Aligned columns without blanks inside, `-` where nothing is known: seconds and ratios as numbers."""
    lines = [list(PLAIN_COLUMNS)]
    for run in in_order(runs):
        told = (run.get(read) if isinstance(read, str) else read(run, now) for read in _PLAIN.values())
        lines.append([*map(_plain_cell, told)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )


def _plain_cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "_".join(clean_label(str(value)).split()) or "-"
