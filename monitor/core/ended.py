"""Runs that are over and whose series have left: what a person still finds on the page, until their files vanish.

A crash at eleven in the evening must be on the page at three, and in the morning; a log that was dead when it was first
seen, too. Kept is what the page showed last, with charts of fewer points: nothing judges it, no metric exists for it.
"""

from collections.abc import Container, Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from megatron_monitor.charts.history import History
from megatron_monitor.incidents import Transition
from megatron_monitor.snapshot import RunSnapshot

MOST = 100
"""Rows: with their charts some 2 MB, here and in the state file."""
_BUCKETS = 64  # points of a chart
_OPEN = 86400.0  # seconds since it began for which an incident of such a run is still shown as open
_TOLD = 20  # incidents of its past


class Ended(Struct):
    """One of them, as it is saved."""

    page: dict[str, Any]
    history: History
    transitions: list[Transition]


class EndedRuns:
    """By name, at most MOST of them: those that left last."""

    def __init__(self) -> None:
        self.by_name: dict[str, Ended] = {}
        self._shown: dict[str, RunSnapshot] = {}

    def keep(self, shown: RunSnapshot) -> None:
        """The run leaves; `shown` is all that HTTP shows of it."""
        self.forget(shown.run)
        history = shown.history.frozen()  # a copy: what was shown other threads may still read
        history.thin(_BUCKETS)
        self.by_name[shown.run] = Ended({**shown.page, "history": []}, history, list(shown.transitions[-_TOLD:]))
        for name in list(self.by_name)[:-MOST]:
            self.forget(name)

    def forget(self, name: str) -> None:
        """It moves again, or there is nothing of it any more."""
        self.by_name.pop(name, None)
        self._shown.pop(name, None)

    def show(self, runs: Container[str], known: Iterable[Container[str]], at: float) -> tuple[RunSnapshot, ...]:
        """As HTTP shows them. Those are forgotten that have become one of the `runs`, or of whose sources none is
        `known` in any of these any more. `at`: Unix seconds.
        """
        for name, one in list(self.by_name.items()):
            if name in runs or not any(source in files for source in one.page["sources"] for files in known):
                self.forget(name)
        return tuple(self._show(name, one, at) for name, one in sorted(self.by_name.items()))

    def _show(self, name: str, one: Ended, at: float) -> RunSnapshot:
        shown = self._shown.get(name)
        if shown is None:
            page = {**one.page, "history": [item.to_json() for item in one.transitions]}
            shown = RunSnapshot(name, {}, page, one.history, tuple(one.transitions))
        still = [item for item in shown.page["incidents"] if at - item["since"] < _OPEN]
        if len(still) != len(shown.page["incidents"]):
            shown = replace(shown, page={**shown.page, "incidents": still})
        self._shown[name] = shown
        return shown
