"""DeepSpeed with two processes, watched by the real daemon: what it says when a rank is stopped, killed, fails.

Each test starts a training of its own. The times are those of the daemon's settings (hang.minimum 3 s) and of torchrun.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

TRAIN = Path(__file__).with_name("train.py")
TRAINER = Path(__file__).with_name("train_hf.py")
ROOT = Path(__file__).parents[2]
PATIENCE = 90.0  # seconds: importing torch and deepspeed twice takes half a minute on a busy machine
EXTENSIONS = Path(sys.prefix) / "extensions"
ENVIRONMENT = {
    **os.environ, "DS_ACCELERATOR": "cpu", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1",
    "TORCH_EXTENSIONS_DIR": str(EXTENSIONS), "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
}  # fmt: skip
TORCHRUN = [
    sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0",
    "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0",
]  # fmt: skip
BUSY = """
import contextlib, os
os.sched_setaffinity(0, {1 % (os.cpu_count() or 1)})
with contextlib.suppress(OSError):
    os.nice(-10)
    open("/proc/self/autogroup", "w").write("-10")
while os.getppid() != 1:
    pass
"""


@dataclass
class Watched:
    """A training and the daemon beside it."""

    folder: Path
    training: subprocess.Popen[bytes]
    daemon: subprocess.Popen[str]
    url: str
    log: IO[bytes]

    def get(self, path: str) -> Any:
        """JSON of the API."""
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:
            return json.load(answer)

    def run(self) -> dict[str, Any]:
        """The run as the API shows it; empty before it is seen."""
        runs = self.get("api/v1/runs")["runs"]
        return runs[0] if runs else {}

    def incident(self, kind: str) -> dict[str, Any] | None:
        """An open incident of this kind that is no quiet warning."""
        found = [i for i in self.get("api/v1/incidents")["incidents"] if i["incident"] == kind]
        return next((i for i in found if i["severity"] != "warning"), None)

    def until(self, what: str, ask: Callable[[], Any], patience: float = PATIENCE) -> tuple[Any, float]:
        """(the first answer that is something, seconds waited)."""
        began = time.monotonic()
        while time.monotonic() - began < patience:
            answer = ask()
            if answer:
                return answer, time.monotonic() - began
            time.sleep(0.1)
        tail = (self.folder / "train.log").read_text(errors="replace")[-3000:]
        raise AssertionError(f"not within {patience} s: {what}\n{tail}")

    def workers(self) -> list[int]:
        """Process ids of the two ranks."""
        out = subprocess.run(["pgrep", "-P", str(self.training.pid)], capture_output=True, text=True).stdout
        return sorted(int(pid) for pid in out.split())

    def step(self, least: int) -> None:
        """Wait for an iteration."""
        self.until(f"iteration {least}", lambda: (self.run().get("iteration") or 0) >= least)


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """DeepSpeed compiles an extension on its first use, for a minute or several. One that was stopped in it leaves a
    lock at which all later ones wait for ever.
    """
    for lock in EXTENSIONS.glob("*/lock"):
        lock.unlink()
    subprocess.run(
        [*TORCHRUN, str(TRAIN), "--steps", "2"], env=ENVIRONMENT, check=True, timeout=900, capture_output=True
    )


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    """Start a training with arguments of train.py, and a daemon on its log."""
    started: list[Watched] = []

    def start(*arguments: str, script: Path = TRAIN) -> Watched:
        log = (tmp_path / "train.log").open("wb")
        training = subprocess.Popen(
            [*TORCHRUN, str(script), *arguments],
            stdout=log, stderr=subprocess.STDOUT, env=ENVIRONMENT, start_new_session=True,
        )  # fmt: skip
        daemon = subprocess.Popen(
            [sys.executable, "-m", "monitor", "run", "--listen", "127.0.0.1:0", "--set", f"state_dir={tmp_path}/state",
             "--set", "detectors.hang.minimum=3s", str(tmp_path / "train.log")],
            stderr=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert daemon.stderr is not None
        address = None
        for line in daemon.stderr:
            if address := re.search(r"http://\S+/", line):
                break
        assert address is not None
        watched = Watched(tmp_path, training, daemon, address[0], log)
        started.append(watched)
        return watched

    yield start
    for watched in started:
        for rank in watched.workers():  # torchrun gives each a session of its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
        for process in (watched.training, watched.daemon):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL) if process is watched.training else process.kill()
            process.wait(10)
        if watched.daemon.stderr is not None:
            watched.daemon.stderr.close()
        watched.log.close()


def test_a_normal_run(watch: Callable[..., Watched]) -> None:
    """Every step is counted, nothing is said, and the end is no incident."""
    watched = watch("--steps", "40")
    watched.step(1)
    assert watched.training.wait(PATIENCE) == 0
    watched.until("all steps", lambda: watched.run().get("iteration") == 40)
    time.sleep(8)  # longer than two timeouts of silence
    assert watched.get("api/v1/incidents")["incidents"] == []


def test_one_rank_is_stopped_and_goes_on(watch: Callable[..., Watched]) -> None:
    """SIGSTOP hangs the other rank in its collective: told within the budget, resolved when it goes on."""
    watched = watch("--steps", "400")
    watched.step(15)
    victim = watched.workers()[1]
    os.kill(victim, signal.SIGSTOP)
    incident, waited = watched.until("hang", lambda: watched.incident("hang"), 15)
    print(f"stopped rank: hang told after {waited:.1f} s, progress timeout 3 s")
    assert waited < 6
    assert incident["severity"] == "critical"
    os.kill(victim, signal.SIGCONT)
    _, waited = watched.until("resolved", lambda: watched.incident("hang") is None, 15)
    print(f"continued rank: resolved after {waited:.1f} s")
    assert watched.run()["state"] == "training"


def test_one_rank_is_killed(watch: Callable[..., Watched]) -> None:
    """SIGKILL as the kernel's OOM killer sends it: a crash, its kind, told once torchrun has seen it."""
    watched = watch("--steps", "400")
    watched.step(15)
    os.kill(watched.workers()[1], signal.SIGKILL)
    incident, waited = watched.until("crash", lambda: watched.incident("crash"), 60)
    print(f"killed rank: crash told after {waited:.1f} s as {incident['evidence']['failure']}")
    assert incident["evidence"]["failure"] == "killed"
    assert watched.run()["state"] == "crashed"


def test_an_exception_on_one_rank(watch: Callable[..., Watched]) -> None:
    """The traceback's own words are the cause, not torchrun's report of them."""
    watched = watch("--steps", "400", "--raise-at", "20")
    incident, _ = watched.until("crash", lambda: watched.incident("crash"))
    assert incident["evidence"]["failure"] == "python_exception"
    assert "a label is out of range" in incident["summary"]


def test_a_full_disk_during_a_save(watch: Callable[..., Watched], tmp_path: Path) -> None:
    """The checkpoint does not fit: a crash by a full disk."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no right to mount a small file system here")
    try:
        watched = watch("--steps", "400", "--save", str(small))
        incident, _ = watched.until("crash", lambda: watched.incident("crash"))
        assert incident["evidence"]["failure"] == "disk_full", incident
    finally:
        subprocess.run(["umount", "-l", str(small)])


@pytest.mark.parametrize("engine", [(), ("--deepspeed",)], ids=["alone", "deepspeed"])
def test_hf_trainer_is_followed(watch: Callable[..., Watched], tmp_path: Path, engine: tuple[str, ...]) -> None:
    """Progress bars over carriage returns and dicts with quoted numbers: a stopped rank is told, and going on."""
    watched = watch("--steps", "400", "--out", str(tmp_path / "out"), *engine, script=TRAINER)
    watched.step(15)
    victim = watched.workers()[1]
    os.kill(victim, signal.SIGSTOP)
    _, waited = watched.until("hang", lambda: watched.incident("hang"), 15)
    print(f"HF Trainer {engine}: hang told after {waited:.1f} s, progress timeout 3 s")
    assert waited < 6
    os.kill(victim, signal.SIGCONT)
    watched.until("resolved", lambda: watched.incident("hang") is None, 15)
    assert watched.run()["train_iterations"] == 400


def slowdown(watched: Watched, what: str, patience: float = PATIENCE, since: int = 0) -> dict[str, Any]:
    """The slowdown that began at iteration `since` or later, once its cause is told: other programs on the machine may
    have made a training slow before, and that is told, too.
    """

    def reported() -> dict[str, Any] | None:
        found = [item for item in watched.get("api/v1/incidents")["incidents"] if item["incident"] == "slowdown"]
        found = [item for item in found if (item["onset_iteration"] or 0) >= since]
        return next((item for item in found if item["evidence"].get("cause") != "unknown"), None)

    incident, waited = watched.until("slowdown", reported, patience)
    print(f"{what}: told after {waited:.1f} s: {incident['summary']}")
    return dict(incident)


@pytest.mark.parametrize("line", [("--timers",), ()], ids=["beside Megatron's line", "alone"])
def test_a_data_loader_that_sleeps(watch: Callable[..., Watched], line: tuple[str, ...]) -> None:
    """In no timer of DeepSpeed; where its engine alone prints steps, not in its samples per second either."""
    watched = watch("--steps", "400", *line, "--slow", "data", "--slow-from", "60", "--slow-by", "0.2")
    watched.step(59)
    incident = slowdown(watched, "slow loader")
    assert incident["evidence"]["cause"] == "outside_timers"
    assert 59 <= incident["onset_iteration"] <= 62


def test_a_busy_loop_beside_one_rank(watch: Callable[..., Watched]) -> None:
    """Six processes that compute on the core of rank 1. The timers are those of rank 0, which waits for it."""
    watched = watch("--steps", "600", "--timers", "--pin", "--seconds", "0.15")
    watched.step(60)
    busy = [subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True) for _ in range(6)]
    try:
        incident = slowdown(watched, "busy loops beside rank 1", 150, since=57)
        assert incident["evidence"]["cause"] == "communication"
        assert "bwd_allreduce" in incident["summary"]
    finally:
        for process in busy:
            process.kill()
            process.wait(10)


def test_a_slow_disk(watch: Callable[..., Watched], tmp_path: Path) -> None:
    """DeepSpeed prints that a save begins and no end of it: the steps behind it tell."""
    saves = ("--save", str(tmp_path / "saved"), "--save-every", "10")
    watched = watch("--steps", "400", *saves, "--slow", "save", "--slow-from", "85")
    watched.step(84)
    incident = slowdown(watched, "slow disk")
    assert incident["evidence"]["cause"] == "checkpoint"
    assert incident["onset_iteration"] in (80, 90)
    assert watched.run()["last_checkpoint_iteration"] >= 100
