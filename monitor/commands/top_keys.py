"""What the keys of `top` do: which run is chosen, what is filtered, sorted, opened. Pure."""

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from monitor.commands.top_screen import in_order

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
