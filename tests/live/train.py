"""A real training, small enough for a laptop: DeepSpeed on the CPU over gloo, a two-layer network, random data.

    torchrun --nproc_per_node 2 tests/live/train.py --steps 60

DeepSpeed prints its own step and throughput lines; nothing of the monitor is imported here.
"""

import argparse
import contextlib
import os
import time
from pathlib import Path
from typing import Any

import deepspeed
import torch


def save_slowly(seconds: float) -> None:
    """From here on whatever is saved takes so much longer."""
    save = torch.save

    def slow(*arguments: Any, **options: Any) -> None:
        time.sleep(seconds)
        save(*arguments, **options)

    torch.save = slow


def compute(seconds: float) -> None:
    """Multiply for so much time of the processor: longer while something else runs on its core."""
    x = matrix = torch.randn(192, 192) / 14
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        x = torch.tanh(x @ matrix)


def main() -> None:
    """Train; fail where told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.2, help="sleep a step, so that steps are steady")
    parser.add_argument("--raise-at", type=int, default=0, help="raise an exception on rank 1 at this step")
    parser.add_argument("--save", default="", help="directory for checkpoints")
    parser.add_argument("--save-every", type=int, default=20, help="steps")
    parser.add_argument("--slow", choices=("data", "save"), help="what becomes slow: the loader, or the disk")
    parser.add_argument("--slow-from", type=int, default=40, help="step from which it is slow")
    parser.add_argument("--slow-by", type=float, default=0.1, help="seconds that a step or a save takes longer")
    parser.add_argument("--timers", action="store_true", help="DeepSpeed's wall_clock_breakdown; the sleep is compute")
    parser.add_argument("--pin", action="store_true", help="each rank computes, on a core of its own")
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
            "log_level": "info",  # DeepSpeed of 2026 prints warnings only, and no step, unless it is told to
            "zero_optimization": {"stage": 0},
            "wall_clock_breakdown": options.timers,
        },
        dist_init_required=True,
    )
    rank = int(os.environ.get("RANK", "0"))
    print(f"***** Running training *****\n  Total optimization steps = {options.steps}", flush=True)
    if options.pin:
        os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
        with contextlib.suppress(OSError):  # other work on the machine would hide what the busy loops do
            os.nice(-10)
            Path("/proc/self/autogroup").write_text("-10")
        model.register_forward_pre_hook(lambda *_: compute(options.seconds))
    elif options.timers:
        model.register_forward_pre_hook(lambda *_: time.sleep(options.seconds))
    for step in range(1, options.steps + 1):
        slow = options.slow if step >= options.slow_from else None
        began = time.monotonic()
        x = torch.randn(4, 256)
        if slow == "data":
            time.sleep(options.slow_by)
        loss = torch.nn.functional.mse_loss(engine(x), x)
        engine.backward(loss)
        engine.step()
        if not options.timers:
            time.sleep(options.seconds)
        elif rank == 1:  # Megatron-DeepSpeed's loop prints this on the last rank
            duration = time.monotonic() - began
            fields = (
                f"iteration {step:8d}/{options.steps:8d}", f"consumed samples: {8 * step:12d}",
                f"elapsed time per iteration (ms): {1000 * duration:.1f}", "learning rate: 1.000E-03",
                "global batch size:     8", f"lm loss: {loss:.6E}", "loss scale: 1.0", "grad norm: 1.000",
                "number of skipped iterations:   0", "number of nan iterations:   0",
                f"samples per second: {8 / duration:.3f}", "TFLOPs: 0.01",
            )  # fmt: skip
            print(f" {' | '.join(fields)} |", flush=True)
        if options.raise_at == step and rank == 1:
            raise ValueError("a label is out of range")
        if slow == "save" and step == options.slow_from:
            save_slowly(options.slow_by)
        if options.save and step % options.save_every == 0:
            engine.save_checkpoint(options.save, tag=f"global_step{step}")


if __name__ == "__main__":
    main()
