"""A real training, small enough for a laptop: DeepSpeed on the CPU over gloo, a two-layer network, random data.

    torchrun --nproc_per_node 2 tests/live/train.py --steps 60

DeepSpeed prints its own step and throughput lines; nothing of the monitor is imported here.
"""

from __future__ import annotations

import argparse
import os
import time

import deepspeed
import torch


def main() -> None:
    """Train; fail where told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.2, help="sleep a step, so that steps are steady")
    parser.add_argument("--raise-at", type=int, default=0, help="raise an exception on rank 1 at this step")
    parser.add_argument("--save", default="", help="directory for a checkpoint every 20 steps")
    parser.add_argument("--local_rank", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 1,
            "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
            "steps_per_print": 1,
            "zero_optimization": {"stage": 0},
        },
        dist_init_required=True,
    )
    rank = int(os.environ.get("RANK", "0"))
    print(f"***** Running training *****\n  Total optimization steps = {options.steps}", flush=True)
    for step in range(1, options.steps + 1):
        x = torch.randn(4, 256)
        loss = torch.nn.functional.mse_loss(engine(x), x)
        engine.backward(loss)
        engine.step()
        time.sleep(options.seconds)
        if options.raise_at == step and rank == 1:
            raise ValueError("a label is out of range")
        if options.save and step % 20 == 0:
            engine.save_checkpoint(options.save, tag=f"global_step{step}")


if __name__ == "__main__":
    main()
