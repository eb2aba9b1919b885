"""`top`: show all runs of a daemon in a terminal, the most severe incidents first."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any
from urllib.parse import quote

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from megatron_monitor.commands.arguments import fail, json_option, print_json
from megatron_monitor.commands.asking import DEFAULT, DaemonError, ask, without_password
from megatron_monitor.commands.keyboard import keyboard
from megatron_monitor.commands.tables import fitted, show
from megatron_monitor.commands.tables import width as terminal_width
from megatron_monitor.detectors.base import RANK
from megatron_monitor.scalars import one_line
from megatron_monitor.serve.formats import DASH, SYMBOLS, Figure, duration, figures, percent
from megatron_monitor.system.clock import SystemClock

TopView = dict[str, Any]
"""The answer of `/api/v1/runs`."""
Run = dict[str, Any]
"""One run in it."""
Incident = dict[str, Any]
_PAGE = 10  # lines


@click.command()
@click.argument("address", metavar="[URL]", default=DEFAULT)
@json_option
@click.option("--once", is_flag=True, help="Show once and exit; the default without a terminal.")
@click.option("--interval", type=click.FloatRange(0.2), default=2.0, show_default=True, help="Seconds between updates.")
def top(address: str, as_json: bool, once: bool, interval: float) -> None:
    """Show all runs of a monitor in the terminal, the most severe incidents first.

    Up and down choose an incident, Enter shows all of it with the log around its line, q quits.

    \b
    Examples:
      megatron-monitor top                            the daemon on 127.0.0.1:9843
      megatron-monitor top http://login-node:9843
      megatron-monitor top --json | jq '.runs[] | select(.state == "hung") | .run'
    """
    try:
        if not (once or as_json) and sys.stdin.isatty() and sys.stdout.isatty():
            return _watch(address, interval)
        view = _view(address)
        if as_json:
            print_json(view)
        else:
            show(screen(view, without_password(address), terminal_width()))
    except DaemonError as error:
        fail(error)
    except (KeyboardInterrupt, BrokenPipeError):
        sys.stderr.close()  # no error from the interpreter at exit


def _watch(address: str, interval: float) -> None:
    view, problem, log, clock, shown = _view(address), "", dict[str, Any](), SystemClock(), Choice()
    with keyboard() as wait_for_key, Live(screen=True, auto_refresh=False) as live:
        due = clock.monotonic() + interval
        while True:
            size = live.console.size
            listed = incidents_of(view)
            chosen = shown.at(listed)
            if shown.opened:
                content = whole_incident(listed[chosen], log, view["at"], size.width, size.height, shown, problem)
            else:
                content = screen(view, without_password(address), size.width, size.height, problem, chosen)
            live.update(content, refresh=True)
            key = wait_for_key(due - clock.monotonic())
            if key == "quit":
                return
            shown.press(key, listed)
            if (key or clock.monotonic() < due) and not (key == "enter" and shown.opened):
                continue
            try:
                if not key:
                    due = clock.monotonic() + interval
                    view, problem = _view(address), ""
                log = ask(address, f"/api/v1/runs/log?name={quote(shown.incident[0], safe='')}") if shown.opened else {}
            except DaemonError as error:
                problem = str(error)


def _view(address: str) -> TopView:
    value = ask(address, "/api/v1/runs")
    if not {"at", "summary", "runs"} <= value.keys():
        raise DaemonError(f"{without_password(address)} is not a megatron-monitor of this version")
    return value


@dataclass
class Choice:
    """The chosen incident as (run, kind), whether all of it is shown, and the first of its lines that is."""

    incident: tuple[str, str] = ("", "")
    opened: bool = False
    first: int = 0

    def at(self, listed: Sequence[Incident]) -> int:
        """Return the index of the chosen incident. If it is over, the list is shown again, and its first one chosen."""
        names = [(one["run"], one["incident"]) for one in listed]
        self.opened = self.opened and self.incident in names
        return names.index(self.incident) if self.incident in names else 0

    def press(self, key: str, listed: Sequence[Incident]) -> None:
        """Apply a key."""
        step = {"up": -1, "down": 1, "page up": -_PAGE, "page down": _PAGE}.get(key, 0)
        if self.opened:
            self.opened, self.first = key not in ("enter", "escape"), max(0, self.first + step)
        elif listed and (step or key == "enter"):
            chosen = listed[min(max(0, self.at(listed) + step), len(listed) - 1)]
            self.incident, self.opened, self.first = (chosen["run"], chosen["incident"]), key == "enter", 0


# --- what is shown --------------------------------------------------------------------------------------------------

_STYLES = {
    "hung": "bold red", "crashed": "bold red", "lost": "yellow", "training": "green", "finished": "green",
    "critical": "bold red", "warning": "yellow", "bad": "bold red", "warn": "yellow",
}  # fmt: skip
_MIN_WIDTH_FOR_NOTES = 104  # columns of the terminal
_NAME_WIDTH = 12  # columns reserved for a run's name before other columns are chosen
_KEYS = "q quit  up/down choose  Enter show"
_KEYS_OF_INCIDENT = "q quit  up/down scroll  Enter back"


def incidents_of(view: TopView) -> list[Incident]:
    """Return the open incidents of all runs, the most severe first."""
    found: list[Incident] = [item for run in view["runs"] for item in run["incidents"]]
    return sorted(found, key=lambda one: -RANK.get(one["severity"], 0))


def screen(
    view: TopView, where: str, width: int, height: int | None = None, problem: str = "", chosen: int = 0
) -> RenderableType:
    """Return the summary, the table and the open incidents.

    With a `height`, some runs and incidents may have no room: the `chosen` incident is marked and has room, and the
    last line lists the keys.
    """
    runs, incidents = view["runs"], incidents_of(view)
    head = Text(f"{view['summary']}  ", style="bold").append(one_line(where), style="dim")
    lines, keys = _wrapped(head, width) + _warning(problem, width), list[Text]()
    shown = [_wrapped(_incident(one, view["at"]), width) for one in incidents]
    below, room = list(chain(*shown)), len(runs)
    if height is not None:
        free = height - len(lines) - 2
        room = min(room, max(1, free // 2, free - len(below)))
        free = max(0, free - room - (room < len(runs)))
        if incidents:
            shown[chosen][1].stylize("reverse")
            begin = sum(map(len, shown[:chosen]))
            first = min(begin, max(0, begin + len(shown[chosen]) - free))
            below = below[first : first + free]
        place = f"  incident {chosen + 1} of {len(incidents)}" if incidents else ""
        keys = [Text(f"{_KEYS}{place}", style="dim", no_wrap=True)]
    more = [Text(f"and {len(runs) - room} runs more", style="dim")] if room < len(runs) else []
    return Group(*lines, *([_table(runs[:room], view["at"], width)] if runs else []), *more, *below, *keys)


def _wrapped(text: Text, width: int) -> list[Text]:
    return list(text.wrap(Console(width=width), width))


def _warning(problem: str, width: int) -> list[Text]:
    return _wrapped(Text(f"▲ not updated: {one_line(problem)}", style="yellow"), width) if problem else []


def whole_incident(
    incident: Incident, log: Mapping[str, Any], now: float, width: int, height: int, choice: Choice, problem: str = ""
) -> RenderableType:
    """Return `height` lines of all that is known of an incident, from line `choice.first` on."""
    from megatron_monitor.serve.page import live_incident  # loads Jinja2

    known = live_incident(incident, now)
    parts = [_incident({**known, "summary": known["said"]}, now)]
    parts += [Text(f"  {known[name]}", style="dim") for name in ("age", "place") if known[name]]
    parts += [
        Text(f"\n{name}: ", style="bold").append(one_line(str(known[key])), style="not bold")
        for name, key in (("advice", "advice"), ("command", "command"), ("runbook", "runbook_url"))
        if known.get(key)
    ]
    parts.append(Text("\n" + "\n".join(f"{name}  {value}" for name, value in known["facts"])))
    if excerpt := log.get("incidents", {}).get(incident["incident"]):
        parts.append(Text(f"\n{one_line(excerpt['stream'])}", style="bold"))
        parts += [
            Text(one_line(line), style="reverse" if at == excerpt["marked"] else "")
            for at, line in enumerate(excerpt["lines"])
        ]
    lines = [line for part in parts for line in _wrapped(part, width)][1:]
    head = _warning(problem, width)
    room = height - len(head) - 1
    choice.first = min(choice.first, max(0, len(lines) - room))
    return Group(*head, *lines[choice.first :][:room], Text(_KEYS_OF_INCIDENT, style="dim", no_wrap=True))


def _incident(incident: dict[str, Any], now: float) -> Text:
    severity = incident["severity"]
    text = Text(f"\n{SYMBOLS.get(severity, '')} {incident['incident']} ", style=_STYLES.get(severity, ""))
    text.append(f"{one_line(incident['run'])}, {severity}, for {duration(now - incident['since'])}\n", style="bold")
    return text.append(f"  {one_line(incident['summary'])}", style="default not bold")


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
    lines: list[list[str | Text]] = []
    for run in runs:
        iteration, total = run.get("iteration"), run.get("train_iterations")
        done = percent(iteration / total) if iteration is not None and total else DASH
        shown = figures(run, now) | {"done": Figure(done), "mfu": Figure(percent(run.get("mfu")))}
        state = _state(run, shown["state"], noted=width >= _MIN_WIDTH_FOR_NOTES)
        lines.append([run["run"], state, *(_cell(shown[key]) for key in _FIGURES.values())])
    right = [place > 1 for place in range(len(headers))]
    return fitted(headers, lines, right, _FIRST, width, _NAME_WIDTH, gap=1)[0]


def _cell(figure: Figure) -> Text:
    return Text(figure.text.removesuffix(" ago").replace("\u00a0", " "), style=_STYLES.get(figure.tone, ""))


def _state(run: Run, shown: Figure, *, noted: bool) -> Text:
    """Return the state and, if `noted`, its note: the phase, or why the run crashed."""
    text = Text(shown.text, style=_STYLES.get(shown.tone) or _STYLES.get(run["state"], ""))
    return text.append(f" {one_line(shown.note)}", style="dim") if noted and shown.note else text
