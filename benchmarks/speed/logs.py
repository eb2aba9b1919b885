"""Synthetic logs to measure on, in the formats of the real programs. Same arguments, same bytes.

`dense`: one iteration line of Megatron-LM in six lines, the others what real jobs print between iterations.
`noise`: NCCL INFO, shell traces and warnings of a start-up on many ranks, one iteration line in some 2,000.
`loop`: iteration lines alone. `merged`: dense with srun's and torchrun's labels in front of every line.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
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


def between(chance: random.Random) -> str:
    """A line of the kind that stands between iterations and says nothing of the training."""
    rank, node = chance.randrange(256), chance.randrange(32)
    return chance.choice(
        (
            f"node{node:03d}:{41000 + rank}:{41900 + rank} [{rank % 8}] NCCL INFO Channel {rank % 32:02d}/1 : "
            f"{rank % 16}[{rank % 8}] -> {(rank + 8) % 16}[{rank % 8}] [send] via NET/IB/{rank % 8}/GDRDMA",
            "/opt/conda/lib/python3.10/site-packages/torch/distributed/c10d_logger.py:79: FutureWarning: "
            "`torch.distributed._all_gather_base` is a private function and will be deprecated.",
            f"[rank{rank}]:W0301 08:{rank % 60:02d}:11.{rank:06d} {41000 + rank} torch/_inductor/utils.py:1137] "
            "[0/0] Not enough SMs to use max_autotune_gemm mode",
            f"wandb: Network error (ConnectTimeout), entering retry loop. attempt {rank}",
            f" > finished creating GPT datasets ... took {chance.random():.4f} seconds on shard {rank}",
            f"WARNING: sequence packing left {9 * chance.random():.2f} % padding in the last batch",
            f"++ export MASTER_ADDR=node{node:03d} && echo step guard {rank} of 256",
            "  warnings.warn(  # torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly",
        )
    )


def noise_line(chance: random.Random) -> str:
    """A line of a start-up on many ranks."""
    rank, node, local = chance.randrange(512), chance.randrange(64), chance.randrange(8)
    pid = 180000 + rank
    where = f"node{node:03d}:{pid}:{pid + 900} [{local}] NCCL INFO"
    return chance.choice(
        (
            f"{where} Channel {rank % 32:02d}/0 : {rank}[{local}] -> {(rank + 1) % 512}[{(local + 1) % 8}] via P2P/IPC",
            f"{where} Channel {rank % 32:02d}/0 : {rank}[{local}] -> {(rank + 8) % 512}[{local}] [receive] via NET/IB/{local}/GDRDMA",
            f"{where} Trees [0] {rank + 1}/-1/-1->{rank}->{rank - 1} [1] {rank + 1}/-1/-1->{rank}->{rank - 1} [2] -1/-1/-1->{rank}->-1",
            f"{where} NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [3]mlx5_3:1/IB ; OOB bond0:10.0.{node}.{local}<0>",
            f"{where} Ring {rank % 24:02d} : {rank} -> {(rank + 1) % 512} -> {(rank + 2) % 512} comm 0x55d0c{rank:07x} nRanks 512",
            f"{where} comm 0x7f0c{rank:08x} rank {rank} nranks 512 cudaDev {local} nvmlDev {local} busId {local}d000 commId 0x{rank:08x}",
            f"++ for i in $(seq {rank})",
            f"++ export LD_LIBRARY_PATH=/usr/local/cuda-12.4/lib64:/opt/hpcx/ucx/lib:/opt/hpcx/ompi/lib:/run/{rank}",
            f"+ [[ {rank} -lt 512 ]]",
            "/opt/conda/lib/python3.10/site-packages/transformers/utils/generic.py:441: UserWarning: "
            "torch.utils._pytree._register_pytree_node is deprecated. Please use register_pytree_node instead.",
            "  warnings.warn(",
            f"[W socket.cpp:697] [c10d] The client socket has failed to connect to [node{node:03d}]:29500 (errno: 22).",
            f"{rank}: Loading extension module fused_mix_prec_layer_norm_cuda... Time to load: {chance.random():.4f} s",
            f"building index map for shard {rank} of 512, number of documents {chance.randrange(10**7)}",
        )
    )


def dense(labels: bool = False) -> Iterator[str]:
    """Endless: five lines, then one iteration line."""
    chance, at, iteration = random.Random(6), _BEGIN, 0
    yield HEAD
    while True:
        iteration += 1
        at += timedelta(seconds=2.42)
        lines = [between(chance) for _ in range(5)]
        lines.append(iteration_line(iteration, 2_000_000, at, chance))
        if labels:
            lines = [f"{chance.randrange(8):2d}: [default{chance.randrange(8)}]:{line}" for line in lines]
        yield "\n".join(lines) + "\n"


def noise() -> Iterator[str]:
    """Endless: 2,000 lines of start-up, then one iteration line."""
    chance, at, iteration = random.Random(7), _BEGIN, 0
    yield HEAD
    while True:
        iteration += 1
        at += timedelta(seconds=2.42)
        lines = [noise_line(chance) for _ in range(2000)]
        lines.append(iteration_line(iteration, 2_000_000, at, chance))
        yield "\n".join(lines) + "\n"


def loop() -> Iterator[str]:
    """Endless: iteration lines alone."""
    chance, at, iteration = random.Random(8), _BEGIN, 0
    yield HEAD
    while True:
        iteration += 1
        at += timedelta(seconds=2.42)
        yield iteration_line(iteration, 2_000_000, at, chance) + "\n"


def merged() -> Iterator[str]:
    """Dense, with launchers' labels."""
    return dense(labels=True)


KINDS = {"dense": dense, "noise": noise, "loop": loop, "merged": merged}


def write_bytes(kind: str, path: Path, size: int) -> None:
    """A log of at least `size` bytes, whole lines; kept if it is already there."""
    if path.exists() and path.stat().st_size >= size:
        return
    written = 0
    with path.with_suffix(".part").open("w") as out:
        parts = KINDS[kind]()
        while written < size:
            text = "".join(islice(parts, 500 if kind != "noise" else 1))
            written += out.write(text)  # the text is ASCII: characters are bytes
    path.with_suffix(".part").replace(path)


def write_iterations(path: Path, count: int) -> None:
    """`count` iteration lines alone."""
    if not path.exists():
        with path.with_suffix(".part").open("w") as out:
            out.writelines(islice(loop(), count + 1))
        path.with_suffix(".part").replace(path)


if __name__ == "__main__":
    write_bytes(sys.argv[1], Path(sys.argv[2]), int(float(sys.argv[3]) * 1e6))
