"""A training's log, written line by line in the programs' own formats and judged as the daemon judges it."""

import random
from collections.abc import Iterable
from typing import Any

from megatron_monitor.config import Config
from megatron_monitor.evaluation import Evaluator, MonitoredRun
from megatron_monitor.incidents import Transition
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.run.state import RunState
from tests.lines import dump


class TrainingLog:
    """One live run, and all that was said of it."""

    def __init__(self, seed: int = 0) -> None:
        self.judge, self.reader = Evaluator(Config()), SourceReader()
        self.run = MonitoredRun(RunState(name="run"))
        self.reported: list[Transition] = []
        self.at = 1_700_000_000.0
        self.random = random.Random(seed)

    def feed(self, text: str, after: float = 1.0) -> None:
        """The text is written `after` seconds later; the daemon judges once after it, as its loop does."""
        self.at += after
        for entry in self.reader.feed(text.encode()):
            self.reported += self.judge.take(self.run, [entry], "a.log", self.at, True)
        self.reported += self.judge.judge(self.run, self.at)

    def lines(self, texts: Iterable[str]) -> None:
        """One after the other, each made when the one before has been read."""
        for text in texts:
            self.feed(text)

    def firings(self, incident: str) -> list[Transition]:
        """Every time it was told as firing."""
        return [item for item in self.reported if item.incident == incident and item.status == "firing"]

    def resolved(self, incident: str) -> list[Transition]:
        """Every time it was told as over."""
        return [item for item in self.reported if item.incident == incident and item.status == "resolved"]

    def first(self, incident: str) -> tuple[int | None, str]:
        """(iteration, severity) of the first time."""
        reported = self.firings(incident)
        assert reported, f"{incident} did not fire"
        return reported[0].iteration, reported[0].severity

    @property
    def incidents(self) -> set[str]:
        """The kinds that fired."""
        return {item.incident for item in self.reported if item.status == "firing"}

    def around(self, value: float, spread: float) -> float:
        """A value with noise, `spread` in parts of one."""
        return value * (1 + self.random.gauss(0, spread))


_MEGATRON: dict[str, Any] = {
    "bf16": True, "checkpoint_activations": True, "data_parallel_size": 8, "ffn_hidden_size": 57344, "fp16": False,
    "global_batch_size": 2048, "hidden_size": 14336, "kv_channels": 128, "log_interval": 1, "lr": 6e-05,
    "micro_batch_size": 2, "num_attention_heads": 112, "num_layers": 70, "padded_vocab_size": 250880,
    "pipeline_model_parallel_size": 12, "save_interval": 100, "seq_length": 2048, "tensor_model_parallel_size": 4,
    "train_iters": 100000, "world_size": 384,
}  # fmt: skip


def arguments(**changes: Any) -> str:
    """Megatron's dump: BLOOM's arguments with changes; None leaves one out."""
    return dump(**{name: value for name, value in sorted({**_MEGATRON, **changes}.items()) if value is not None})


def bloom(
    iteration: int, loss: float | None, norm: float | str = 0.22, batch: int = 2048, seconds: float = 105.22
) -> str:
    """BigScience's line of 2022: seconds, bf16, no loss scale."""
    printed = "" if loss is None else f"lm loss: {loss:.6E} | "
    norm = norm if isinstance(norm, str) else f"{norm:.3f}"
    return (
        f"[default7]: iteration {iteration:8d}/  115311 | consumed samples: {iteration * batch:12d} | "
        f"consumed tokens: {iteration * batch * 2048:12d} | elapsed time per iteration (s): {seconds:.2f} | "
        f"learning rate: 5.279E-05 | global batch size: {batch:5d} | {printed}grad norm: {norm} | num zeros: 0.0 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 | "
        "samples per second: 19.463 | TFLOPs: 149.02 |\n"
    )


def fp16(iteration: int, loss: float | None, scale: float, norm: float | None = 0.0, skipped: int = 0) -> str:
    """BigScience's line of 2021, and Megatron-LM's of that time: milliseconds, loss scale."""
    printed = "" if loss is None else f"lm loss: {loss:.6E} | "
    normed = "" if norm is None else f"grad norm: {norm:.3f} | "
    return (
        f" iteration {iteration:8d}/  311541 | consumed samples: {iteration * 1024:12d} | "
        f"elapsed time per iteration (ms): 22306.6 | learning rate: 9.850E-05 | "
        f"global batch size:  1024 | {printed}loss scale: {scale:.1f} | {normed}"
        f"num zeros: 0.0 | number of skipped iterations: {skipped:3d} | number of nan iterations:   0 |\ntime (ms)\n"
    )


def overflow(scale: float, new: float | None) -> str:
    """DeepSpeed skips a step; `new` None: hysteresis is used up first."""
    rest = "but hysteresis is 2. Reducing hysteresis to 1" if new is None else f"reducing to {new}"
    return (
        "[2022-01-19 13:09:13,305] [INFO] [stage_1_and_2.py:1651:step] [deepscale] OVERFLOW! Rank 0 Skipping step. "
        f"Attempted loss scale: {scale}, {rest}\n"
    )


def trainer(step: int, loss: Any, norm: Any) -> str:
    """HF Trainer's bar and dict."""
    return (
        f"\r {step // 10}%|##        | {step}/1000 [03:45<11:17,  1.10s/it]\r"
        f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 4e-08, 'epoch': 0.1}}\n"
    )


def calm_bloom(log: TrainingLog, iterations: Iterable[int], loss: float = 2.21, norm: float = 0.22) -> None:
    """BLOOM's healthy lines: loss within 0.7 %, grad norm within 15 %."""
    log.lines(bloom(iteration, log.around(loss, 0.007), log.around(norm, 0.15)) for iteration in iterations)


def saved(iteration: int) -> str:
    """A checkpoint is whole."""
    return (
        f"saving checkpoint at iteration {iteration:7d} to /ckpt\n"
        f"  successfully saved checkpoint at iteration {iteration:7d} to /ckpt\n"
    )
