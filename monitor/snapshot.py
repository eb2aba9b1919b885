"""What HTTP reads: samples, the monitor's own counts, and the immutable Snapshot of all runs."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from megatron_monitor.charts.history import History
from megatron_monitor.incidents import Transition

_MAX_LABEL = 300


class MetricSample(Struct, frozen=True, gc=False):
    """`labels` are the values of the metric's own labels in the row's order, without `run`."""

    labels: tuple[str, ...]
    value: float


class HistogramSample(Struct, frozen=True, gc=False):
    """Cumulative counts by upper bound (the last is +Inf) and the sum of all values."""

    buckets: tuple[tuple[str, float], ...]
    sum: float


@lru_cache(maxsize=4096)
def clean_label(text: str, longest: int = _MAX_LABEL) -> str:
    """Return a label value that cannot break the exposition format: valid UTF-8, no control characters, bounded."""
    text = text.encode("utf-8", "replace").decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "�" for char in text[:longest])


class MonitorCounts(Struct):
    """The daemon's own values by metric name and label values. Written only by the loop's thread."""

    values: dict[str, dict[tuple[str, ...], float]] = field(default_factory=dict)

    def add(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Increase a counter."""
        series = self.values.setdefault(f"megatron_monitor_{name}", {})
        series[labels] = series.get(labels, 0.0) + by

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge, or a counter that is counted elsewhere."""
        self.values.setdefault(f"megatron_monitor_{name}", {})[labels] = value

    def clear(self, name: str) -> None:
        """Remove the series of a gauge before they are set again."""
        self.values.pop(f"megatron_monitor_{name}", None)

    def frozen(self) -> dict[str, tuple[MetricSample, ...]]:
        """Return a copy that other threads may read."""
        return {
            name: tuple(
                MetricSample(tuple(clean_label(label) for label in labels), value) for labels, value in series.items()
            )
            for name, series in self.values.items()
        }


class RunSnapshot(Struct, frozen=True):
    """One run as HTTP shows it: samples by metric, and plain data for the page and the API."""

    run: str
    samples: dict[str, tuple[MetricSample, ...] | HistogramSample]
    page: dict[str, Any]
    history: History = field(default_factory=History)
    """A copy for charts that the loop no longer changes."""
    transitions: tuple[Transition, ...] = ()
    log: dict[str, Any] = field(default_factory=dict)
    """The last lines of its streams, and those around the line of each open incident (log_tail.py)."""
    advice: Any = None
    """The answer to a program that asks for advice (monitor/advice/). None without that part."""


def as_asked(run: str) -> str:
    """Return a run's name as a browser can send it: a name may contain bytes that are not UTF-8."""
    return run.encode("utf-8", "replace").decode()


class ViewRequest(Struct, frozen=True):
    """What a reader needs of the runs besides their open incidents."""

    samples: bool = True
    pages: bool = True
    """True: the figures of each run for cards and tables."""
    whole: frozenset[str] | None = None
    """Runs whose page, charts and advice are needed. None: all."""

    def any_of(self, run: str) -> bool:
        """Return True if any part is needed."""
        return self.samples or self.page_of(run)

    def page_of(self, run: str) -> bool:
        """Return True if the run's page is needed."""
        return self.pages or self.whole_of(run)

    def whole_of(self, run: str) -> bool:
        """Return True if its charts and advice are needed as well."""
        return self.whole is None or as_asked(run) in self.whole

    def __or__(self, other: "ViewRequest") -> "ViewRequest":
        whole = None if self.whole is None or other.whole is None else self.whole | other.whole
        return ViewRequest(self.samples or other.samples, self.pages or other.pages, whole)


NOTHING = ViewRequest(samples=False, pages=False, whole=frozenset())
FIGURES = ViewRequest(pages=False, whole=frozenset())
CARDS = ViewRequest(whole=frozenset())
EVERYTHING = ViewRequest()


class Snapshot(Struct, frozen=True):
    """Everything that HTTP shows at one instant. It never changes."""

    at: float
    runs: tuple[RunSnapshot, ...] = ()
    monitor: dict[str, tuple[MetricSample, ...]] = field(default_factory=dict)
    incidents: tuple[dict[str, Any], ...] = ()
    ready: bool = False
    behind_seconds: float = 0.0
    """Seconds for which some log had not been read or folded at `at`."""
    ended: tuple[RunSnapshot, ...] = ()
    """Ended runs whose series are no longer exported, as last shown: for the page only."""

    @property
    def all_runs(self) -> tuple[RunSnapshot, ...]:
        """Return the runs of the page."""
        return self.runs + self.ended


_SUMMED = frozenset(f"megatron_monitor_{name}" for name in ("runs", "sources", "lag_bytes", "notifications_pending"))


def merged(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Return the snapshots of several cores as one. If a run is in two, the first is used."""
    first, *others = snapshots
    if not others:
        return first

    def each(name: str) -> list[Any]:
        return [getattr(one, name) for one in snapshots]

    runs: dict[str, RunSnapshot] = {}
    for run in chain(*each("runs")):
        runs.setdefault(run.run, run)
    ended = {run.run: run for run in chain(*each("ended")) if run.run not in runs}
    return replace(
        first,
        runs=tuple(run for _, run in sorted(runs.items())),
        monitor=_together(item for part in each("monitor") for item in part.items()),
        incidents=tuple(chain(*(run.page["incidents"] for run in (*runs.values(), *ended.values())))),
        ended=tuple(ended.values()),
        ready=all(each("ready")),
        behind_seconds=max(each("behind_seconds")),
    )


def _together(several: Iterable[tuple[str, Sequence[MetricSample]]]) -> dict[str, tuple[MetricSample, ...]]:
    """Return the own values of several monitors together: counts and amounts are added, of other values the largest is
    used.
    """
    series: dict[str, dict[tuple[str, ...], float]] = {}
    for name, samples in several:
        known, summed = series.setdefault(name, {}), name.endswith("_total") or name in _SUMMED
        for one in samples:
            before = known.get(one.labels, 0.0)
            known[one.labels] = before + one.value if summed else max(before, one.value)
    return {name: tuple(MetricSample(*one) for one in known.items()) for name, known in series.items()}
