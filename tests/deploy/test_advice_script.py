"""ask-before-requeue.sbatch under a Slurm that is no more than its commands: a real daemon, and given answers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.conftest import DEPLOY
from tests.programs import running

PROGRAM = Path(sys.executable).with_name("megatron-monitor")
TRAIN = """
for n in $(seq 1 12); do
    echo " iteration $n/1000 | consumed samples: $n | elapsed time per iteration (ms): 100.0 | lm loss: 2.0E+00 |"
    sleep 0.1
done
echo "srun: error: n-02: task 1: Segmentation fault (core dumped)"
exit 139
"""


def submitted(directory: Path, **variables: str) -> tuple[int, list[str]]:
    """The job's exit status, and what it asked of Slurm."""
    programs, said = directory / "bin", directory / "slurm"
    programs.mkdir()
    asks = f'echo "$(basename "$0") $*" >> {said}\n'
    skip = 'while [[ "$1" == --* ]]; do shift; done\nexec "$@"\n'
    for program, text in {"srun": skip, "scontrol": asks, "sbatch": asks}.items():
        (programs / program).write_text(f"#!/usr/bin/env bash\n{text}")
        (programs / program).chmod(0o755)
    (directory / "train.sh").write_text(TRAIN)
    own = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "tr11", "SLURM_JOB_NODELIST": "n-[01-02]"}
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **own, **variables}
    script = DEPLOY / "slurm" / "ask-before-requeue.sbatch"
    with (directory / "tr11-4711.out").open("ab") as log:
        done = subprocess.run(["bash", script], cwd=directory, env=environment, stdout=log, stderr=log, check=False)
    return done.returncode, said.read_text().splitlines() if said.exists() else []


@pytest.mark.e2e
def test_a_real_daemon_says_restart_without_the_node(tmp_path: Path) -> None:
    """The daemon that follows the job's output is asked while the crash is not yet believed, and answers in time."""
    log = tmp_path / "tr11-4711.out"
    log.touch()
    options = ("--set", f"state_dir={tmp_path / 'state'}")
    with running(
        tmp_path, PROGRAM, "run", "--name", "tr11", *options, log, listen="--listen", ready="/-/ready"
    ) as address:
        status, asked = submitted(tmp_path, MEGATRON_MONITOR=str(PROGRAM), MEGATRON_MONITOR_URL=address)
    assert status == 139, log.read_text()
    script = DEPLOY / "slurm" / "ask-before-requeue.sbatch"
    assert asked == [f"sbatch --parsable --dependency=afterany:4711 --exclude=n-02 {script}"], log.read_text()
    assert "megatron-monitor: restart without n-02: " in log.read_text()


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        ("printf 'restart\\n\\ncrashed: nccl\\n'", ["scontrol requeue 4711"]),
        ("printf 'stop\\n\\na traceback\\n'", []),
        ("printf 'wait\\n\\nnot yet\\n'", []),
        ("echo no monitor at http://login:9843 >&2; exit 1", []),
    ],
)
def test_nothing_but_a_restart_is_a_restart(answer: str, asked: list[str], tmp_path: Path) -> None:
    """No answer, too: the job ends with the training's own status."""
    monitor = tmp_path / "monitor"
    monitor.write_text(f"#!/usr/bin/env bash\n{answer}\n")
    monitor.chmod(0o755)
    assert submitted(tmp_path, MEGATRON_MONITOR=str(monitor)) == (139, asked)
