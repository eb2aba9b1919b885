"""The real programs over trainings that write, with faults at random: `python -m benchmarks.soak [--minutes 30]`.

The observer, the receiver with a forwarder, and the remediator with a Slurm that only notes what is asked of it. Half
of the logs are followed, half are forwarded. Faults: kill -9 and SIGSTOP of a program, calls on a log that do not
return, rotation, a full disk, a webhook that is down, a wall clock that is set. Some trainings really hang. Prints the
figures; exits 1 if a line is lost or counted twice, a true hang is not notified, anything else is notified, a job that
hangs is not requeued, one that does not is, or one is requeued twice, or a program ends by itself.

With SOAK_FLAGS in the environment this file is a program itself; faults are injected where it calls the system, while
files of these names lie there: `blocked` (no call on a log returns), `full` (nothing can be written), `offset`
(seconds by which the wall clock is wrong).
"""

import argparse
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.speed.measure import rss_of
from tests.monitor.notifiers.receiver import Receiver
from tests.programs import free_port, get

PACE = 0.5  # seconds an iteration
KEPT = 4  # rotated logs of a training, as logrotate keeps them
BUDGET = 15.0  # seconds: `detectors.hang.minimum`
WITHIN = 60.0  # seconds within which a true hang must be notified, once monitor and receiver are sound
SETTLE = 90.0
ACTS = 30.0  # seconds within which the remediator acts, if nothing is wrong with it
FAULTS = ("kill", "kill", "stop", "blocked", "rotate", "full", "webhook", "clock", "rotate and kill")
USER = os.getuid() or 1000  # of the jobs: root is no proof
SLURM = Path(__file__).with_name("scontrol.sh").read_text()  # of each of its commands


class Training(threading.Thread):
    """One log; a line every half second."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path, self.name, self.written = path, path.stem, 0
        self.job = path.stem.removeprefix("run") if path.stem.startswith("run") else ""
        self.hanging, self.ending = threading.Event(), threading.Event()
        self.hung: list[list[float]] = []
        """[from, until] of each hang."""
        self.rotated_at = time.monotonic()
        self._lock = threading.Lock()
        self._open()

    def _open(self) -> None:
        self._stream = self.path.open("a")
        os.chown(self.path, USER, -1)

    def run(self) -> None:
        """Until it is ended."""
        while not self.ending.wait(PACE):
            if not self.hanging.is_set():
                with self._lock:
                    self.written += 1
                    print(
                        f" iteration {self.written:8d}/10000000 | consumed samples: {self.written * 64:12d} | elapsed "
                        f"time per iteration (ms): {1000 * PACE:.1f} | learning rate: 1.500E-04 | global batch size: "
                        "   64 | lm loss: 2.500000E+00 | loss scale: 1.0 | number of nan iterations:   0 |",
                        file=self._stream, flush=True,
                    )  # fmt: skip

    def rotate(self) -> None:
        """The log is renamed and a new one begins; not twice within half a minute."""
        if time.monotonic() - self.rotated_at < 30.0:
            return
        self.rotated_at = time.monotonic()
        with self._lock:
            for number in range(KEPT - 1, 0, -1):
                if (older := self.path.with_suffix(f".log.{number}")).exists():
                    older.rename(self.path.with_suffix(f".log.{number + 1}"))
            self._stream.close()
            self.path.rename(self.path.with_suffix(".log.1"))
            self._open()


class Webhook(Receiver):
    """A webhook that notes what it accepts, and is down at times."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.accepted: list[tuple[float, dict[str, Any]]] = []
        self.judge = self._note
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def _note(self, body: bytes) -> tuple[int, str]:
        if self.down:
            return 503, ""
        self.accepted.append((time.monotonic(), json.loads(body)))
        return 200, ""

    def of(self, run: str, status: str, since: float) -> list[float]:
        """When it accepted messages about a hang of the run."""
        of_run = [(at, one) for at, one in list(self.accepted) if at >= since and one["run"] == run]
        return [at for at, one in of_run if (one["incident"], one["status"]) == ("hang", status)]


class Soak:
    """The programs, their surroundings, and what is done to them."""

    def __init__(self, directory: Path, runs: int, chance: random.Random) -> None:
        self.directory, self.chance, self.faults = directory, chance, Counter[str]()
        self.flags = directory / "flags"
        for folder in (self.flags, directory / "logs", directory / "sent", directory / "bin"):
            folder.mkdir()
            os.chown(folder, USER, -1)
        (self.flags / "offset").write_text("0")
        (directory / "calls").touch()
        for name in ("scontrol", "squeue", "sacct", "scancel", "sbatch", "srun"):
            text = SLURM.replace("{directory}", str(directory)).replace("{user}", str(USER))
            (directory / "bin" / name).write_text(text.replace("{began}", str(int(time.time()) - 60)))
            (directory / "bin" / name).chmod(0o755)
        self.trainings = [
            Training(directory / ("sent" if number % 2 else "logs") / f"{'sent' if number % 2 else 'run'}{number}.log")
            for number in range(1, runs + 1)  # no job of Slurm has the number 0
        ]
        self.webhook = Webhook()
        self.log = (directory / "programs.log").open("ab")
        self.observer, receiver = (f"127.0.0.1:{free_port()}" for _ in range(2))
        requeue = {"name": "soak", "incidents": ["hang"], "for": "5s", "dry_run": False, "per_day": 10_000}
        configuration = {
            "runs": [{"paths": [f"{directory}/logs/*.log"]}], "listen": self.observer,
            "state_dir": f"{directory}/state", "detectors": {"hang": {"minimum": f"{BUDGET:.0f}s"}},
            "notifiers": [{"type": "webhook", "name": "soak", "url": self.webhook.url}],
            "receiver": {"listen": receiver}, "slurm": {"interval": "5s", "job_from": "run(?P<job>[0-9]+)[.]log"},
            "remediations": [{**requeue, "attempts": 10_000, "actions": [{"type": "requeue"}]}],
        }  # fmt: skip
        config = ["--config", str(directory / "config.yaml")]
        Path(config[1]).write_text(json.dumps(configuration))
        self.commands = {
            "observer": ["run", *config], "receiver": ["receive", *config],
            "remediator": ["remediate", *config, "--at", f"http://{self.observer}", "--listen", "127.0.0.1:0"],
            "forwarder": [
                "forward", "--to", f"http://{receiver}", "--state", f"{directory}/forward", f"{directory}/sent/*.log"
            ],
        }  # fmt: skip
        self.unasked = Counter[str]()  # programs that ended and nobody had ended them
        self.programs = {name: self.start(name) for name in self.commands}

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """The program; its state is there or not."""
        path = f"{self.directory}/bin:{os.environ['PATH']}"
        environment = {**os.environ, "SOAK_FLAGS": str(self.flags), "PATH": path}
        command = [sys.executable, "-m", "benchmarks.soak", *self.commands[name]]
        return subprocess.Popen(command, env=environment, stderr=self.log)

    def look_after(self) -> None:
        """Nobody but us may end one."""
        for name in [name for name, program in self.programs.items() if program.poll() is not None]:
            self.unasked[name] += 1
            self.programs[name] = self.start(name)

    def hurt(self) -> None:
        """One fault, for as long as it lasts."""
        kind, seconds = self.chance.choice(FAULTS), self.chance.uniform(2.0, 2.5 * BUDGET)
        name = self.chance.choice(list(self.programs))
        self.faults[f"{kind} {name}" if kind in ("kill", "stop", "rotate and kill") else kind] += 1
        if kind == "stop":
            self.programs[name].send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            self.programs[name].send_signal(signal.SIGCONT)
        elif kind in ("blocked", "full"):
            (self.flags / kind).touch()
            time.sleep(seconds)
            (self.flags / kind).unlink()
        elif kind == "webhook":
            self.webhook.down = True
            time.sleep(seconds)
            self.webhook.down = False
        elif kind == "clock":
            offset = self.chance.choice((-1, 1)) * self.chance.uniform(5.0, 3600.0)
            (self.flags / "offset.new").write_text(str(offset))
            (self.flags / "offset.new").rename(self.flags / "offset")
        if kind.startswith("rotate"):
            self.chance.choice(self.trainings).rotate()
        if kind.endswith("kill"):
            self.programs[name].kill()
            self.programs[name].wait()
            time.sleep(self.chance.uniform(0.0, BUDGET))
            self.programs[name] = self.start(name)

    def requeued(self, job: str = "") -> list[tuple[float, str]]:
        """(monotonic time, job) of each requeue."""
        rows = [line.split() for line in (self.directory / "calls").read_text().splitlines()]
        offset = time.monotonic() - time.time()
        return [(float(at) + offset, number) for at, number in rows if job in ("", number)]

    def metrics(self, name: str = "megatron_iterations_total") -> dict[str, float]:
        """Run -> a figure of the page."""
        rows = []
        with suppress(OSError):
            rows = [
                row for row in get(f"http://{self.observer}/metrics", 5).splitlines() if row.startswith(f"{name}{{")
            ]
        return {row.split('run="')[1].split('"')[0]: float(row.rsplit(" ", 1)[1]) for row in rows}

    def timeout(self, name: str) -> float:
        """Seconds of silence that the run has now: twice the longest that was called a hang and ended."""
        metric = "megatron_hang_deadline_timestamp_seconds"
        self.wait(lambda: name in self.metrics(metric), WITHIN)  # the daemon may have been started a moment ago
        deadline = self.metrics(metric).get(name, 0.0)
        seconds = deadline - self.metrics("megatron_last_progress_timestamp_seconds").get(name, deadline)
        return min(max(0.0, seconds), 3600.0)  # +Inf if no progress is expected

    def wait(self, condition: Callable[[], object], seconds: float) -> bool:
        """Whether it held within so many seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not condition():
            self.look_after()
            time.sleep(0.5)
        return bool(condition())

    def hung(self, message: dict[str, Any], at: float) -> bool:
        """Whether the message is of a training that did not write then; a pending one may come a little later."""
        training = next(one for one in self.trainings if one.name == message["run"])
        return message["incident"] == "hang" and any(a <= at <= b + 3 * BUDGET for a, b in training.hung)

    def unwanted(self) -> list[str]:
        """Requeues of jobs that did not hang then, the second one of a hang, and all other changes in Slurm."""
        other = self.directory / "calls.other"
        found = other.read_text().splitlines() if other.exists() else []
        used = set[tuple[str, float]]()
        for at, job in self.requeued():
            training = next(one for one in self.trainings if one.job == job)
            hang = next((a for a, b in training.hung if a <= at <= b + 2.0), None)
            if hang is None or (job, hang) in used:
                found.append(f"requeue of {job}")
            used.add((job, hang or 0.0))
        return found


def play(soak: Soak, minutes: float) -> dict[str, Any]:
    """Faults at random; every few of them a training hangs in truth. Gives the figures."""
    began = time.monotonic()
    for training in soak.trainings:
        training.start()
    # A log that was silent before the observer's first start is old, and not followed for hangs.
    soak.wait(lambda: min(soak.metrics().values(), default=0.0) >= 20.0, 3 * WITHIN)
    hangs, late, missed, memory = 0, list[float](), list[str](), list[float]()
    stayed = list[str]()
    while time.monotonic() - began < 60.0 * minutes:
        soak.look_after()
        memory.append(rss_of(soak.programs["observer"].pid))
        hanging = None
        if soak.chance.random() < 0.35:  # each hang that ended doubles the progress timeout of its run
            hanging = min(soak.chance.sample(soak.trainings, 4), key=lambda training: len(training.hung))
            hanging.hanging.set()
            hanging.hung.append([time.monotonic(), float("inf")])
            hangs += 1
        for _ in range(soak.chance.randint(1, 3)):
            soak.hurt()
            time.sleep(soak.chance.uniform(0.0, 5.0))
        if hanging is not None:
            name, since, healthy = hanging.name, hanging.hung[-1][0], time.monotonic()
            timeout = soak.timeout(name)
            if soak.wait(lambda n=name, s=since: soak.webhook.of(n, "firing", s), 3 * WITHIN + timeout):  # type: ignore[misc]
                late.append(max(0.0, soak.webhook.of(name, "firing", since)[0] - healthy))
            else:
                missed.append(f"{name}: {time.monotonic() - since:.0f} s silent, progress timeout {timeout:.0f} s")
            if hanging.job and not soak.wait(
                lambda j=hanging.job, s=since: any(at >= s for at, _ in soak.requeued(j)),
                ACTS,  # type: ignore[misc]
            ):
                stayed.append(name)
            hanging.hung[-1][1] = time.monotonic()
            hanging.hanging.clear()
            soak.wait(lambda n=name, s=hanging.hung[-1][1]: soak.webhook.of(n, "resolved", s), WITHIN)  # type: ignore[misc]
    for training in soak.trainings:
        training.ending.set()
        training.join()
    ended = time.monotonic()
    written = {training.name: float(training.written) for training in soak.trainings}
    soak.wait(lambda: soak.metrics() == written, SETTLE)
    counted = soak.metrics()
    accepted = [(at, one) for at, one in list(soak.webhook.accepted) if at < ended + BUDGET / 2]
    false = [one for at, one in accepted if one["status"] == "firing" and not soak.hung(one, at)]
    return {
        "minutes": round((ended - began) / 60.0, 1),
        "faults": dict(sorted(soak.faults.items())),
        "lines written": int(sum(written.values())), "lines counted": int(sum(counted.values())),
        "runs whose count differs": sorted(name for name in written if counted.get(name) != written[name]),
        "true hangs": hangs, "notified": len(late), "not notified": missed,
        "seconds from the last fault to the message": [round(one, 1) for one in sorted(late)],
        "false alarms": [f"{one['run']} {one['incident']}: {one['summary']}" for one in false],
        "messages accepted": len(accepted),
        "accepted twice under one id": len(accepted) - len({one["id"] for _, one in accepted}),
        "requeues": len(soak.requeued()), "hung and not requeued": stayed, "unwanted actions": soak.unwanted(),
        "MB of the observer, smallest and largest": [round(min(memory)), round(max(memory))],
        "programs that ended by themselves": dict(soak.unasked),
    }  # fmt: skip


def main() -> int:
    """Plays it; 1 on a fault of ours."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=8)
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="soak-")
    soak = Soak(Path(directory), options.runs, random.Random(options.seed))
    try:
        figures = play(soak, options.minutes)
    finally:
        for program in soak.programs.values():
            program.kill()
        soak.log.close()
    print(json.dumps(figures, indent=2))
    faults = (
        "runs whose count differs", "not notified", "false alarms", "accepted twice under one id", "unwanted actions",
        "hung and not requeued", "programs that ended by themselves",
    )  # fmt: skip
    if any(figures[name] for name in faults):
        print(f"logs and states are kept in {directory}", file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    return 0


def program(flags: Path) -> None:
    """A program as it is, with faults at the edge of the system."""
    from megatron_monitor import cli, store
    from megatron_monitor.follow.os_layer import OsLayer
    from megatron_monitor.receiver import spool
    from megatron_monitor.system.clock import SystemClock

    def blocking(real: Callable[..., Any]) -> Callable[..., Any]:
        def late(_layer: OsLayer, *arguments: Any) -> Any:
            while (flags / "blocked").exists():
                time.sleep(0.05)
            return real(*arguments)

        return late

    class Disk:
        def __getattr__(self, name: str) -> Any:
            if name in ("pwrite", "write", "replace") and (flags / "full").exists():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return getattr(os, name)

    for name in ("stat", "open", "pread", "fstat", "scandir"):
        setattr(OsLayer, name, blocking(getattr(OsLayer(), name)))
    SystemClock.wall = lambda _: time.time() + float((flags / "offset").read_text())  # type: ignore[method-assign]
    store.os = spool.os = Disk()  # type: ignore[assignment]
    sys.argv[0] = "megatron-monitor"
    cli.main()


if __name__ == "__main__":
    if "SOAK_FLAGS" in os.environ:
        program(Path(os.environ["SOAK_FLAGS"]))
    sys.exit(main())
