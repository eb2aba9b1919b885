"""`python -m benchmarks.soak [--minutes 30] [--seed 1] [--runs 8]`: plays it and prints the figures; exits 1 on a fault
of ours.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.intake import free_port
from benchmarks.soak.trainings import BEAT, Carrier, Pushed, Training
from benchmarks.speed.measure import rss_of

BUDGET = 15.0  # seconds: `detectors.hang.minimum`
TOLD = 60.0  # seconds within which a true hang must be told once nothing is wrong with the monitor or the receiver
SETTLE = 90.0
FAULTS = (
    "kill", "stop", "blocked", "rotate", "cut", "full", "receiver", "clock", "rotate and kill", "cut and kill", "slurm",
    "answers",
)  # fmt: skip
JOB = 1000
SCONTROL = """#!/bin/sh
# A controller that does not answer while a flag lies there.
while [ -e {directory}/flags/slurm ]; do sleep 0.2; done
show() {{ cat "{directory}/slurm/job-$1"; }}
if [ "$1" = show ]; then show "$4"; else while read -r _ _ job; do show "$job"; done; fi
"""
SHOWN = (
    "JobId={job} JobName={name} UserId=ada(1000) GroupId=ada(1000) JobState=RUNNING Reason=None Requeue=0 Restarts=0 "
    "ExitCode=0:0 SubmitTime={now} StartTime={now} EndTime={end} Partition=main NodeList=n-01 NumNodes=1 "
    "Command=/home/ada/train.sbatch WorkDir=/home/ada StdErr={path} StdIn=/dev/null StdOut={path} \n"
)


class Receiver:
    """A webhook that notes what it accepts, and is down at times."""

    def __init__(self) -> None:
        self.down = False
        self.accepted: list[tuple[float, dict[str, Any]]] = []
        self.refused = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if outer.down:
                    outer.refused += 1
                    self.send_response(503)
                else:
                    outer.accepted.append((time.monotonic(), json.loads(body)))
                    self.send_response(200)
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of(self, run: str, status: str, since: float) -> list[float]:
        """When it accepted messages about a hang of the run."""
        accepted = list(self.accepted)
        return [at for at, one in accepted if at >= since and one["run"] == run and one["status"] == status
                and one["incident"] == "hang"]  # fmt: skip


class Soak:
    """The daemon, its surroundings, and what is done to them."""

    def __init__(
        self, directory: Path, runs: int, chance: random.Random, budget: float = BUDGET, pushed: int = 0
    ) -> None:
        self.directory, self.chance, self.faults = directory, chance, Counter[str]()
        self.flags = directory / "flags"
        self.flags.mkdir()
        (self.flags / "offset").write_text("0")
        (directory / "logs").mkdir()
        (directory / "slurm").mkdir()
        scontrol = directory / "slurm" / "scontrol"
        scontrol.write_text(SCONTROL.format(directory=directory))
        scontrol.chmod(0o755)
        logs, now = [directory / "logs" / f"run{number}.log" for number in range(runs)], int(time.time())
        for job, path in enumerate(logs, JOB):
            shown = SHOWN.format(job=job, name=path.stem, now=now, end=now + 86_400, path=path)
            (directory / "slurm" / f"job-{job}").write_text(shown)
        intake = free_port()
        self.carrier = Carrier(intake)
        self.trainings = [Training(path, job) for job, path in enumerate(logs, JOB)]
        self.trainings += [Pushed(directory / f"pushed{number}.log", self.carrier) for number in range(pushed)]
        self.receiver = Receiver()
        self.log = (directory / "daemon.log").open("ab")
        configuration = {
            "runs": [{"paths": [f"{directory}/logs/*.log"]}], "listen": "127.0.0.1:0",
            "state_dir": f"{directory}/state", "slurm": {"directory": f"{directory}/slurm", "interval": "5s"},
            "intake": {"listen": f"127.0.0.1:{intake}", "heartbeat": {"every": f"{BEAT:.0f}s"}},
            "detectors": {"hang": {"minimum": f"{budget:.0f}s"}},
            "notifiers": [{"type": "webhook", "name": "soak",
                           "url": f"http://127.0.0.1:{self.receiver.server.server_address[1]}/"}],
        }  # fmt: skip
        (directory / "config.yaml").write_text(json.dumps(configuration))
        self.unasked = 0  # times that it ended and nobody had ended it
        self.start()

    def start(self) -> None:
        """A daemon; the state is there or not."""
        command = [
            sys.executable,
            "-m",
            "benchmarks.soak.wrapped",
            "run",
            "--config",
            str(self.directory / "config.yaml"),
        ]
        self.daemon = subprocess.Popen(command, env={**os.environ, "SOAK_FLAGS": str(self.flags)}, stderr=self.log)

    def look_after(self) -> None:
        """Nobody but us may end it."""
        if self.daemon.poll() is not None:
            self.unasked += 1
            self.start()

    def hurt(self) -> None:
        """One fault, for as long as it lasts."""
        kind = self.chance.choice(FAULTS)
        self.faults[kind] += 1
        if kind == "stop":
            self.daemon.send_signal(signal.SIGSTOP)
            time.sleep(self.chance.uniform(2.0, 2.5 * BUDGET))
            self.daemon.send_signal(signal.SIGCONT)
        elif kind in ("blocked", "full", "slurm"):
            (self.flags / kind).touch()
            time.sleep(self.chance.uniform(2.0, 2.5 * BUDGET))
            (self.flags / kind).unlink()
        elif kind == "receiver":
            self.receiver.down = True
            time.sleep(self.chance.uniform(2.0, 2.5 * BUDGET))
            self.receiver.down = False
        elif kind == "answers":
            self.carrier.lossy.set()
            time.sleep(self.chance.uniform(2.0, 2.5 * BUDGET))
            self.carrier.lossy.clear()
        elif kind == "clock":
            offset = self.chance.choice((-1, 1)) * self.chance.uniform(5.0, 3600.0)
            (self.flags / "offset.new").write_text(str(offset))
            (self.flags / "offset.new").rename(self.flags / "offset")
        if kind.startswith(("rotate", "cut")):
            self.chance.choice(self.trainings).rotate(cut=kind.startswith("cut"))
        if kind.endswith("kill"):
            self.daemon.kill()
            self.daemon.wait()
            time.sleep(self.chance.uniform(0.0, BUDGET))
            self.start()

    def metrics(self, name: str = "megatron_iterations_total") -> dict[str, float]:
        """Run -> iterations that the daemon counts, or another figure."""
        found = {}
        for row in self._page().splitlines():
            if row.startswith(f"{name}{{"):
                found[row.split('run="')[1].split('"')[0]] = float(row.rsplit(" ", 1)[1])
        return found

    def sum(self, name: str) -> dict[str, float]:
        """The daemon's own figures of this name, by their labels."""
        rows = [row for row in self._page().splitlines() if row.partition(" ")[0].partition("{")[0] == name]
        return {row.rpartition(" ")[0].partition("{")[2].rstrip("}"): float(row.rpartition(" ")[2]) for row in rows}

    def budget(self, name: str) -> float:
        """Seconds of silence that the run has now: twice the longest that was called a hang and ended. A run that hung
        for three minutes is not called hung again after three.
        """
        metric = "megatron_hang_deadline_timestamp_seconds"
        self.wait(lambda: name in self.metrics(metric), TOLD)  # the daemon may have been started a moment ago
        deadline = self.metrics(metric).get(name, 0.0)
        return max(0.0, deadline - self.metrics("megatron_last_progress_timestamp_seconds").get(name, deadline))

    def _page(self) -> str:
        for row in reversed((self.directory / "daemon.log").read_text(errors="replace").splitlines()):
            if "listening on http://" in row:
                url = row.split("listening on ")[1].strip().rstrip("/")
                try:
                    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
                        return str(answer.read().decode())
                except OSError:
                    return ""
        return ""

    def wait(self, condition: Any, seconds: float) -> bool:
        """Whether it held within so many seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look_after()
            if condition():
                return True
            time.sleep(0.5)
        return bool(condition())


def play(soak: Soak, minutes: float) -> dict[str, Any]:
    """Faults at random; every few of them a training hangs in truth. Gives the figures."""
    began = time.monotonic()
    for training in soak.trainings:
        training.start()
    time.sleep(20.0)
    hangs = 0
    late: list[float] = []
    untold: list[str] = []
    memory: list[float] = []
    while time.monotonic() - began < 60.0 * minutes:
        soak.look_after()
        memory.append(rss_of(soak.daemon.pid))
        hanging = None
        if soak.chance.random() < 0.35:
            hanging = soak.chance.choice(soak.trainings)
            hanging.hang()
            hangs += 1
        for _ in range(soak.chance.randint(1, 3)):
            soak.hurt()
            time.sleep(soak.chance.uniform(0.0, 5.0))
        if hanging is not None:
            since, healthy = hanging.hung[-1][0], time.monotonic()
            budget = soak.budget(hanging.name)
            if soak.wait(lambda h=hanging, s=since: soak.receiver.of(h.name, "firing", s), 3 * TOLD + budget):  # type: ignore[misc]
                late.append(max(0.0, soak.receiver.of(hanging.name, "firing", since)[0] - healthy))
            else:
                silent = time.monotonic() - since
                untold.append(f"{hanging.name} at {time.strftime('%T')}: {silent:.0f} s silent, budget {budget:.0f} s")
            hanging.go_on()
            soak.wait(lambda h=hanging: soak.receiver.of(h.name, "resolved", h.hung[-1][1]), TOLD)  # type: ignore[misc]
        time.sleep(soak.chance.uniform(0.0, 3.0))
    for training in soak.trainings:
        training.ending.set()
        training.join()
    ended = time.monotonic()
    written = {training.name: float(training.written) for training in soak.trainings}
    soak.wait(lambda: soak.metrics() == written, SETTLE)
    counted = soak.metrics()
    accepted = [(at, one) for at, one in list(soak.receiver.accepted) if at < ended + BUDGET / 2]
    false = [one for at, one in accepted if one["status"] == "firing" and not _was_hung(soak, one, at)]
    identities = Counter(one["id"] for _, one in accepted)
    resolved = sum(one["status"] == "resolved" for _, one in accepted)
    return {
        "minutes": round((ended - began) / 60.0, 1),
        "faults": dict(sorted(soak.faults.items())),
        "lines written": int(sum(written.values())),
        "lines counted": int(sum(counted.values())),
        "trainings whose count differs": sorted(name for name in written if counted.get(name) != written[name]),
        "true hangs": hangs, "of these told": len(late), "not told": untold,
        "seconds from the last fault to the message": [round(one, 1) for one in sorted(late)],
        "false alarms": [f"{one['run']} {one['incident']}: {one['summary']}" for one in false[:40]],
        "false alarms in all": len(false),
        "messages accepted": len(accepted), "of these resolved": resolved,
        "refused while the receiver was down": soak.receiver.refused,
        "pushes whose answer was lost": soak.carrier.lost,
        "of their lines again, of the last daemon": soak.sum("megatron_monitor_duplicate_lines_total"),
        "questions to Slurm, of the last daemon": soak.sum("megatron_monitor_slurm_calls_total"),
        "MB of the daemon, smallest and largest": [round(min(memory)), round(max(memory))],
        "accepted twice under one id": sum(count - 1 for count in identities.values()),
        "times that the daemon ended by itself": soak.unasked,
    }  # fmt: skip


def _was_hung(soak: Soak, message: dict[str, Any], at: float) -> bool:
    """Whether the message is of a training that did not write then; one that was owed may come a little later."""
    training = next(one for one in soak.trainings if one.name == message["run"])
    slack = 3 * BUDGET
    return message["incident"] == "hang" and any(begin <= at <= end + slack for begin, end in training.hung)


def main() -> int:
    """1 if a line, a message or an hour of sleep was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=6, help="with a log each")
    parser.add_argument("--pushed", type=int, default=2, help="without")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        soak = Soak(Path(directory), options.runs, random.Random(options.seed), pushed=options.pushed)
        try:
            figures = play(soak, options.minutes)
        finally:
            soak.daemon.kill()
            soak.log.close()
            Path(f"soak-{options.seed}.log").write_bytes((Path(directory) / "daemon.log").read_bytes())
    print(json.dumps(figures, indent=2))
    lost = figures["lines written"] - figures["lines counted"] or figures["not told"]
    return int(bool(lost or figures["false alarms"] or figures["times that the daemon ended by itself"]))


if __name__ == "__main__":
    sys.exit(main())
