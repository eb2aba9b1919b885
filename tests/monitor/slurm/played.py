"""A Slurm without a Slurm: stand-ins for its clients that know one job, for tests.

`install` writes them into a directory (`slurm.directory` of the configuration) beside `job.json`, the job's state. They
print what Slurm 22.05 prints. A requeue or a cancellation changes the state; a test looks at it.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

CLIENTS: Final = ("scontrol", "scancel", "sbatch", "srun", "squeue")
JOB: Final = "job.json"
_STACKS: Final = """\
== rank 3, pid 4711: python pretrain_gpt.py
Thread 4711 (idle): "MainThread"
    read (data/indexed_dataset.py:402)
    train_step (megatron/training.py:421)
"""


def install(directory: Path, job: dict[str, Any]) -> None:
    """The stand-ins, and a job that runs: the fields of `scontrol show job`."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in CLIENTS:
        path = directory / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "{directory}" {name} "$@"\n', "utf-8")
        path.chmod(0o755)
    write(directory, job)


def read(directory: Path) -> dict[str, Any]:
    """The job."""
    job: dict[str, Any] = json.loads((directory / JOB).read_text("utf-8"))
    return job


def write(directory: Path, job: dict[str, Any]) -> None:
    """The job from now on; whole or not at all, for others read it."""
    (directory / f"{JOB}.new").write_text(json.dumps(job), "utf-8")
    os.replace(directory / f"{JOB}.new", directory / JOB)


def answer(directory: Path, client: str, arguments: Sequence[str]) -> str:
    """What a client prints; what it does to the job."""
    job = read(directory)
    match (client, *arguments):
        case ("scontrol", "show", "job", "-o", number) if number == job["JobId"]:
            return " ".join(f"{name}={value}" for name, value in job.items()) + "\n"
        case ("scontrol", "requeue" | "requeuehold", number) if number == job["JobId"]:
            held = arguments[0] == "requeuehold"
            write(directory, {**job, "JobState": "PENDING", "Reason": "JobHeldUser" if held else "BeginTime",
                              "Restarts": int(job["Restarts"]) + 1})  # fmt: skip
        case ("scontrol", "update", _, change) if change.startswith("ExcNodeList="):
            write(directory, {**job, "ExcNodeList": change.partition("=")[2]})
        case ("scontrol", "release", _):
            write(directory, {**job, "Reason": "BeginTime"})
        case ("scancel", *_):
            write(directory, {**job, "JobState": "CANCELLED"})
        case ("sbatch", "--hold", *_):
            return f"{int(job['JobId']) + 1}\n"
        case ("sbatch", "--test-only", *_) | ("squeue", *_):
            return ""
        case ("srun", *_):
            return _STACKS
        case _:
            raise SystemExit("slurm_load_jobs error: Invalid job id specified")
    return ""


if __name__ == "__main__":
    sys.stdout.write(answer(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
