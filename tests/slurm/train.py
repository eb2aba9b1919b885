"""A training as one job step: each rank counts, the last one prints, checkpoints are kept, one rank may stop.

    srun --label python train.py DIRECTORY [--stop NODELIST]

On the job's nodes NODELIST rank 3 stops after 12 iterations; the other ranks wait for it, say so after two seconds, as
NCCL's watchdog does, and hang on.
"""

import os
import sys
import time
from pathlib import Path

ITERATION = (
    " iteration {0:8d}/    1000 | consumed samples: {1:12d} | elapsed time per iteration (ms): 200.0 | learning rate: "
    "1.000E-04 | global batch size:    64 | lm loss: {2:.6E} | loss scale: 1.0 | grad norm: 1.000 | number of skipped "
    "iterations:   0 | number of nan iterations:   0 |"
)
WATCHDOG = (
    "[rank{0}]:[E522 03:55:59.960586137 ProcessGroupNCCL.cpp:694] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=2000) ran for 2001 "
    "milliseconds before timing out.\n"
    "[rank{0}]:[E522 03:55:59.960586137 ProcessGroupNCCL.cpp:694] [PG ID 0 PG GUID 0(default_pg) Rank {0}]  failure "
    "detected by watchdog at work sequence id: {1} PG status: last enqueued work: {1}, last completed work: {2}"
)


def main() -> None:
    """One rank."""
    directory, rank, world = Path(sys.argv[1]), int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    stops = sys.argv[2:] == ["--stop", os.environ["SLURM_JOB_NODELIST"]]
    kept = directory / "latest_checkpointed_iteration.txt"
    done = int(kept.read_text()) if kept.exists() else 0
    say = print if rank == 0 else lambda *_a, **_k: None
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"):  # Slurm may know of another output
        say(f"{name}={os.environ[name]}", flush=True)
    say(f"using world size: {world}, data-parallel-size: {world}, tensor-model-parallel size: 1, "
        "pipeline-model-parallel size: 1", flush=True)  # fmt: skip
    say(f"  successfully loaded checkpoint from {directory} at iteration {done}" if done else "", flush=True)
    say(f"[before the start of training step] datetime: {time.strftime('%Y-%m-%d %H:%M:%S')} ", flush=True)
    together = directory / f"begun-{os.environ['SLURM_JOB_ID']}"  # no rank's first iteration is over before all began
    if rank == 0:
        together.touch()
    while not together.exists():
        time.sleep(0.05)
    for iteration in range(done + 1, 1001):
        time.sleep(0.2)
        if stops and iteration == done + 13:
            if rank != 3:
                time.sleep(2.0)
                print(WATCHDOG.format(rank, iteration, iteration - 1), flush=True)
            time.sleep(120.0)
        if rank == world - 1:
            print(ITERATION.format(iteration, iteration * 64, 3 - iteration / 1000), flush=True)
        if iteration % 10 == 0:
            say(f"saving checkpoint at iteration {iteration:7d} to {directory}", flush=True)
            if rank == 0:
                kept.write_text(str(iteration))
            say(f"  successfully saved checkpoint at iteration {iteration:7d} to {directory}", flush=True)


main()
