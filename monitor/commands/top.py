"""`top`: show all runs in a terminal, the most severe incidents first, from a daemon or from logs."""

import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from megatron_monitor.archive import read_runs
from megatron_monitor.commands.arguments import ConfigOptions, fail, json_option, print_json, warn, with_config
from megatron_monitor.commands.asking import DEFAULT, DaemonError, ask, without_password
from megatron_monitor.commands.tables import fitting, grid, show
from megatron_monitor.commands.tables import width as terminal_width
from megatron_monitor.config import Config
from megatron_monitor.live import LiveCore
from megatron_monitor.reports.rows import Options, Row
from megatron_monitor.serve.formats import DASH, SYMBOLS, Figure, duration, figures, instant, percent
from megatron_monitor.snapshot import Snapshot, clean_label
from megatron_monitor.system.clock import SystemClock

_HOST_AND_PORT = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")

Run = dict[str, Any]
"""One run in the API's JSON form."""


class TopView(NamedTuple):
    """The runs to show, and the time at which they were judged (Unix seconds)."""

    at: float
    runs: list[Run]


Refresh = Callable[[float], TopView]
"""Wait up to this many seconds, then return the current view."""


@click.command()
@click.argument("targets", nargs=-1, metavar="[PATH|URL]...")
@with_config
@json_option
@click.option("--once", is_flag=True, help="Show once and exit; the default without a terminal.")
@click.option("--every", type=click.FloatRange(0.2), default=2.0, show_default=True, help="Seconds between updates.")
def top(targets: tuple[str, ...], given: ConfigOptions, as_json: bool, once: bool, every: float) -> None:
    r"""Show all runs in the terminal, the most severe incidents first: from a daemon, or straight from logs.

    \b
    Examples:
      megatron-monitor top                            the daemon on 127.0.0.1:9843
      megatron-monitor top http://login-node:9843
      megatron-monitor top '/logs/**/*.out'           no daemon needed
      megatron-monitor top --json | jq '.runs[] | select(.state == "hung") | .run'
    """
    logging.basicConfig(handlers=[logging.NullHandler()])  # log lines would disturb the screen
    once = once or as_json or not sys.stdout.isatty()
    try:
        with _source(targets, given, once) as (refresh, where):
            if not once:
                _watch(refresh, where, every)
            view = refresh(0.0)
            if as_json:
                print_json({"at": view.at, "runs": in_order(view.runs)})
            else:
                show(screen(view, where, terminal_width()))
    except DaemonError as error:
        fail(error)
    except (KeyboardInterrupt, BrokenPipeError):
        sys.stderr.close()  # no error from the interpreter at exit


def _watch(refresh: Refresh, where: str, every: float) -> NoReturn:
    view, problem = refresh(0.0), ""
    with Live(screen=True, auto_refresh=False) as live:
        while True:
            size = live.console.size
            live.update(screen(view, where, size.width, size.height, problem), refresh=True)
            try:
                view, problem = refresh(every), ""
            except DaemonError as error:
                problem = str(error)


# --- where the runs come from ---------------------------------------------------------------------------------------


@contextmanager
def _source(targets: tuple[str, ...], given: ConfigOptions, once: bool) -> Iterator[tuple[Refresh, str]]:
    addresses = [target for target in targets if _is_address(target)]
    if addresses and (len(targets) > 1 or given != ConfigOptions()):
        raise click.UsageError("give one URL without --config and --set, or paths: a daemon has its own settings")
    if addresses or (not targets and given.file is None):
        address = addresses[0] if addresses else DEFAULT
        yield partial(_from_daemon, address), without_password(address)
        return
    config = given.configured(targets)
    if once:
        yield lambda _: _from_finished_logs(config), "read to the end"
        return
    live = LiveCore(config)
    live.start()
    try:
        yield lambda seconds: _view(live.look(seconds or 1.0)), ", ".join(targets) or str(given.file)
    finally:
        live.stop(2.0)


def _is_address(target: str) -> bool:
    if target.startswith(("http://", "https://")):
        return True
    return _HOST_AND_PORT.fullmatch(target) is not None and not Path(target).exists()


def _view(snapshot: Snapshot) -> TopView:
    return TopView(snapshot.at, [run.page for run in snapshot.runs])


def _from_finished_logs(config: Config) -> TopView:
    core, states_and_rows, problems = read_runs(config, Options(config.gpu_peak_tflops), SystemClock())
    warn(*problems)
    if not states_and_rows:
        raise DaemonError("no training run found")
    at, runs = _view(core.snapshot(SystemClock().wall()))
    rows = {row.run: row for _, row in states_and_rows}
    return TopView(at, [_with_report_figures(run, rows.get(run["run"])) for run in runs])


def _with_report_figures(run: Run, row: Row | None) -> Run:
    """Replace the last iteration's figures by the medians that `report` shows."""
    if row is None:
        return run
    figures = {
        "seconds_per_iteration": row.seconds_per_iteration, "tflops": row.tflops, "mfu": row.mfu,
        "samples_per_second": row.samples_per_second, "max_memory_bytes": row.memory_bytes,
    }  # fmt: skip
    return {**run, **{name: value for name, value in figures.items() if value is not None}}


def _from_daemon(address: str, seconds: float) -> TopView:
    SystemClock().sleep(seconds)
    value = ask(address, "/api/v1/runs", "; name a URL, or the logs themselves")
    try:
        return TopView(float(value["at"]), [dict(run) for run in value["runs"]])
    except (KeyError, TypeError) as error:
        raise DaemonError(f"{without_password(address)} is not a megatron-monitor of this version") from error


# --- what is shown --------------------------------------------------------------------------------------------------

_STYLES = {
    "hung": "bold red", "crashed": "bold red", "lost": "yellow", "training": "green", "finished": "green",
    "critical": "bold red", "warning": "yellow", "bad": "bold red", "warn": "yellow",
}  # fmt: skip
_RANK = {"critical": 0, "warning": 1, "info": 2}
_MIN_WIDTH_FOR_NOTES = 104  # columns of the terminal
_NAME_WIDTH = 12  # columns reserved for a run's name before other columns are chosen
_MAX_INCIDENTS = 20


def in_order(runs: Iterable[Run]) -> list[Run]:
    """Sort runs by their most severe incident, then by name."""
    return sorted(runs, key=lambda run: (min(map(_rank, run["incidents"]), default=3), run["run"]))


def _rank(incident: dict[str, Any]) -> int:
    return _RANK.get(incident["severity"], 3)


def screen(view: TopView, where: str, width: int, height: int | None = None, problem: str = "") -> RenderableType:
    """Return the counts of states, the table and the open incidents, cut to `height` lines if that is given."""
    runs = in_order(view.runs)
    states = ", ".join(f"{count} {state}" for state, count in sorted(Counter(run["state"] for run in runs).items()))
    head = Text(f"{instant(view.at)}  {states or 'no training run seen yet'}  ", style="bold", no_wrap=True)
    parts: list[RenderableType] = [head.append(clean_label(where), style="dim")]
    if problem:
        parts.append(Text(f"▲ not updated: {clean_label(problem)}", style="yellow"))
    incidents = sorted((item for run in runs for item in run["incidents"]), key=_rank)
    listed = incidents[: _MAX_INCIDENTS if height is None else min(_MAX_INCIDENTS, height // 6)]  # 3 lines each: half
    room = len(runs) if height is None else max(1, height - len(parts) - 3 * len(listed) - 3)
    if runs:
        parts.append(_table(runs[:room], view.at, width))
    parts += [_incident(item, view.at) for item in listed]
    hidden = ((len(runs) - room, "runs"), (len(incidents) - len(listed), "incidents"))
    parts += [Text(f"and {count} {things} more", style="dim") for count, things in hidden if count > 0]
    return Group(*parts)


def _incident(incident: dict[str, Any], now: float) -> Text:
    severity = incident["severity"]
    text = Text(f"\n{SYMBOLS.get(severity, '')} {incident['incident']} ", style=_STYLES.get(severity, ""))
    text.append(f"{clean_label(incident['run'])}, {severity}, for {duration(now - incident['since'])}\n", style="bold")
    return text.append(f"  {clean_label(incident['summary'])}", style="default not bold")


_FIGURES = {
    "Iteration": "iteration", "Done": "done", "s/it": "seconds_per_iteration", "vs normal": "over_normal",
    "TFLOPs": "tflops", "MFU": "mfu", "Samples/s": "samples_per_second", "Loss": "lm_loss", "Scale": "loss_scale",
    "Memory": "max_memory_bytes", "Silent": "progress_at", "Ends in": "eta", "Unsaved": "unsaved_progress_seconds",
}  # fmt: skip
"""Heading -> key in the result of `figures`."""
_FIRST = ("Run", "State", "Iteration", "s/it", "vs normal", "Silent", "Loss", "Done", "Ends in", "TFLOPs", "Unsaved")


def _table(runs: Sequence[Run], now: float, width: int) -> Table:
    """Return a table with one line a run: the columns that fit; a long name is cut at its start."""
    headers = ["Run", "State", *_FIGURES]
    lines: list[list[Text]] = []
    for run in runs:
        iteration, total = run.get("iteration"), run.get("train_iterations")
        done = percent(iteration / total) if iteration is not None and total else DASH
        shown = figures(run, now) | {"done": Figure(done), "mfu": Figure(percent(run.get("mfu")))}
        state = _state(run, shown["state"], noted=width >= _MIN_WIDTH_FOR_NOTES)
        lines.append([Text(clean_label(run["run"])), state, *(_cell(shown[key]) for key in _FIGURES.values())])
    widths = [max(map(len, column)) for column in zip(headers, *lines, strict=True)]
    widths[0] = min(widths[0], _NAME_WIDTH)
    kept = fitting(headers, widths, _FIRST, width, gap=1)
    room = width - sum(widths[place] + 1 for place in kept if place)
    for line in lines:
        if len(line[0]) > room:
            line[0] = Text(f"…{line[0].plain[1 - room :]}")
    rows = ([line[place] for place in kept] for line in lines)
    return grid([headers[place] for place in kept], rows, [place > 1 for place in kept], gap=1)


def _cell(figure: Figure) -> Text:
    return Text(figure.text.removesuffix(" ago").replace("\u00a0", " "), style=_STYLES.get(figure.tone, ""))


def _state(run: Run, shown: Figure, *, noted: bool) -> Text:
    """Return the state and, if `noted`, its note: the phase, or why the run crashed."""
    text = Text(shown.text, style=_STYLES.get(shown.tone) or _STYLES.get(run["state"], ""))
    return text.append(f" {clean_label(shown.note)}", style="dim") if noted and shown.note else text
