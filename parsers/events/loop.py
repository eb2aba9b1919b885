"""The training loop and its evaluations: steps, progress, summaries."""

from typing import ClassVar, Literal

from msgspec import field

from megatron_monitor.parsers.events.base import Event, Remark
from megatron_monitor.parsers.programs import MEGATRON_LM

Part = Literal["rollout", "reward", "logprobs", "training", "sync"]
"""Parts of a reinforcement learning step in their order: generate responses, score them, compute log probabilities (and
values), train, send the new weights to the generator.
"""


class IterationLogged(Event, frozen=True, kw_only=True, gc=False, tag="iteration"):
    """The training loop's own line (Megatron and its forks, gpt-neox)."""

    iteration: int
    epoch: int | None = None
    """`iteration` counts within this epoch."""
    epoch_steps: int | None = None
    train_iterations: int | None = None
    consumed_samples: int | None = None
    consumed_tokens: int | None = None
    seconds_per_iteration: float | None = None
    learning_rate: float | None = None
    global_batch_size: int | None = None
    lm_loss: float | None = None
    loss_scale: float | None = None
    grad_norm: float | None = None
    skipped_iterations: int | None = None
    nan_iterations: int | None = None
    samples_per_second: float | None = None
    tokens_per_second_per_gpu: float | None = None
    tokens_per_second: float | None = None
    """Over all GPUs."""
    in_tokens: bool | None = None
    """True if `iteration` counts tokens."""
    in_samples: bool | None = None
    """True if `iteration` counts samples. Another line has the samples per iteration."""
    elapsed_seconds: float | None = None
    """Seconds since training began. The time of an iteration is the difference between two lines."""
    tflops: float | None = None
    sequence_length: int | None = None
    mfu: float | None = None
    losses: dict[str, float] = field(default_factory=dict)
    format: str = MEGATRON_LM.name


class EngineStepLogged(Event, frozen=True, kw_only=True, gc=False, tag="engine_step"):
    """A step reported by a DeepSpeed engine or by NeMo's bar. `form` is the kind of line."""

    form: Literal["steps", "step", "throughput"]
    step: int
    loss: float | None = None
    seconds_per_step: float | None = None
    samples_per_second: float | None = None
    learning_rate: float | None = None
    skipped_steps: int | None = None
    """Cumulative, unlike Megatron's count per interval."""
    train_steps: int | None = None
    format: str | None = None
    """None: DeepSpeed's."""
    allocated_bytes: int | None = None
    max_allocated_bytes: int | None = None


class TrainerLogged(Event, frozen=True, kw_only=True, gc=False, tag="trainer_log"):
    """A metric dict of HF Trainer (transformers.trainer, `log`)."""

    step: int | None = None
    max_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    eval_loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    seconds_per_step: float | None = None
    memory_bytes: int | None = None
    reward: float | None = None
    """Mean reward of the responses that it generated for this step (TRL's GRPO and RLOO)."""


class TrainerProgressed(Remark, frozen=True, kw_only=True, gc=False, tag="trainer_progress"):
    """A tqdm bar in iterations. Many programs draw bars. The run decides which one is the training."""

    redrawn: ClassVar[bool] = True

    step: int
    total: int
    seconds_per_step: float | None = None
    elapsed_seconds: float | None = None
    description: str = ""
    loss: float | None = None


class StepInferred(Remark, frozen=True, kw_only=True, gc=False, tag="step_inferred"):
    """A step in a line that no rule reads: the numbers of step and epoch, and the losses."""

    counts: tuple[int, ...]
    losses: tuple[float, ...]
    step: int | None = None
    place: int | None = None
    """Its place in `[place/total]`."""
    total: int | None = None
    epoch: int | None = None
    epochs: int | None = None


class TrainerSummary(Event, frozen=True, kw_only=True, gc=False, tag="trainer_summary"):
    """HF Trainer's final dict or its `***** train metrics *****` block. Each node may print its own."""

    samples_per_second: float | None = None


class TrainerSetting(Event, frozen=True, kw_only=True, gc=False, tag="trainer_setting"):
    """One line under `***** Running training *****`. The heading itself has an empty name."""

    name: str
    value: float | str | None = None


class ValidationLogged(Event, frozen=True, kw_only=True, gc=False, tag="validation"):
    """A validation or test result. `iteration` is None for the one at the end of training."""

    iteration: int | None = None
    dataset: str = "validation"
    losses: dict[str, float] = field(default_factory=dict)


class EvaluationProgressed(Event, frozen=True, kw_only=True, gc=False, tag="evaluation_progress"):
    """Progress of an evaluation, such as `Evaluating iter 3/10`."""

    done: int
    total: int
    finished: bool | None = None
    """True if the line reports the end of the evaluation."""


class PartBegan(Remark, frozen=True, kw_only=True, gc=False, tag="part"):
    """A part of a step begins or continues. Bars of other programs may look the same, so it does not prove training."""

    part: Part
    implied: bool | None = None
    """True if no line reports this part: the part before it ended, and this part is next."""


class GenerationMoved(Remark, frozen=True, kw_only=True, gc=False, tag="generation"):
    """A generation engine (vLLM, SGLang) has generated tokens since its last line, in a rollout or an evaluation."""
