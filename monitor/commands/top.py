"""`top`: the page's table in a terminal, from files or from a daemon."""

import logging
import os
import re
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
from msgspec import Struct
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from megatron_monitor.archive import read_runs
from megatron_monitor.commands.arguments import Given, fail, warn, with_config
from megatron_monitor.commands.asking import DEFAULT, DaemonError, ask, without_password
from megatron_monitor.commands.top_screen import in_order, opened, page, plain, room_of, screen
from megatron_monitor.config import Config
from megatron_monitor.live import LiveCore
from megatron_monitor.reports.rows import Options, Row
from megatron_monitor.snapshot import Snapshot
from megatron_monitor.system.clock import SystemClock

HELP = """\
up, down, page up, page down, Home, End   choose a run; the table scrolls (also k, j, g, G)
Enter     the run's figures, incidents and last line; Escape leaves it
/         filter by words in name, state and incident; Enter keeps the filter, Escape drops it
s, S      sort by the next, by the one before
q         end"""
_KEY = re.compile(r"\x1b(?:\[\d+~|[\[O][A-Z])|.", re.DOTALL)
_MOVES = {
    "\x1b[A": -1, "\x1bOA": -1, "k": -1, "\x1b[B": 1, "\x1bOB": 1, "j": 1, "\x1b[H": -1e6, "\x1b[1~": -1e6, "g": -1e6,
    "\x1b[F": 1e6, "\x1b[4~": 1e6, "G": 1e6,
}  # fmt: skip
_PAGES = {"\x1b[5~": -1, "\x1b[6~": 1}
SORTS = {
    "worst first": "", "name": "run", "state": "state", "iteration": "iteration", "pace": "seconds_per_iteration",
    "over normal": "slowdown_ratio", "silence": "progress_at", "end": "eta",
}  # fmt: skip
"""What runs are sorted by, and the key of it in a run's data."""
_SMALLEST_FIRST = ("run", "state", "progress_at", "eta")


class Choice(Struct):
    """What the reader of the screen has chosen."""

    run: str | None = None
    """Where the bar stands; None: on the first, whichever that is."""
    query: str = ""
    typing: bool = False
    """Keys go into the query."""
    sort: str = "worst first"
    opened: bool = False
    help: bool = False

    def rows(self, runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those that the query leaves, in the order of the sort; what is unknown stands last."""
        words, by = self.query.lower().split(), SORTS[self.sort]
        left = [run for run in in_order(runs) if all(word in _words_of(run) for word in words)]
        return sorted(left, key=lambda run: _order(run, by)) if by else left

    def place(self, rows: Sequence[dict[str, Any]]) -> int:
        """The row of the bar."""
        return next((at for at, run in enumerate(rows) if run["run"] == self.run), 0)

    def press(self, text: str, runs: Sequence[dict[str, Any]], room: int) -> bool:
        """Keys as a terminal sends them; so many rows have room. False: it is over."""
        return all(self._press(key, runs, room) for key in _KEY.findall(text))

    def _press(self, key: str, runs: Sequence[dict[str, Any]], room: int) -> bool:
        if key == "\x1b":
            self.query = self.query if self.opened or self.help else ""
            self.opened = self.help = self.typing = False
        elif key in "\r\n":
            self.opened, self.typing = not self.typing, False
        elif self.typing:
            self.query = self.query[:-1] if key in "\x7f\b" else self.query + key * key.isprintable()
        elif key == "/":
            self.typing, self.opened, self.query = True, False, ""
        elif key == "?":
            self.help = not self.help
        elif key in "sS":
            names = list(SORTS)
            self.sort = names[(names.index(self.sort) + (1 if key == "s" else -1)) % len(names)]
        elif (step := _MOVES.get(key, _PAGES.get(key, 0) * room)) and (rows := self.rows(runs)):
            at = int(max(0, min(len(rows) - 1, self.place(rows) + step)))
            self.run = rows[at]["run"] if at else None
        return key not in "qQ" or self.typing


def _order(run: dict[str, Any], by: str) -> tuple[bool, Any]:
    value = run.get(by)
    if value is None or value != value:
        return True, 0
    return False, value if by in _SMALLEST_FIRST else -value


def _words_of(run: dict[str, Any]) -> str:
    return " ".join((run["run"], run["state"], *(item["incident"] for item in run["incidents"]))).lower()


_BRIEF = 0.1  # seconds that a key waits at most while nothing new is looked at
_HOST_AND_PORT = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")


class View(NamedTuple):
    """The runs as the API gives them, and the clock of whoever judged them."""

    at: float
    runs: list[dict[str, Any]]


Look = Callable[[float], View]
"""Wait up to so many seconds, and give what there is then."""


@click.command()
@click.argument("targets", nargs=-1, metavar="[PATH|URL]...")
@with_config
@click.option(
    "--plain", "as_lines", is_flag=True, help="Aligned columns for pipes: numbers without units, - for unknown."
)
@click.option("--once", is_flag=True, help="Show once and exit; so it does where standard output is no terminal.")
@click.option("--every", type=click.FloatRange(0.2), default=None, help="Seconds between two looks.  [default: 2]")
def top(targets: tuple[str, ...], given: Given, as_lines: bool, once: bool, every: float | None) -> None:
    r"""Show all runs in the terminal, those that need a look first: from a daemon, or straight from logs. ? shows keys.

    \b
    Examples:
      megatron-monitor top                            the daemon on 127.0.0.1:9843
      megatron-monitor top http://login-node:9843
      megatron-monitor top '/logs/**/*.out'           no daemon needed
      megatron-monitor top --plain | awk '$2 == "hung"'
    """
    logging.basicConfig(handlers=[logging.NullHandler()])  # the screen shows what cannot be read
    terminal = sys.stdout.isatty()
    once = once or (not terminal and every is None)
    try:
        with _source(targets, given, once) as (look, where):
            if once:
                _print(look(0.0), where, as_lines or not terminal)
            elif as_lines or not terminal:
                while True:
                    _print(look(every or 2.0), where, True)
            else:
                _watch(look, where, every or 2.0)
    except DaemonError as error:
        fail(error)
    except (KeyboardInterrupt, BrokenPipeError):
        sys.stderr.close()  # nothing more to say, nor for the interpreter as it ends


def _print(view: View, where: str, as_lines: bool) -> None:
    if as_lines:
        click.echo(plain(view.runs, view.at), nl=False)
    else:
        console = Console()
        console.print(screen(view.runs, view.at, where, console.width))
    sys.stdout.flush()


# --- where the runs come from ---------------------------------------------------------------------------------------


@contextmanager
def _source(targets: tuple[str, ...], given: Given, once: bool) -> Iterator[tuple[Look, str]]:
    addresses = [target for target in targets if _is_address(target)]
    if addresses and (len(targets) > 1 or given != Given()):
        raise click.UsageError("give one URL alone, or paths with their settings: a daemon has its own")
    if addresses or (not targets and given.file is None):
        address = addresses[0] if addresses else DEFAULT
        yield partial(_asked, address), without_password(address)
        return
    config = given.configured(targets)
    if once:
        yield lambda _: _finished(config), "read to the end"
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


def _view(snapshot: Snapshot) -> View:
    return View(snapshot.at, [run.page for run in snapshot.runs])


def _finished(config: Config) -> View:
    core, found, problems = read_runs(config, Options(config.gpu_peak_tflops), SystemClock())
    warn(*problems)
    snapshot = core.snapshot(SystemClock().wall())
    if not found:
        raise DaemonError("no training run found")
    rows = {row.run: row for _, row in found}
    return View(snapshot.at, [_as_reported(run.page, rows.get(run.page["run"])) for run in snapshot.runs])


def _as_reported(page: dict[str, Any], row: Row | None) -> dict[str, Any]:
    """A log that was read to its end shows the figures of `report`: medians of the run, not its last iteration's."""
    if row is None:
        return page
    figures = {
        "seconds_per_iteration": row.seconds_per_iteration, "tflops": row.tflops, "mfu": row.mfu, "hfu": row.hfu,
        "samples_per_second": row.samples_per_second, "max_memory_bytes": row.memory_bytes,
    }  # fmt: skip
    return {**page, **{name: value for name, value in figures.items() if value is not None}}


def _asked(address: str, seconds: float) -> View:
    """By the API. A first failure is a DaemonError, a later one too: the caller knows what it last saw."""
    SystemClock().sleep(seconds)
    value = ask(address, "/api/v1/runs", "; name a URL, or the logs themselves")
    try:
        return View(float(value["at"]), [dict(run) for run in value["runs"]])
    except (KeyError, TypeError) as error:
        raise DaemonError(f"{without_password(address)} is no megatron-monitor of this version") from error


# --- the screen -----------------------------------------------------------------------------------------------------


def _watch(look: Look, where: str, every: float) -> None:
    console, choice, clock = Console(), Choice(), SystemClock()
    view, problem, looked = look(0.0), "", clock.monotonic()
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_drawn(view, where, problem, console, choice), refresh=True)
            while not (keys := pressed(_BRIEF)) and clock.monotonic() - looked < every:
                pass
            if not choice.press(keys, view.runs, room_of(console.height)):
                return
            if clock.monotonic() - looked >= every:
                try:
                    view, problem = look(_BRIEF), ""
                except DaemonError as error:
                    problem = str(error)
                looked = clock.monotonic()


def _drawn(view: View, where: str, problem: str, console: Console, choice: Choice) -> RenderableType:
    rows = choice.rows(view.runs)
    bar = choice.place(rows)
    if choice.help:
        return Text(HELP)
    if choice.opened and rows:
        return opened(rows[bar], view.at)
    query = f"/{choice.query}{'_' * choice.typing}  " if choice.query or choice.typing else ""
    foot = f"{query}{choice.sort}  ? keys  / filter  s sort  Enter open  q end"
    return page(view.runs, rows, bar, view.at, where, (console.width, console.height), problem, foot)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """What is pressed within so many seconds; the terminal is as it was afterwards."""
    if not sys.stdin.isatty():

        def nothing(seconds: float) -> str:
            SystemClock().sleep(seconds)
            return ""

        yield nothing
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)

    def pressed(seconds: float) -> str:
        ready = select.select([terminal], [], [], seconds)[0]
        return os.read(terminal, 64).decode("utf-8", "replace") if ready else ""

    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
