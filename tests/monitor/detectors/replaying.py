"""Texts in, transitions out, through the real parser and judgement: what scenarios of detectors share."""

from collections.abc import Iterable
from typing import Any

from megatron_monitor.config import Config
from megatron_monitor.evaluation import Evaluator, MonitoredRun
from megatron_monitor.incidents import Transition
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.run.state import RunState
from tests.lines import dump

START = 1_700_000_000.0


class Replaying:
    """One live run. `say` gives it a text at an instant; `told` is everything that was said of it."""

    def __init__(self, name: str = "run") -> None:
        self.judge = Evaluator(Config())
        self.run = MonitoredRun(RunState(name=name))
        self.reader = SourceReader()
        self.reported: list[Transition] = []
        self.at = START

    def say(self, text: str, after: float = 0.0) -> list[Transition]:
        """The text is written `after` seconds later; the daemon judges once after it, as its loop does."""
        self.at += after
        before = len(self.reported)
        for entry in self.reader.feed(text.encode()):
            self.reported += self.judge.take(self.run, [entry], "a.log", self.at, True)
        self.reported += self.judge.judge(self.run, self.at)
        return self.reported[before:]

    def fired(self, kind: str) -> bool:
        """Whether it was told or shown."""
        return any(item.incident == kind and item.status == "firing" for item in self.reported)

    def firing(self, kind: str) -> Transition:
        """The first time that it was told."""
        return next(item for item in self.reported if item.incident == kind and item.status == "firing")

    def loud(self, *kinds: str) -> list[Transition]:
        """What a person would be told of these kinds, or of any."""
        return [item for item in self.reported if not item.display_only and (not kinds or item.incident in kinds)]

    def stands(self, kind: str) -> bool:
        """It is open now."""
        return kind in self.run.book.open


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


def line(
    iteration: int,
    *,
    batch: int = 2048,
    samples: int | None = None,
    seconds: float = 105.22,
    rate: float = 6e-05,
    tflops: float | None = None,
    rates: float | None = None,
    total: int = 100000,
) -> str:
    """BigScience's iteration line; samples default to iteration x batch."""
    consumed = iteration * batch if samples is None else samples
    printed = batch / seconds if rates is None else rates
    shown = f"TFLOPs: {149.02 if tflops is None else tflops:.2f} |"
    return (
        f" iteration {iteration:8d}/{total:8d} | consumed samples: {consumed:12d} | "
        f"consumed tokens: {consumed * 2048:12d} | elapsed time per iteration (s): {seconds:.2f} | "
        f"learning rate: {rate:.3E} | global batch size: {batch:5d} | "
        f"lm loss: {2.5 + 1 / iteration:.6E} | grad norm: {0.2 + (iteration % 7) / 100:.3f} | num zeros: 0.0 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 | "
        f"samples per second: {printed:.3f} | {shown}\n"
    )


def lines(iterations: Iterable[int], **values: Any) -> str:
    """Several."""
    return "".join(line(iteration, **values) for iteration in iterations)
