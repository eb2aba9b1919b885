"""Generated logs, in the formats of the real programs, for what real logs cannot give: a million iterations, logs
that are written while the daemon reads. Same arguments, same bytes.
"""

import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

_BEGIN = datetime(2026, 3, 1, 8, 0, 0, tzinfo=UTC)
_BATCH = 1024
HEAD = (
    "using world size: 256, data-parallel size: 16, context-parallel size: 1, "
    "tensor-model-parallel size: 4, pipeline-model-parallel size: 4\n"
    "[after dataloaders are built] datetime: 2026-03-01 08:00:00 \n"
    "training ...\n"
)


def iteration_line(iteration: int, total: int, at: datetime, chance: random.Random) -> str:
    """The training loop's line as Megatron-LM prints it since 2024, without its end."""
    seconds = 2.4 * (1 + 0.01 * chance.random())
    loss = 1.9 + 9.0 / (1 + iteration / 800) + 0.02 * chance.gauss(0, 1)
    return (
        f" [{at:%Y-%m-%d %H:%M:%S.%f}] iteration {iteration:8d}/{total:8d} | consumed samples: {iteration * _BATCH:12d} "
        f"| elapsed time per iteration (ms): {seconds * 1000:.1f} "
        f"| throughput per GPU (TFLOP/s/GPU): {930 / seconds:.1f} "
        f"| learning rate: {3e-4 * (1 - iteration / (total + 1)):.6E} | global batch size: {_BATCH:5d} "
        f"| lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {0.4 + 0.1 * chance.random():.3f} "
        f"| num zeros: {chance.randrange(10**6)} | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def deepspeed_step(iteration: int, total: int, at: datetime, chance: random.Random) -> tuple[str, str]:
    """What a microsoft Megatron-DeepSpeed training of one second an iteration prints of one: (rank 0, the last rank).

    Rank 0: the engine's timers and step, each tenth iteration its progress and throughput. Last rank: the iteration line.
    """
    seconds = 1 + 0.01 * chance.random()
    loss = 1.9 + 9.0 / (1 + iteration / 800) + 0.02 * chance.gauss(0, 1)
    forward, backward, step = 310 * seconds, 630 * seconds, 55 * seconds
    engine = f"[{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03d}] [INFO] ["
    timers = f"{engine}logging.py:128:log_dist] [Rank 0] time (ms) | "
    rate = 3e-4 * (1 - iteration / (total + 1))
    lines = [
        f"{timers}optimizer_allgather: {1.5 * seconds:.2f} | optimizer_gradients: 0.81 | optimizer_step: {2.5 * seconds:.2f}",
        f"{timers}fwd_microstep: {forward:.2f} | bwd_microstep: {backward:.2f} | bwd_inner_microstep: {0.9 * backward:.2f} "
        f"| bwd_allreduce_microstep: {0.1 * backward:.2f} | step_microstep: {step:.2f}",
        f"{timers}fwd: {forward:.2f} | bwd: {backward:.2f} | bwd_inner: {0.9 * backward:.2f} "
        f"| bwd_allreduce: {0.1 * backward:.2f} | step: {step:.2f}",
        f"steps: {iteration} loss: {loss:.4f} iter time (s): {seconds:.3f} samples/sec: {_BATCH / seconds:.3f}",
    ]
    if iteration % 10 == 0:
        lines[1:1] = [
            f"{engine}logging.py:128:log_dist] [Rank 0] step={iteration}, skipped=0, lr=[{rate}, {rate}], mom=[(0.9, 0.95), (0.9, 0.95)]",
            f"{engine}timer.py:264:stop] epoch=0/micro_step={iteration}/global_step={iteration}, "
            f"RunningAvgSamplesPerSec={_BATCH / 1.005}, CurrSamplesPerSec={_BATCH / seconds}, MemAllocated=21.13GB, MaxMemAllocated=30.41GB",
        ]
    last = (
        f" iteration {iteration:8d}/{total:8d} | consumed samples: {iteration * _BATCH:12d} "
        f"| consumed tokens: {iteration * _BATCH * 2048:12d} | elapsed time per iteration (ms): {seconds * 1000:.1f} "
        f"| learning rate: {rate:.3E} | global batch size: {_BATCH:5d} | lm loss: {loss:.6E} | loss scale: 1.0 "
        f"| grad norm: {0.4 + 0.1 * chance.random():.3f} | num zeros: 0.0 | actual seqlen:  2048 "
        f"| number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: {_BATCH / seconds:.3f} "
        f"| tokens per gpu per second (tgs): {_BATCH * 8 / seconds:.3f} | TFLOPs: {150 / seconds:.2f} |\n"
    )
    return "\n".join(lines) + "\n", last


def iterations(count: int) -> Iterator[str]:
    """`count` iteration lines alone."""
    chance, at = random.Random(8), _BEGIN
    yield HEAD
    for iteration in range(1, count + 1):
        at += timedelta(seconds=2.42)
        yield iteration_line(iteration, 2_000_000, at, chance) + "\n"


def written(path: Path, texts: Iterable[str]) -> Path:
    """The log at `path`."""
    with path.open("w") as out:
        out.writelines(texts)
    return path
