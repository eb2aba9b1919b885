"""A day of metrics as OpenMetrics text with time stamps: what Prometheus would have scraped from three real daemons.

    python -m tests.grafana.history OUT.om END_UNIX_SECONDS [STEP_SECONDS]

Each daemon is the real core: it is handed the simulated logs at the instants at which they were written, judges them,
and is scraped in the text that /metrics serves. What Prometheus adds itself (`up`, ALERTS), and what the shell around
the core counts (connections, mounts), is put in here.
`promtool tsdb create-blocks-from openmetrics OUT.om DATA` makes a data directory of it.
"""

import heapq
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.follow.messages import CaughtUp, Data, Opened
from megatron_monitor.metrics import CATALOGUE, MONITOR_CATALOGUE
from megatron_monitor.prometheus_text import TextFormat
from megatron_monitor.run.records import SlurmJob
from megatron_monitor.snapshot import FIGURES, HistogramSample, MetricSample, Snapshot
from tests.grafana.runs import DEAD, DEAD_SINCE, FIRST, HOUR, SECOND, Run, runs

DAY = 6 * HOUR
DAEMONS = (FIRST, DEAD, SECOND)
JOB = "megatron-monitor"
# What Prometheus and the client library add: (kind, labels beside job and instance)
FOREIGN: dict[str, tuple[str, tuple[str, ...]]] = {
    "up": ("gauge", ()),
    "process_cpu_seconds_total": ("counter", ()),
    "process_resident_memory_bytes": ("gauge", ()),
    "process_start_time_seconds": ("gauge", ()),
    "ALERTS": ("gauge", ("alertname", "alertstate", "severity", "run", "incident", "event")),
}
RECORDED: dict[str, tuple[str, tuple[str, ...]]] = {
    "run:megatron_unwatched_since_timestamp_seconds": ("gauge", ("run",)),
    "run:megatron_hang_deadline_timestamp_seconds:last": ("gauge", ("run",)),
    "run_incident:megatron_incident:last": ("gauge", ("run", "incident", "severity", "event")),
}
"""What the rules record and dashboards read."""
KNOWN: dict[str, tuple[str, tuple[str, ...]]] = {
    **{metric.name: (metric.kind, ("run", *metric.labels)) for metric in CATALOGUE},
    **{own.name: (own.kind, own.labels) for own in MONITOR_CATALOGUE},
    **FOREIGN,
    **RECORDED,
}


class Page:
    """Samples by series, in the order of time."""

    def __init__(self) -> None:
        self.series: dict[str, list[str]] = {}

    def scraped(self, text: str, at: float) -> None:
        """A page of /metrics."""
        stamp = f" {at:.0f}\n"
        for line in text.split("\n"):
            if line and line[0] != "#":
                series, _, value = line.rpartition(" ")
                self.series.setdefault(series, []).append(f"{series} {value}{stamp}")

    def put(self, name: str, at: float, value: float, labels: dict[str, str], instance: str) -> None:
        """One sample of something that is not the daemon's."""
        known = KNOWN[name][1]
        assert set(labels) == set(known), f"{name} has the labels {known}, not {sorted(labels)}"
        every = {**labels, "instance": instance, "job": JOB} if name in FOREIGN else labels
        text = ",".join(f'{key}="{every[key]}"' for key in sorted(every))
        self.scraped(f"{name}{{{text}}} {value:.10g}", at)

    def lines(self) -> Iterator[str]:
        """The text, each family together, `# EOF` at the end."""
        families: dict[str, list[str]] = {}
        for series in self.series:
            families.setdefault(base_name(series.partition("{")[0]), []).append(series)
        for family, members in families.items():
            kind = KNOWN[family][0]
            yield f"# TYPE {family.removesuffix('_total') if kind == 'counter' else family} {kind}\n"
            for series in members:
                yield from self.series[series]
        yield "# EOF\n"


def base_name(name: str) -> str:
    """The catalogue's name of a series: a histogram's parts are one metric."""
    for suffix in ("_bucket", "_count", "_sum"):
        if name.endswith(suffix) and KNOWN.get(name.removesuffix(suffix), ("", ()))[0] == "histogram":
            return name.removesuffix(suffix)
    return name


@dataclass
class Daemon:
    """A core, told what its files hold as time goes on."""

    instance: str
    end: float
    core: Core = field(default_factory=lambda: Core(load("", ["runs=[{paths: [/runs/*.log]}]"])))
    offsets: dict[str, int] = field(default_factory=dict)
    turned_at: float = 0.0

    def __post_init__(self) -> None:
        self.format = TextFormat({"instance": self.instance, "job": JOB})
        counts = self.core.counts
        counts.set("ready", 1)
        counts.set("page_info", 1, f"http://{self.instance}/")
        for outcome in ("sent", "failed", "dropped"):
            counts.set("notifications_total", 0, "webhook", outcome)

    def read(self, run: Run, at: float, text: str, written: float) -> None:
        """Text of a run, read at an instant."""
        path, data = f"/runs/{run.name}.log", text.encode()
        fresh = path not in self.offsets
        if fresh:
            self.core.handle(Opened(path, path, None, 0, written, False), at)
        offset = self.offsets.get(path, 0)
        self.core.handle(Data(path, offset, data, written, at, 0), at)
        self.offsets[path] = offset + len(data)
        if fresh:
            self.core.handle(CaughtUp(path, at), at)
            self.core.runs[run.name].state.job = SlurmJob("1718955", "RUNNING", nodes=run.nodes, time_limit=72000.0)
        self.turn(at)

    def turn(self, at: float, least: float = 10.0) -> None:
        """The loop turns, `least` seconds after it turned last: the day has no more time than that."""
        if at - self.turned_at < least:
            return
        self.turned_at = at
        for transition in self.core.tick(at):
            if not transition.display_only:
                self.core.counts.add("notifications_total", "webhook", "sent")

    def scrape(self, page: Page, at: float) -> Snapshot:
        """What a scrape of it sees."""
        counts, since = self.core.counts, at - self.end + DAY
        self.turn(at, 0.0)
        counts.set("loop_timestamp_seconds", at)
        counts.set("loop_duration_seconds", 0.004)
        counts.add("output_writes_total", "textfile", "written")
        self._past_troubles(since)
        snapshot = self.core.snapshot(at, FIGURES)
        page.scraped(self.format.page(snapshot), at)
        return snapshot

    def _past_troubles(self, since: float) -> None:
        """What the monitor's own dashboard shows of worse days, and of pushes and Kafka."""
        counts = self.core.counts
        counts.set("actions_total", float(since > 16000), "requeue-hangs", "requeue", "done")
        counts.set("slurm_calls_total", since // 60, "answered")
        counts.set("receiver_lines_total", since * 2.0, "new")
        counts.set("receiver_lines_total", float(since > 16000), "invalid")
        for name in ("duplicate_lines_total", "late_lines_total"):
            counts.set(name, max(0.0, since - 9000) / 60, "pushed")
        counts.set("kafka_lag", 3.0, "0")
        counts.set("io_errors_total", max(0.0, min(since, 4000) - 1800) / 30, "ESTALE")
        counts.set("malformed_lines_total", float(int(since // 7000)), "megatron.iteration")


def _process(page: Page, at: float, instance: str, end: float, *, alive: bool) -> None:
    """What Prometheus and the client library add."""
    page.put("up", at, float(alive), {}, instance)
    if alive:
        since = at - end + DAY
        restarted = instance == SECOND and at >= end - DAY / 4
        page.put("process_cpu_seconds_total", at, 0.012 * since, {}, instance)
        page.put("process_resident_memory_bytes", at, 6.1e7 + 2e6 * min(1.0, since / HOUR), {}, instance)
        page.put("process_start_time_seconds", at, end - (DAY / 4 if restarted else DAY + 600), {}, instance)


def _alerts(page: Page, at: float, snapshot: Snapshot) -> None:
    for run in snapshot.runs:
        for sample in run.samples.get("megatron_incident", ()):
            assert isinstance(sample, MetricSample)
            incident, severity, event = sample.labels
            if sample.value and event:
                reported = {"severity": severity, "run": run.run, "incident": incident, "event": event}
                page.put("ALERTS", at, 1, {"alertname": "MegatronIncident", "alertstate": "firing", **reported}, FIRST)


def _recorded(page: Page, at: float, end: float, snapshot: Snapshot | None) -> None:
    """What the rules remember of the runs that only the daemon showed that died."""
    for run in (run for run in runs() if run.daemons == (DEAD,)):
        if snapshot is None:
            page.put("run:megatron_unwatched_since_timestamp_seconds", at, end - DEAD_SINCE, {"run": run.name}, "")
            held = end - DEAD_SINCE + 95.0
            labels = {"run": run.name, "incident": "slowdown", "severity": "warning", "event": "e"}
            page.put("run_incident:megatron_incident:last", at, 1.0, labels, "")
        else:
            shown = next((one for one in snapshot.runs if one.run == run.name), None)
            found = shown.samples.get("megatron_hang_deadline_timestamp_seconds", ()) if shown else ()
            if not isinstance(found, tuple) or isinstance(found, HistogramSample) or not found:
                continue
            held = found[0].value
        page.put("run:megatron_hang_deadline_timestamp_seconds:last", at, held, {"run": run.name}, "")


def _numbered(number: int, run: Run) -> Iterator[tuple[float, int, Run, str]]:
    for at, text in run.texts():
        yield at, number, run, text


def write(path: Path, end: float, step: float = 30.0) -> None:
    """A day that ends at `end` (Unix seconds), one scrape of each daemon every `step` seconds."""
    page, daemons = Page(), {instance: Daemon(instance, end) for instance in DAEMONS}
    streams = (_numbered(number, run) for number, run in enumerate(runs()))
    lines = heapq.merge(*streams, key=lambda item: (item[0], item[1]))
    upcoming = next(lines, None)
    for index in range(int(DAY / step) + 1):
        at = end - DAY + index * step
        while upcoming is not None and end + upcoming[0] <= at:
            when, _, run, text = upcoming
            for instance in run.daemons:
                if instance != DEAD or when < -DEAD_SINCE:
                    daemons[instance].read(run, end + when, text, end + when)
            upcoming = next(lines, None)
        for instance, daemon in daemons.items():
            alive = instance != DEAD or at < end - DEAD_SINCE
            if alive:
                snapshot = daemon.scrape(page, at)
                if instance == FIRST:
                    _alerts(page, at, snapshot)
            if instance == DEAD:
                _recorded(page, at, end, snapshot if alive else None)
            _process(page, at, instance, end, alive=alive)
    with path.open("w") as stream:
        stream.writelines(page.lines())


if __name__ == "__main__":
    numbers = [float(argument) for argument in sys.argv[2:]]
    write(Path(sys.argv[1]), *numbers)
