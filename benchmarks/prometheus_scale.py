"""What N runs cost a Prometheus with the shipped rules: series, samples per second, memory, time of the rules.

    python -m benchmarks.prometheus_scale --runs 10000 --minutes 4
    python -m benchmarks.prometheus_scale --runs 100 --minutes 3 --day      # with the day that the rules look back at

Real: Prometheus, the rules, the page of one simulated run with all its series. Made up: it is served N times, under
other names by as many targets as there would be daemons; of its values those change that change in a training.
A rule's cost is the processor time of its query once scrapes and rules have been stopped: other work on the machine
lengthens it little.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import tempfile
import threading
import urllib.parse
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from megatron_monitor.commands.arguments import Given
from megatron_monitor.once import metrics_page
from megatron_monitor.simulate import Fault, Scenario, write
from megatron_monitor.system.clock import SystemClock

ROOT = Path(__file__).parents[1]
MOVING = re.compile(
    r"^megatron_(iteration|iterations_total|consumed_\w+|iteration_seconds|samples_per_second|tokens_per_second|"
    r"tflops_per_gpu|lm_loss|grad_norm|learning_rate|last_progress_timestamp_seconds|hang_deadline_timestamp_seconds|"
    r"slowdown_ratio|at_risk_seconds|eta_timestamp_seconds|iteration_duration_seconds_(sum|count|bucket))[{ ]"
)


def one_run(directory: Path) -> list[str]:
    """The rows of one run that has met a bit of everything: a crash, a restart, evaluations, saves, fp16."""
    log, now = directory / "RUN.log", SystemClock().wall()
    scenario = Scenario(
        dialect="megatron-lm",
        iterations=300,
        seconds_per_iteration=2.0,
        save_interval=50,
        eval_interval=50,
        fp16=True,
        launch_blocking=1,
        faults=(Fault("crash_and_restart", at=120),),
    )
    with log.open("wb") as stream:
        write(scenario, stream)
    page, *_ = metrics_page(Given().configured([str(log)]))
    rows = [row for row in page.splitlines() if 'run="RUN"' in row and "_hang_deadline_" not in row]
    # what a run that is live and has met a hang has besides
    rows += [
        f'megatron_hang_deadline_timestamp_seconds{{run="RUN"}} {now + 600}',
        'megatron_incident{event="RUN 1",incident="hang",run="RUN",severity="critical"} 0.0',
        'megatron_incident{event="",incident="hang",run="RUN",severity="warning"} 0.0',
        'megatron_incidents_total{incident="hang",run="RUN"} 1.0',
        f'megatron_eta_timestamp_seconds{{run="RUN"}} {now + 6000}',
    ]
    return rows


class Target:
    """A page of many runs."""

    def __init__(self, rows: list[str], names: list[str]) -> None:
        still = [row for row in rows if not MOVING.match(row)]
        moving = [row.rsplit(" ", 1) for row in rows if MOVING.match(row)]
        self._still = "".join("\n".join(still).replace("RUN", name) + "\n" for name in names).encode()
        self._moving = [
            (series.replace('"RUN"', f'"{name}"'), float(value)) for name in names for series, value in moving
        ]
        target = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = target.page()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.address = f"127.0.0.1:{server.server_port}"

    def page(self) -> bytes:
        noise = random.random() * 0.01
        return self._still + "".join(f"{series} {value * (1 + noise):.6f}\n" for series, value in self._moving).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--targets", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=4.0, help="half without rules, half with them")
    parser.add_argument(
        "--day", action="store_true", help="the day that the rules look back at lies in the store already"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        rows = one_run(directory)
        families = Counter(row.split("{")[0] for row in rows)
        histogram = sum(count for family, count in families.items() if "duration_seconds_" in family)
        moving = sum(bool(MOVING.match(row)) for row in rows)
        print(f"series of one run: {len(rows)}, of them histogram {histogram}, moving {moving}")
        if options.runs == 0:
            return
        names = [f"run-{number:05d}" for number in range(options.runs)]
        targets = [Target(rows, names[n :: options.targets]) for n in range(options.targets)]
        if options.day:
            remembered_day(directory, rows, names)
        measure(directory, [target.address for target in targets], options.minutes, options.runs)


def remembered_day(directory: Path, rows: list[str], names: list[str]) -> None:
    """What the rules look back at, as it was scraped each 15 s of the day before, as blocks."""
    end = int(SystemClock().wall()) // 15 * 15 - 15
    read = ("megatron_incident{", "megatron_hang_deadline", "megatron_last_progress", "megatron_run_state{")
    series = [
        row.rpartition(" ")[0] for row in rows
        if row.startswith(read) and ("run_state" not in row or "finished" in row or "crashed" in row)
    ]  # fmt: skip
    with (directory / "day.om").open("w") as stream:
        for family in sorted({one.partition("{")[0] for one in series}):
            stream.write(f"# TYPE {family} gauge\n")
            for one in (one for one in series if one.partition("{")[0] == family):
                for name in names:
                    labels = one.replace("RUN", name)[:-1] + ',instance="login1:9843",job="megatron-monitor"}'
                    stream.writelines(f"{labels} 0 {at}\n" for at in range(end - 86400, end, 15))
        stream.write("# EOF\n")
    tool = ["promtool", "tsdb", "create-blocks-from", "openmetrics", directory / "day.om", directory / "data"]
    subprocess.run(tool, check=True, stdout=subprocess.DEVNULL)


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """That a process has used, whoever else wants the cores."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def costs(process: subprocess.Popen[bytes], groups: list[dict[str, Any]], at: float) -> None:
    """Processor time of one evaluation of each group, and its dearest rules."""
    for group in groups:
        spent = []
        for rule in group["rules"]:
            query = urllib.parse.urlencode({"query": rule["query"], "time": at})
            before = cpu_seconds(process)
            for _ in range(3):
                urllib.request.urlopen("http://127.0.0.1:19390/api/v1/query?" + query).read()
            spent.append(((cpu_seconds(process) - before) / 3, rule["name"]))
        print(f"  CPU of {group['name']}, each {group['interval']:g} s: {sum(seconds for seconds, _ in spent):.3f} s")
        for seconds, name in sorted(spent, reverse=True)[:4]:
            print(f"      {seconds:.3f} {name}")


def measure(directory: Path, addresses: list[str], minutes: float, runs: int) -> None:
    rules = {"rule_files": [str(ROOT / "deploy" / "prometheus" / "rules" / "*.yml")]}
    config = {
        "global": {"scrape_interval": "15s", "scrape_timeout": "14s", "evaluation_interval": "15s"},
        "scrape_configs": [
            {"job_name": "megatron-monitor", "static_configs": [{"targets": addresses}]},
            {"job_name": "prometheus", "static_configs": [{"targets": ["127.0.0.1:19390"]}]},
        ],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            "--web.listen-address=127.0.0.1:19390",
        ],
        stderr=(directory / "log").open("w"),
    )
    try:
        clock = SystemClock()
        clock.sleep(60)  # the first scrapes make the series
        before, half = cpu_seconds(process), minutes * 30
        clock.sleep(half)
        scraping = cpu_seconds(process) - before
        (directory / "prometheus.yml").write_text(yaml.safe_dump({**config, **rules}))
        process.send_signal(signal.SIGHUP)
        clock.sleep(half)

        def ask(expression: str) -> float:
            url = "http://127.0.0.1:19390/api/v1/query?" + urllib.parse.urlencode({"query": expression})
            result = json.load(urllib.request.urlopen(url))["data"]["result"]
            return float(result[0]["value"][1]) if result else float("nan")

        print(f"{runs} runs in {len(addresses)} targets after {minutes:g} min:")
        for what, expression in {
            "series in the head": "prometheus_tsdb_head_series",
            "samples per second": "rate(prometheus_tsdb_head_samples_appended_total[2m])",
            "resident memory, GiB": 'process_resident_memory_bytes{job="prometheus"} / 2^30',
            "slowest scrape, s": 'max(scrape_duration_seconds{job="megatron-monitor"})',
            "targets up": 'sum(up{job="megatron-monitor"})',
            "deadlines held": "count(run:megatron_hang_deadline_timestamp_seconds:last)",
            "alerts firing": 'count(ALERTS{alertstate="firing"}) or vector(0)',
        }.items():
            print(f"  {what:40s} {ask(expression):,.3f}")
        print(f"  {'CPU of the scrapes, cores':40s} {scraping / half:,.3f}")
        size = sum(file.stat().st_size for file in (directory / "data" / "wal").rglob("*") if file.is_file())
        print(f"  {'write-ahead log, MiB':40s} {size / 2**20:,.1f}")
        groups = json.load(urllib.request.urlopen("http://127.0.0.1:19390/api/v1/rules"))["data"]["groups"]
        (directory / "prometheus.yml").write_text(yaml.safe_dump({**config, "scrape_configs": []}))
        process.send_signal(signal.SIGHUP)
        clock.sleep(20)
        costs(process, groups, clock.wall() - 25)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
