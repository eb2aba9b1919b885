"""Runs that are over and whose series have left: what a person still finds on the page, until their files vanish.

A crash at eleven in the evening must be on the page at three, and in the morning; a log that was dead when it was first
seen, too. Kept is what the page showed last, with charts of fewer points: nothing judges it, no metric exists for it.
"""

from collections.abc import Container, Iterable

from msgspec.structs import replace

from megatron_monitor.snapshot import RunSnapshot

MOST = 100
"""Rows: with their charts some 2 MB, here and in the state file."""
_BUCKETS = 64  # points of a chart
_OPEN = 86400.0  # seconds since it began for which an incident of such a run is still shown as open
_REPORTED = 20  # incidents of its past


class EndedRuns:
    """At most MOST of them: those that left last."""

    def __init__(self) -> None:
        self.by_name: dict[str, RunSnapshot] = {}
        """What HTTP shows of each, and what is saved."""

    def keep(self, shown: RunSnapshot) -> None:
        """The run leaves; `shown` is all that HTTP shows of it."""
        history, transitions = (
            shown.history.frozen(),
            shown.transitions[-_REPORTED:],
        )  # copies: other threads may still read these
        history.thin(_BUCKETS)
        page = {**shown.page, "history": [one.to_json() for one in transitions]}
        self.by_name.pop(shown.run, None)
        self.by_name[shown.run] = RunSnapshot(shown.run, {}, page, history, transitions)
        for name in list(self.by_name)[:-MOST]:
            del self.by_name[name]

    def show(self, runs: Container[str], known: Iterable[Container[str]], at: float) -> tuple[RunSnapshot, ...]:
        """As HTTP shows them. Those are forgotten that have become one of the `runs`, or of whose sources none is
        `known` in any of these any more. `at`: Unix seconds.
        """
        for name, one in list(self.by_name.items()):
            if name in runs or not any(source in files for source in one.page["sources"] for files in known):
                del self.by_name[name]
                continue
            still = [item for item in one.page["incidents"] if at - item["since"] < _OPEN]
            if len(still) != len(one.page["incidents"]):
                self.by_name[name] = replace(one, page={**one.page, "incidents": still})
        return tuple(one for _, one in sorted(self.by_name.items()))
