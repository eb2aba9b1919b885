"""A real training by HF Trainer on the CPU, two processes, a GPT-2 of two layers; with --deepspeed on its engine.

torchrun --nproc_per_node 2 tests/live/train_hf.py --steps 60 [--deepspeed]
"""

import argparse
import time
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

DEEPSPEED = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 0},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}},
}


class Numbers(torch.utils.data.Dataset):
    """Random tokens, the same for every run."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = torch.randint(0, 100, (32,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Slow(TrainerCallback):
    """Steps of 0.2 s."""

    def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
        """After each step."""
        time.sleep(0.2)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--deepspeed", action="store_true")
    parser.add_argument("--local_rank", type=int, default=0)
    options = parser.parse_args()
    arguments = TrainingArguments(
        output_dir="out", max_steps=options.steps, per_device_train_batch_size=4, logging_steps=1,
        save_strategy="no", report_to=[], use_cpu=True, deepspeed=DEEPSPEED if options.deepspeed else None,
    )  # fmt: skip
    model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=32, n_embd=64, n_layer=2, n_head=2))
    Trainer(model=model, args=arguments, train_dataset=Numbers(), callbacks=[Slow()]).train()


if __name__ == "__main__":
    main()
