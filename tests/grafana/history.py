"""A day of metrics as OpenMetrics text with timestamps, by the catalogue: what Prometheus would have scraped.

    python -m tests.grafana.history OUT.om END_UNIX_SECONDS [STEP_SECONDS [CLONES]]

`promtool tsdb create-blocks-from openmetrics OUT.om DATA` makes a data directory of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from monitor.metrics import CATALOGUE, MONITOR_CATALOGUE
from monitor.run.pace import HISTOGRAM_BUCKETS
from tests.grafana.runs import DEAD, FIRST, SECOND, Scene, scenes

DAY = 86400
DEAD_SINCE = 40 * 60  # seconds before the end at which the second daemon died
DAEMONS = (FIRST, DEAD, SECOND)
JOB = "megatron-monitor"
# What Prometheus and the client library add: (kind, labels beside job and instance)
FOREIGN: dict[str, tuple[str, tuple[str, ...]]] = {
    "up": ("gauge", ()),
    "scrape_duration_seconds": ("gauge", ()),
    "scrape_samples_scraped": ("gauge", ()),
    "process_cpu_seconds_total": ("counter", ()),
    "process_resident_memory_bytes": ("gauge", ()),
    "process_open_fds": ("gauge", ()),
    "process_max_fds": ("gauge", ()),
    "process_start_time_seconds": ("gauge", ()),
    "ALERTS": ("gauge", ("alertname", "alertstate", "severity", "run")),
}
KNOWN: dict[str, tuple[str, tuple[str, ...]]] = {
    **{metric.name: (metric.kind, ("run", *metric.labels)) for metric in CATALOGUE},
    **{own.name: (own.kind, own.labels) for own in MONITOR_CATALOGUE},
    **FOREIGN,
}


class Page:
    """Samples by family and series. Refuses a name or a label that the catalogue does not have."""

    def __init__(self) -> None:
        self.families: dict[str, dict[str, list[str]]] = {}

    def put(self, name: str, at: float, value: float, labels: dict[str, str], instance: str) -> None:
        """One sample of a gauge or a counter."""
        _, known = KNOWN[name]
        assert set(labels) == set(known), f"{name} has the labels {known}, not {sorted(labels)}"
        self._line(name, name, at, value, labels, instance)

    def histogram(self, name: str, at: float, counts: list[float], total: float, run: str, instance: str) -> None:
        """Cumulative counts by the catalogue's buckets, the last is +Inf."""
        assert KNOWN[name][0] == "histogram"
        for bound, count in zip((*map(float, HISTOGRAM_BUCKETS), float("inf")), counts, strict=True):
            le = "+Inf" if bound == float("inf") else repr(bound)
            self._line(name, f"{name}_bucket", at, count, {"le": le, "run": run}, instance)
        self._line(name, f"{name}_count", at, counts[-1], {"run": run}, instance)
        self._line(name, f"{name}_sum", at, total, {"run": run}, instance)

    def _line(self, family: str, name: str, at: float, value: float, labels: dict[str, str], instance: str) -> None:
        every = {**labels, "instance": instance, "job": JOB}
        text = ",".join(f'{key}="{every[key]}"' for key in sorted(every))
        series = f"{name}{{{text}}}"
        self.families.setdefault(family, {}).setdefault(series, []).append(f"{series} {value:.10g} {at:.0f}\n")

    def lines(self) -> Iterator[str]:
        """The text, each family together, `# EOF` at the end."""
        for family, series in self.families.items():
            kind = KNOWN[family][0]
            yield f"# TYPE {family.removesuffix('_total') if kind == 'counter' else family} {kind}\n"
            for samples in series.values():
                yield from samples
        yield "# EOF\n"


def _daemon(page: Page, at: float, index: int, step: float, end: float, instance: str, runs: int) -> None:
    alive = instance != DEAD or at < end - DEAD_SINCE
    page.put("up", at, float(alive), {}, instance)
    page.put("scrape_duration_seconds", at, 0.011 + 0.002 * (index % 3) if alive else 10.0, {}, instance)
    page.put("scrape_samples_scraped", at, 60.0 * runs + 70 if alive else 0.0, {}, instance)
    if not alive:
        return
    since = index * step

    def own(name: str, value: float, /, **labels: str) -> None:
        page.put(f"megatron_monitor_{name}", at, value, labels, instance)

    own("build_info", 1, version="0.1.0", python="3.11.2")
    own("ready", 1)
    own("stopped_timestamp_seconds", at - 5)
    own("page_info", 1, url=f"http://{instance}/")
    own("runs", runs)
    page.put("megatron_suspect_node", at, 7, {"node": "node7"}, instance)
    for state, count in (("reading", 0), ("following", runs + 1), ("unreadable", int(1800 < since % 43200 < 4000))):
        own("sources", count, state=state)
    for outcome, pace in (("matched", 0.9), ("other", 5.2), ("too_long", 0.0)):
        own("lines_total", pace * since * runs, outcome=outcome)
    for event, pace in (("iteration", 0.11), ("memory", 0.02), ("checkpoint_saved", 0.0004), ("validation", 0.0005)):
        own("events_total", pace * since * runs, event=event)
    own("bytes_total", 900.0 * since * runs)
    own("bytes_behind", 0.0 if index % 40 else 2.5e6)
    own("last_read_timestamp_seconds", at - 4)
    own("loop_timestamp_seconds", at - 1)
    own("loop_duration_seconds", 0.004 + 0.001 * (index % 5))
    own("truncations_total", 0)
    own("rotations_total", 1 + int(since > 50000))
    own("io_errors_total", max(0.0, min(since, 4000) - 1800) / 30, errno="ESTALE")
    own("malformed_lines_total", float(int(since // 30000)), rule="megatron.iteration")
    own("pattern_timeouts_total", 0, pattern="reward")
    own("put_aside_total", 0, room="page")
    own("unheard_seconds_total", 0, mount="/")
    own("stat_calls_total", 2.0 * since * runs)
    for outcome, count in (("sent", since // 20000), ("failed", 0), ("dropped", 0)):
        own("notifications_total", count, notifier="webhook", outcome=outcome)
    own("output_writes_total", since // 15, output="textfile", outcome="written")
    own("output_writes_total", 0, output="textfile", outcome="failed")
    own("state_save_failures_total", 0)
    own("state_rebuilds_total", 0)
    own("config_last_reload_successful", 1)
    own("config_last_reload_success_timestamp_seconds", end - DAY - 590)
    own("mount_info", 1, mount="/lustre", file_system="lustre", mode="polling")
    own("mount_busy_seconds", max(0.0, min(since, 4000) - 3400) if since < 5000 else 0.0, mount="/lustre")
    own("runs_dropped_total", int(since > 40000), reason="dead")
    own("clock_jumps_total", int(since > 70000))
    own("http_connections", 1 + index % 2)
    page.put("process_cpu_seconds_total", at, 0.012 * since, {}, instance)
    page.put("process_resident_memory_bytes", at, 6.1e7 + 2e6 * min(1.0, since / 3600), {}, instance)
    page.put("process_open_fds", at, 21.0 + runs, {}, instance)
    page.put("process_max_fds", at, 1024, {}, instance)
    restarted = instance == SECOND and at >= end - DAY / 4
    page.put("process_start_time_seconds", at, end - (DAY / 4 if restarted else DAY + 600), {}, instance)


def _alerts(page: Page, at: float, scene: Scene) -> None:
    for incident, severity in scene.open_incidents():
        name = "Megatron" + "".join(part.title() for part in incident.split("_"))
        labels = {"alertname": name, "alertstate": "firing", "severity": severity, "run": scene.run}
        page.put("ALERTS", at, 1, labels, FIRST)


def write(path: Path, end: float, step: float = 60.0, clones: int = 0) -> None:
    """A day that ends at `end` (Unix seconds), one sample a series each `step` seconds. `clones` adds healthy runs."""
    page = Page()
    running = scenes(clones)
    for index in range(int(DAY / step) + 1):
        at = end - DAY + index * step
        for scene in running:
            scene.advance(at - end, step)
            _alerts(page, at, scene)
            for instance in scene.daemons:
                if instance != DEAD or at < end - DEAD_SINCE:
                    scene.sample(page, at, instance)
        for instance in DAEMONS:
            watched = sum(instance in scene.daemons for scene in running)
            _daemon(page, at, index, step, end, instance, watched)
    with path.open("w") as stream:
        stream.writelines(page.lines())


if __name__ == "__main__":
    numbers = [float(argument) for argument in sys.argv[2:]]
    write(Path(sys.argv[1]), numbers[0], *numbers[1:2], *map(int, numbers[2:3]))
