"""The catalogue of metrics: one row of metrics.csv each.

Rules: metrics.csv is the only list of the metrics of a run, and docs/metrics.md is generated from it. A row reads a
`RunView` and gives samples, none if the log printed nothing. Times of events are timestamps, not ages; ratios are not
percentages.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from operator import attrgetter
from typing import Any, Literal

from msgspec import Struct, field

from megatron_monitor.breakdown.profile import critical
from megatron_monitor.causes import causes, failure_of, lost_seconds
from megatron_monitor.detectors import memory_pressure, slowdown
from megatron_monitor.incidents import Incident, IncidentBook
from megatron_monitor.parsers.tables import rows_of
from megatron_monitor.run import derived
from megatron_monitor.run.job import OVER
from megatron_monitor.run.phases import PARTS, RUN_STATES
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.pace import HISTOGRAM_BUCKETS
from megatron_monitor.snapshot import HistogramSample, MetricSample, clean_label

Kind = Literal["gauge", "counter", "histogram"]
_NO_LABELS: tuple[str, ...] = ()


class RunView(Struct, frozen=True):
    """The data from which a run's metrics are made; used only by the loop thread, which owns the state."""

    state: RunState
    book: IncidentBook
    run_state: str
    hang_deadline: float | None
    """Unix seconds; None if no progress is expected."""
    peak_tflops: float | None
    now: float | None = None
    """Unix seconds for a live run; None for a finished log, which ends with its last line."""
    over: bool = False
    """True when the daemon stops: no incident fires any more."""
    actions: tuple[str, ...] = ()
    """Remediations: dry runs, running and done."""
    nodes: tuple[str, ...] = ()
    """Nodes of the current attempt; empty if unknown or too many for a series each."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """The run's job and streams, with the reason of the assignment (monitor/identity/)."""


class MonitorMetric(Struct, frozen=True):
    """A metric of the daemon itself, a row of own_metrics.csv; its samples are counted in MonitorCounts by name."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]


class Metric(MonitorMetric, frozen=True):
    """A row of metrics.csv. `read` gives samples, or one Histogram."""

    read: Callable[[RunView], Iterable[MetricSample] | HistogramSample | None]


def _one(value: float | int | None) -> Iterable[MetricSample]:
    return () if value is None else (MetricSample(_NO_LABELS, float(value)),)


def _named(values: dict[str, Any]) -> Iterator[MetricSample]:
    for name, value in sorted(values.items()):
        if value is not None:
            yield MetricSample((clean_label(name),), float(value))


def _info(view: RunView) -> Iterator[MetricSample]:
    labels = view.state.attempt.topology.labels()
    labels["format"] = view.state.attempt.format or labels.get("format", "")
    yield MetricSample(tuple(clean_label(str(labels.get(name, ""))) for name in _LABELS["megatron_run_info"]), 1.0)


def _tflops(view: RunView) -> Iterator[MetricSample]:
    printed = derived.printed_tflops(view.state)
    if printed is not None:
        yield MetricSample(("log",), printed)
    computed = derived.computed_tflops(view.state)
    if computed is not None:
        yield MetricSample(("computed",), computed[1])


def _memory(view: RunView) -> Iterable[MetricSample]:
    kinds = ("allocated", "max_allocated", "reserved", "max_reserved")
    return _named({kind: getattr(view.state.attempt.memory, kind) for kind in kinds})


_BOUNDS = (*(repr(float(bound)) for bound in HISTOGRAM_BUCKETS), "+Inf")


def _durations(view: RunView) -> HistogramSample | None:
    seconds = view.state.seconds
    counts = zip(_BOUNDS, map(float, accumulate(seconds.buckets)), strict=True)
    return HistogramSample(tuple(counts), seconds.sum_seconds) if seconds.count else None


def _open(view: RunView) -> list[Incident]:
    return [] if view.over else list(view.book.open.values())


def _incidents(view: RunView) -> Iterator[MetricSample]:
    still_open = {(incident.incident, incident.severity, incident.event) for incident in view.book.open.values()}
    resolved = {tuple(labels.split(" ", 2)) for labels in view.book.over}
    firing = () if view.over else still_open
    return (MetricSample(labels, float(labels in firing)) for labels in sorted(still_open | resolved))


_MAX_SUMMARY = 300  # characters


def _incident_info(view: RunView) -> Iterator[MetricSample]:
    labels = _LABELS["megatron_incident_info"]
    for cause in causes(view.book) if not view.over else ():
        texts = (clean_label(getattr(cause, name), _MAX_SUMMARY + 1) for name in labels)
        yield MetricSample(tuple(t if len(t) <= _MAX_SUMMARY else f"{t[: _MAX_SUMMARY - 1]}…" for t in texts), 1.0)


def _failure_info(view: RunView) -> Iterator[MetricSample]:
    cause = failure_of(view.state)
    if cause is not None:
        labels = _LABELS["megatron_failure_info"]
        yield MetricSample(tuple(clean_label(getattr(cause, name)) for name in labels), 1.0)


def _section(view: RunView) -> Iterable[MetricSample]:
    state = view.state
    return (
        [MetricSample((name,), float(name == state.attempt.phase)) for name in PARTS]
        if state.attempt.parts.reported
        else ()
    )


def _timers(view: RunView, figure: int) -> Iterable[MetricSample]:
    """Return a figure of the last timers (`critical`) by category; the log prints them to ten microseconds."""
    timed = view.state.attempt.timers.shown
    return () if timed is None else _named({name: round(value, 6) for name, value in critical(timed)[figure].items()})


def _job(view: RunView) -> Iterator[MetricSample]:
    job = view.state.job
    if job is not None:
        code = "" if job.exit_code is None or job.state not in OVER else str(job.exit_code)
        limit = "" if job.time_limit is None else f"{job.time_limit:.0f}"
        texts = (job.number, job.state, job.reason, code, job.nodes, str(job.restarts), limit)
        yield MetricSample(tuple(clean_label(text) for text in texts), 1.0)


_READS: dict[str, Callable[[RunView], Iterable[MetricSample] | HistogramSample | None]] = {
    "parts": lambda view: _timers(view, 0),
    "spreads": lambda view: _timers(view, 1),
    "hang_deadline": lambda view: _one(
        math.inf if view.hang_deadline is None else view.hang_deadline - view.state.coverage.absent
    ),
    "nodes": lambda view: [MetricSample((clean_label(node),), 1.0) for node in view.nodes],
    "run_state": lambda view: [MetricSample((name,), float(name == view.run_state)) for name in RUN_STATES],
    "goodput": lambda view: _one(derived.goodput(view.state, view.now)),
    "mfu": lambda view: _one(derived.mfu(view.state, view.peak_tflops)),
    "validation": lambda view: _named({name: result.loss for name, result in view.state.attempt.validations.items()}),
    "gpu_seconds": lambda view: _one(view.state.gpu_seconds or None),
    "progress_at": lambda view: _one(view.state.unix(view.state.progress_at)),
    "lost": lambda view: [
        MetricSample((incident.incident, incident.severity), lost_seconds(incident.evidence))
        for incident in _open(view)
    ],
    "since": lambda view: [
        MetricSample((incident.incident, incident.severity), incident.since + view.state.wall_offset)
        for incident in _open(view)
    ],
    **{
        read.__name__.removeprefix("_"): read
        for read in (
            _info, _job, _section, _durations, _tflops, _memory, _incidents, _incident_info, _failure_info,
        )
    },
}  # fmt: skip
"""Readers that metrics.csv names. Other rows name a function of the run's state or an attribute of RunView."""
_OF_STATE = {"derived": derived, "memory_pressure": memory_pressure, "slowdown": slowdown}


def _reads(how: str, labelled: bool) -> Callable[[RunView], Iterable[MetricSample] | HistogramSample | None]:
    if how in _READS:
        return _READS[how]
    module, _, name = how.partition(".")
    if module in _OF_STATE:
        function = getattr(_OF_STATE[module], name)
        return lambda view: _one(function(view.state))
    value = attrgetter(how)
    return (lambda view: _named(value(view))) if labelled else (lambda view: _one(value(view)))


CATALOGUE: tuple[Metric, ...] = tuple(
    Metric(name, kind, text, tuple((labels or "").split()), _reads(how, labels is not None))
    for name, kind, labels, how, text in rows_of(
        "megatron_monitor", "metrics.csv", tuple[str, Kind, str | None, str, str]
    )
)
_LABELS = {metric.name: metric.labels for metric in CATALOGUE}


MONITOR_CATALOGUE: tuple[MonitorMetric, ...] = tuple(
    MonitorMetric(name, kind, text, tuple((labels or "").split()))
    for name, kind, labels, text in rows_of("megatron_monitor", "own_metrics.csv", tuple[str, Kind, str | None, str])
)


def samples_of(view: RunView) -> dict[str, tuple[MetricSample, ...] | HistogramSample]:
    """Return a run's samples by metric; metrics without samples are left out."""
    out: dict[str, tuple[MetricSample, ...] | HistogramSample] = {}
    for metric in CATALOGUE:
        samples = metric.read(view)
        if isinstance(samples, HistogramSample):
            out[metric.name] = samples
        elif samples is not None and (listed := tuple(samples)):
            out[metric.name] = listed
    return out
