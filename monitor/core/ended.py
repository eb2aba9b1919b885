"""Ended runs whose series have expired: the page shows them until their files vanish.

A crash in the evening must still be on the page in the morning, and so must a log that was old when it was opened. The
last content of the page is kept, with charts of fewer points, without evaluation and metrics.
"""

from collections.abc import Container, Iterable

from msgspec.structs import replace

from megatron_monitor.snapshot import RunSnapshot

MOST = 100
"""Maximum runs: with their charts some 2 MB, in memory and in the state file."""
_BUCKETS = 64  # points of a chart
_OPEN = 86400.0  # seconds for which an incident of such a run is shown as open
_REPORTED = 20  # transitions of its history


class EndedRuns:
    """The ended runs, at most MOST: those that expired last."""

    def __init__(self) -> None:
        self.by_name: dict[str, RunSnapshot] = {}
        """Run -> its last snapshot, which is also saved."""

    def keep(self, shown: RunSnapshot) -> None:
        """Keep the last snapshot of an expired run."""
        history, transitions = shown.history.frozen(), shown.transitions[-_REPORTED:]  # copies for other threads
        history.thin(_BUCKETS)
        page = {**shown.page, "history": [one.to_json() for one in transitions]}
        self.by_name.pop(shown.run, None)
        self.by_name[shown.run] = RunSnapshot(shown.run, {}, page, history, transitions)
        for name in list(self.by_name)[:-MOST]:
            del self.by_name[name]

    def show(self, runs: Container[str], known: Iterable[Container[str]], at: float) -> tuple[RunSnapshot, ...]:
        """Return the snapshots at `at`, Unix seconds, without runs in `runs` and runs without `known` files."""
        for name, one in list(self.by_name.items()):
            if name in runs or not any(source in files for source in one.page["sources"] for files in known):
                del self.by_name[name]
                continue
            still = [item for item in one.page["incidents"] if at - item["since"] < _OPEN]
            if len(still) != len(one.page["incidents"]):
                self.by_name[name] = replace(one, page={**one.page, "incidents": still})
        return tuple(one for _, one in sorted(self.by_name.items()))
