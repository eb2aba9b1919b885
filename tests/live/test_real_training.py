"""DeepSpeed with two processes, watched by the real daemon: what it says when a rank is stopped, killed, fails.

Each test starts a training of its own. The times are those of the daemon's settings (hang.minimum 3 s) and of torchrun.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunningDaemon, Start
from tests.programs import TETHERED, wait

SCRIPTS = Path(__file__).parent
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

    log: Path
    training: subprocess.Popen[bytes]
    daemon: RunningDaemon

    def run(self) -> dict[str, Any]:
        """The run as the API shows it; empty before it is seen."""
        return dict(next(iter(json.loads(self.daemon.get("/api/v1/runs"))["runs"]), {}))

    def incidents(self) -> list[dict[str, Any]]:
        """All that are open."""
        return list(json.loads(self.daemon.get("/api/v1/incidents"))["incidents"])

    def incident(self, kind: str) -> dict[str, Any] | None:
        """An open incident of this kind that is no quiet warning."""
        return next((i for i in self.incidents() if i["incident"] == kind and i["severity"] != "warning"), None)

    def until(self, what: str, ask: Callable[[], Any], patience: float = 90.0) -> tuple[Any, float]:
        """(the first answer that is something, seconds waited)."""
        answers: list[Any] = []

        def answered() -> bool:
            answers.append(ask())
            return bool(answers[-1])

        seconds = wait(answered, patience, lambda: f"{what}\n{self.log.read_text(errors='replace')[-3000:]}")
        return answers[-1], seconds

    def workers(self) -> list[int]:
        """Process ids of the two ranks."""
        out = subprocess.run(["pgrep", "-P", str(self.training.pid)], capture_output=True, text=True).stdout
        return sorted(int(pid) for pid in out.split())

    def step(self, least: int) -> None:
        """Wait for an iteration: importing torch and deepspeed twice takes half a minute on a busy machine."""
        self.until(f"iteration {least}", lambda: (self.run().get("iteration") or 0) >= least)


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """DeepSpeed compiles an extension on its first use, for a minute or several. One that was stopped in it leaves a
    lock at which all later ones wait for ever.
    """
    for lock in EXTENSIONS.glob("*/lock"):
        lock.unlink()
    subprocess.run(
        [*TORCHRUN, str(SCRIPTS / "train.py"), "--steps", "2"],
        env=ENVIRONMENT, check=True, timeout=900, capture_output=True,
    )  # fmt: skip


@pytest.fixture
def watch(start: Start, tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    """Start a training with arguments of its script, and a daemon on its log."""
    started: list[Watched] = []

    def begin(*arguments: str, script: str = "train.py") -> Watched:
        log = tmp_path / "train.log"
        with log.open("wb") as stream:
            training = subprocess.Popen(
                [*TETHERED, *TORCHRUN, str(SCRIPTS / script), *arguments],
                stdout=stream, stderr=stream, cwd=tmp_path, env=ENVIRONMENT,
            )  # fmt: skip
        started.append(Watched(log, training, start("--set", "detectors.hang.minimum=3s", str(log))))
        return started[-1]

    yield begin
    for watched in started:
        for rank in watched.workers():  # torchrun gives each a session of its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
        watched.training.kill()
        watched.training.wait(10)


def test_a_normal_run(watch: Callable[..., Watched]) -> None:
    """Every step is counted, nothing is said, and the end is no incident."""
    watched = watch("--steps", "40")
    watched.step(1)
    assert watched.training.wait(90) == 0
    watched.until("all steps", lambda: watched.run().get("iteration") == 40)
    time.sleep(8)  # longer than two timeouts of silence
    assert watched.incidents() == []


@pytest.mark.parametrize("engine", ["train.py", "train_hf.py", "train_hf.py --deepspeed"])
def test_one_rank_is_stopped_and_goes_on(watch: Callable[..., Watched], engine: str) -> None:
    """SIGSTOP hangs the other rank in its collective: told within the budget, resolved when it goes on. HF Trainer
    prints progress bars over carriage returns and dicts with quoted numbers.
    """
    script, *arguments = engine.split()
    watched = watch("--steps", "400", *arguments, script=script)
    watched.step(15)
    victim = watched.workers()[1]
    os.kill(victim, signal.SIGSTOP)
    incident, waited = watched.until("hang", lambda: watched.incident("hang"), 15)
    print(f"{engine}: hang told {waited:.1f} s after a rank was stopped, progress timeout 3 s")
    assert waited < 6
    assert incident["severity"] == "critical"
    os.kill(victim, signal.SIGCONT)
    _, waited = watched.until("resolved", lambda: watched.incident("hang") is None, 15)
    print(f"continued rank: resolved after {waited:.1f} s")
    assert (watched.run()["state"], watched.run()["train_iterations"]) == ("training", 400)


@pytest.mark.parametrize(
    ("what", "failure", "said"),
    [
        ("--slow-from 400", "killed", ""),  # SIGKILL, as the kernel's OOM killer sends it
        ("--raise-at 20", "python_exception", "a label is out of range"),  # not torchrun's report of it
        ("--save small", "disk_full", ""),
    ],
    ids=["a rank is killed", "an exception", "a full disk"],
)
def test_a_crash_has_its_cause(
    watch: Callable[..., Watched], tmp_path: Path, what: str, failure: str, said: str
) -> None:
    """Told once torchrun has seen it."""
    small = tmp_path / "small"
    small.mkdir()
    if "small" in what:
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]
        if subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("no right to mount a small file system here")
    try:
        watched = watch("--steps", "400", *what.replace("small", str(small)).split())
        if failure == "killed":
            watched.step(15)
            os.kill(watched.workers()[1], signal.SIGKILL)
        incident, waited = watched.until("crash", lambda: watched.incident("crash"))
        print(f"{what}: crash told after {waited:.1f} s as {incident['evidence']['failure']}")
        assert incident["evidence"]["failure"] == failure
        assert said in incident["summary"]
        assert watched.run()["state"] == "crashed"
    finally:
        subprocess.run(["umount", "-l", str(small)], capture_output=True)


@pytest.mark.parametrize(
    ("arguments", "begin", "cause", "said"),
    [
        ("--timers --slow data --slow-by 0.2", 60, "outside_timers", ""),
        ("--slow data --slow-by 0.2", 60, "outside_timers", ""),  # not in DeepSpeed's samples per second either
        ("--timers --pin --seconds 0.15", 60, "communication", "bwd_allreduce"),  # rank 0's timers: it waits for rank 1
        ("--save saved --save-every 10 --slow save --slow-by 1.6", 85, "checkpoint", ""),  # no end of a save is printed
    ],
    ids=["a loader beside Megatron's line", "a loader alone", "busy loops beside rank 1", "a slow disk"],
)
def test_a_slowdown_has_its_cause(
    watch: Callable[..., Watched], tmp_path: Path, arguments: str, begin: int, cause: str, said: str
) -> None:
    """Other programs on the machine may have made the training slow before, and that is told, too."""
    arguments = arguments.replace("saved", str(tmp_path / "saved"))
    watched = watch("--steps", "600", *arguments.split(), "--slow-from", str(begin))
    watched.step(begin - 1)
    many = 6 if "--pin" in arguments else 0
    busy = [subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True) for _ in range(many)]

    def reported() -> dict[str, Any] | None:
        found = [item for item in watched.incidents() if item["incident"] == "slowdown"]
        found = [item for item in found if (item["onset_iteration"] or 0) >= begin - 5]
        return next((item for item in found if item["evidence"].get("cause") != "unknown"), None)

    try:
        incident, waited = watched.until("slowdown", reported, 150)
    finally:
        for process in busy:
            process.kill()
            process.wait(10)
    print(f"{arguments}: told after {waited:.1f} s: {incident['summary']}")
    assert (incident["evidence"]["cause"], said in incident["summary"]) == (cause, True)
    assert busy or incident["onset_iteration"] <= begin + 5
