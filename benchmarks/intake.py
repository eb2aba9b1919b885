"""The intake under what networks do: `python -m benchmarks.intake exact|silence|speed`.

exact: simulated runs that crash and go on, pushed in thousands of batches: a fifth of the answers lost, a tenth of the
batches swapped, the daemon and the senders killed at random, one tenant's share too small. What the daemon then counts
is what `run --once` reads from the files.
silence: a hundred trainings stop under living agents, a hundred agents die. speed: what 5,000 lines a second cost the
daemon, pushed and from files.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from tests.lines import line

MONITOR = (sys.executable, "-m", "megatron_monitor")
_COUNTS = ("megatron_iterations_total", "megatron_restarts_total", "megatron_failures_total")


def free_port() -> int:
    """One that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Daemon:
    """A daemon with an intake, which may be killed and started again."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder, self.page, self.port = folder, free_port(), free_port()
        self.settings = (
            f"intake.listen=127.0.0.1:{self.port}", f"state_dir={folder / 'state'}", "stop_wait=0s", *settings,
        )  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Until it takes pushes."""
        options = [part for setting in self.settings for part in ("--set", setting)]
        command = [*MONITOR, "run", "--listen", f"127.0.0.1:{self.page}", *options]
        with (self.folder / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=5).close()
                return
            except OSError:
                time.sleep(0.05)

    def kill(self) -> None:
        """As power cuts do."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def metrics(self) -> dict[str, float]:
        """Series -> value."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.page}/metrics", timeout=30) as answer:
            return samples(answer.read().decode())

    def seconds(self) -> float:
        """Of processor time, so far."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def samples(page: str) -> dict[str, float]:
    """Of a page of metrics."""
    found = (text.rpartition(" ") for text in page.splitlines() if text and not text.startswith("#"))
    return {name: float(value) for name, _, value in found}


class Agent:
    """Pushes until it is taken, over one connection."""

    PATH = "/loki/api/v1/push"

    def __init__(self, port: int) -> None:
        self.port = port
        self.connection: HTTPConnection | None = None
        self.answers: dict[int, int] = {}

    @staticmethod
    def body(streams: list[tuple[dict[str, str], list[tuple[int, str]]]]) -> bytes:
        """What a push of them sends."""
        return json.dumps(
            {
                "streams": [
                    {"stream": labels, "values": [[str(at), text] for at, text in lines]} for labels, lines in streams
                ]
            }
        ).encode()

    def push(self, streams: list[tuple[dict[str, str], list[tuple[int, str]]]], tenant: str = "") -> bool:
        """Once it returns, all of it was taken."""
        body = self.body(streams)
        headers = {"Content-Type": "application/json", **({"X-Scope-OrgID": tenant} if tenant else {})}
        while True:
            try:
                self.connection = self.connection or HTTPConnection("127.0.0.1", self.port, timeout=30)
                self.connection.request("POST", self.PATH, body, headers)
                answer = self.connection.getresponse()
                answer.read()
                self.answers[answer.status] = self.answers.get(answer.status, 0) + 1
                if answer.status == 204:
                    return True
                time.sleep(0.1)
            except (OSError, HTTPException):
                self.connection = None
                time.sleep(0.05)


def disturbed(senders: list[threading.Thread], disturb: Callable[[], None], done: threading.Event) -> float:
    """Seconds until all have sent theirs while somebody disturbs, who ends when it is `done`."""
    disturber, began = threading.Thread(target=disturb), time.monotonic()
    for thread in [*senders, disturber]:
        thread.start()
    for thread in senders:
        thread.join()
    done.set()
    disturber.join()
    return time.monotonic() - began


def exact(folder: Path, pushes: int, runs: int, seed: int) -> bool:
    """Whether all is as it was written."""
    chance = random.Random(seed)
    texts = {}
    for number in range(runs):
        path = folder / f"run{number}.out"
        fault = ("crash_and_restart", "crash_oom", "crash_python", "crash_killed")[number % 4]
        size = pushes * 5 // runs
        command = [
            sys.executable,
            "-m",
            "megatron_monitor",
            "simulate",
            "--dialect",
            "megatron-lm",
            "--seed",
            str(number),
        ]
        subprocess.run(
            [*command, "--fault", f"{fault}@{size // 4}", "--iterations", str(size // 2), "-o", path], check=True
        )
        today = time.strftime("%Y-%m-%d", time.gmtime())  # what was stamped long ago is archived when it is opened
        path.write_text(path.read_text().replace("2026-01-01", today))
        texts[path.stem] = path.read_text().splitlines()
    once = [*MONITOR, "run", "--once", *(str(folder / f"{run}.out") for run in texts)]
    truth = samples(subprocess.run(once, check=True, capture_output=True, text=True).stdout)
    daemon = Daemon(folder, "intake.tenants.max_bytes_per_second=15kB", "detectors.hang.minimum=1h")
    daemon.start()
    agents = {run: Agent(daemon.port) for run in texts}
    sent: dict[str, int] = {}
    done = threading.Event()

    def send(run: str) -> None:
        own, lines = random.Random(f"{seed} {run}"), texts[run]
        size = max(1, len(lines) * runs // pushes)
        batches: list[list[tuple[int, str]]] = []
        labels = {"run": run, "carrier": f"node-{run}", "pod": f"{run}-0"}
        index = 0
        while index * size < len(lines):
            while len(batches) <= index + 1:  # a line has the time at which the agent read it
                begin, now = len(batches) * size, time.time_ns()
                batches.append([(now + offset, text) for offset, text in enumerate(lines[begin : begin + size])])
            order = [index]
            draw = own.random()
            if draw < 0.1:
                order = [index + 1, index]  # swapped
            elif draw < 0.3:
                order = [index, index]  # the answer was lost
            elif draw < 0.32:
                order = list(range(max(0, index - 3), index + 1))  # the sender was killed, and begins where it knows
            for one in order:
                agents[run].push([(labels, batches[one])])
                sent[run] = sent.get(run, 0) + 1
            index += 2 if order[0] > index else 1
            time.sleep(own.uniform(0.0, 0.15))

    threads = [threading.Thread(target=send, args=(run,)) for run in texts]
    kills = 0

    def disturb() -> None:
        nonlocal kills
        while not done.wait(chance.uniform(1.0, 4.0)):
            daemon.kill()
            kills += 1
            daemon.start()

    seconds = disturbed(threads, disturb, done)
    wanted = {name: value for name, value in truth.items() if name.startswith(_COUNTS)}
    for _ in range(60):  # what was pushed last waits, and may be read again from the last save
        time.sleep(1.0)
        found = daemon.metrics()
        if all(found.get(name, 0.0) == value for name, value in wanted.items()):
            break
    wrong = {name: (value, found.get(name)) for name, value in wanted.items() if found.get(name, 0.0) != value}
    statuses: dict[int, int] = {}
    for agent in agents.values():
        for status, count in agent.answers.items():
            statuses[status] = statuses.get(status, 0) + count
    again = sum(value for name, value in found.items() if "duplicate_lines" in name)
    late = sum(value for name, value in found.items() if "late_lines" in name)
    print(f"{sum(sent.values())} pushes of {runs} runs in {seconds:.0f} s, {kills} kill -9; answers {statuses}")
    print(f"lines: {sum(map(len, texts.values()))} written, {again:.0f} again since the last start, {late:.0f} late")
    print(f"{len(wanted) - len(wrong)} of {len(wanted)} counts exact: {wrong or 'all'}")
    daemon.kill()
    return not wrong


def silence(folder: Path, runs: int, budget: float, every: float) -> bool:
    """Whether each hang was told in time, and none of those whose agents died."""
    daemon = Daemon(folder, f"detectors.hang.minimum={budget}s", f"intake.heartbeat.every={every}s")
    daemon.start()
    agent, step, beat_at = Agent(daemon.port), 0, 0.0
    names = {f"stopped{number:03}": True for number in range(runs)} | {
        f"agentless{number:03}": False for number in range(runs)
    }
    told: dict[str, float] = {}
    begun, stop_at = time.monotonic(), budget + 5.0
    while (now := time.monotonic() - begun) < stop_at + budget + 30.0 and len(told) < runs:
        stopped, streams = now >= stop_at, []
        if not stopped:
            step += 1
            streams = [({"run": run, "carrier": run}, [(time.time_ns(), line(step, seconds=1.0))]) for run in names]
        if now >= beat_at:
            beat_at = now + every
            alive = [run for run, lives in names.items() if lives or not stopped]
            streams += [({"carrier": run, "heartbeat": "play"}, [(time.time_ns(), "alive")]) for run in alive]
        if streams:
            agent.push(streams)
        if stopped:
            for name, value in daemon.metrics().items():
                match = re.match(r'megatron_incident\{incident="hang",run="(\w+)",severity="critical"\}', name)
                if match and value and match[1] not in told:
                    told[match[1]] = time.monotonic() - begun - stop_at
        time.sleep(max(0.0, 1.0 - (time.monotonic() - begun - now)))
    right = [seconds for run, seconds in told.items() if names[run]]
    wrong = [run for run in told if not names[run]]
    open_now = daemon.metrics()
    lost = sum(open_now[name] for name in open_now if re.match(r'megatron_incident\{incident="source_lost"', name))
    print(f"{len(right)} of {runs} hangs under living agents told, {max(right, default=0.0):.1f} s after the last step")
    print(f"at most (budget {budget:.0f} s); {len(wrong)} of {runs} where the agent died; {lost:.0f} source_lost")
    daemon.kill()
    return len(right) == runs and not wrong and max(right) < budget + 5.0 + 1.0


def speed(folder: Path, rate: int, streams: int, seconds: int) -> bool:
    """Prints the share of a core for both ways."""
    shares = {}
    for way in ("files", "pushed"):
        logs = folder / f"logs-{way}"
        logs.mkdir()
        daemon = Daemon(folder, f"runs=[{{paths: ['{logs}/*.out']}}]")
        daemon.start()
        agents = [Agent(daemon.port) for _ in range(streams)]
        step, begun, used = 0, time.monotonic(), 0.0
        while (now := time.monotonic() - begun) < seconds + 5:
            if now >= 5 and not used:
                used, from_at = daemon.seconds(), now
            texts = [line(step + index + 1, seconds=0.01).rstrip("\n") for index in range(rate // streams)]
            step += len(texts)
            for number, agent in enumerate(agents):
                if way == "files":
                    with (logs / f"run{number}.out").open("a") as stream:
                        stream.write("\n".join(texts) + "\n")
                else:
                    at = time.time_ns()
                    agent.push([({"run": f"run{number}"}, [(at + index, text) for index, text in enumerate(texts)])])
            time.sleep(max(0.0, 1.0 - (time.monotonic() - begun - now)))
        shares[way] = (daemon.seconds() - used) / (now - from_at)
        daemon.kill()
        shutil.rmtree(folder / "state")
    print(
        f"{rate} lines/s of {streams} pods: {shares['files']:.1%} of a core from files, {shares['pushed']:.1%} pushed"
    )
    return shares["pushed"] - shares["files"] < 0.1


def main() -> None:
    """One of the plays; exit 1 if it failed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("play", choices=["exact", "silence", "speed"])
    options.add_argument("--pushes", type=int, default=10_000)
    options.add_argument("--runs", type=int)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="intake-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    plays: dict[str, Callable[[], bool]] = {
        "exact": lambda: exact(folder, given.pushes, given.runs or 20, given.seed),
        "silence": lambda: silence(folder, given.runs or 100, 30.0, 2.0),
        "speed": lambda: speed(folder, 5000, 64, 30),
    }
    good = plays[given.play]()
    if good:
        shutil.rmtree(folder)
    else:
        print(f"left: {folder}")
    sys.exit(not good)


if __name__ == "__main__":
    main()
