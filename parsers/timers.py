"""Timers that training loops print: what each is the time of, one row a name. A fact about programs, like a dialect.

A timer may be part of another one: its time is counted once, where it stands. `parent` names the timers around it, the
nearest first; the first that is printed has it inside. What is in no row is `other`: shown by its name, never guessed.

Sources: [M] NVIDIA Megatron-LM since 2022 (megatron/training/training.py `timers_to_log`, core/pipeline_parallel/
schedules.py and p2p_communication.py, core/distributed/finalize_model_grads.py, core/optimizer/), [O] Megatron-LM of
2019 to 2022 and the forks of it (megatron/training.py `add_to_logging`), [D] DeepSpeed's `wall_clock_breakdown`
(deepspeed/utils/timer.py, runtime/engine.py), [P] its pipeline engine (runtime/pipe/engine.py), [Z] its ZeRO
optimizers 1 and 2 (runtime/zero/stage_1_and_2.py).
"""

from dataclasses import dataclass
from typing import Literal, get_args

Category = Literal[
    "compute", "communication", "data", "optimizer", "checkpoint", "evaluation", "rollout", "reward", "logprobs",
    "sync", "other",
]  # fmt: skip
CATEGORIES: tuple[Category, ...] = get_args(Category)


@dataclass(frozen=True, slots=True)
class Timer:
    """What one timer measures."""

    category: Category
    parent: tuple[str, ...] = ()
    mixed: bool = False
    """Its own time, its parts taken out, may be that of another category: of a whole pass nothing tells what it holds.
    """
    ignored: bool = False
    """The same time stands in another timer of the same report."""


_PASS = ("forward-backward",)
_FORWARD = ("forward-compute", "forward", *_PASS)
_OPTIMIZER = ("optimizer",)
_STEP = ("step",)

TIMERS: dict[str, Timer] = {
    # [M] and [O]: the passes
    "forward-backward": Timer("compute", mixed=True),
    "forward-compute": Timer("compute", _PASS),
    "backward-compute": Timer("compute", _PASS),
    "forward": Timer("compute"),  # [O] of 2019, and [D] before 2023
    "backward": Timer("compute"),
    "backward-backward": Timer("compute", ("backward",)),
    "batch-generator": Timer("data", _FORWARD),
    "batch generator": Timer("data", _FORWARD),
    # [M] and [O]: between pipeline stages
    **{
        name: Timer("communication", _PASS)
        for name in (
            "forward-recv", "forward-send", "backward-recv", "backward-send", "forward-send-forward-recv",
            "forward-send-backward-recv", "backward-send-forward-recv", "backward-send-backward-recv",
            "forward-backward-send-forward-backward-recv",
        )
    },
    # [M]: gradients and weights between the data parallel ranks; [O] called them backward-...-all-reduce
    **{
        name: Timer("communication", _PASS)
        for name in (
            "all-grads-sync", "layernorm-grads-all-reduce", "embedding-grads-all-reduce",
            "non-tensor-parallel-grads-all-reduce", "conditional-embedder-grads-all-reduce",
            "context-parallel-grads-all-reduce",
        )
    },
    "grads-all-reduce": Timer("communication"),
    "grads-reduce-scatter": Timer("communication"),
    "params-all-gather": Timer("communication", _OPTIMIZER),
    "backward-reduce-model-grads": Timer("communication"),
    "backward-gather-model-params": Timer("communication"),
    "backward-params-all-reduce": Timer("communication", ("backward-reduce-model-grads",)),
    "backward-layernorm-all-reduce": Timer("communication", ("backward-reduce-model-grads",)),
    "backward-embedding-all-reduce": Timer("communication", ("backward-reduce-model-grads",)),
    "backward-allreduce": Timer("communication", ("backward",)),
    "allreduce": Timer("communication", ("backward",)),
    "backward-master-grad": Timer("optimizer", ("backward",)),
    "backward-clip-grad": Timer("optimizer", ("backward",)),
    # [M] and [O]: the optimizer
    "optimizer": Timer("optimizer"),
    **{
        name: Timer("optimizer", _OPTIMIZER)
        for name in (
            "optimizer-copy-to-main-grad", "optimizer-unscale-and-check-inf", "optimizer-clip-main-grad",
            "optimizer-count-zeros", "optimizer-inner-step", "optimizer-copy-main-to-model-params",
        )
    },
    # [M] and [O]: beside the iterations
    "save-checkpoint": Timer("checkpoint"),
    "save checkpoint": Timer("checkpoint"),
    "evaluate": Timer("evaluation"),
    "evaluate-and-print-results": Timer("evaluation"),
    "interval-time": Timer("other", ignored=True),  # the whole iteration
    "interval time": Timer("other", ignored=True),
    # [D]; `..._microstep` are the parts of the same step
    "fwd": Timer("compute"),
    "bwd": Timer("compute"),
    "step": Timer("optimizer"),
    "bwd_inner": Timer("compute", ("bwd",)),
    "bwd_allreduce": Timer("communication", ("bwd",)),
    "backward_inner": Timer("compute", ("backward",)),
    "backward_allreduce": Timer("communication", ("backward",)),
    **{
        f"{name}_microstep": Timer("other", ignored=True)
        for name in (
            "fwd", "bwd", "bwd_inner", "bwd_allreduce", "step",
            "forward", "backward", "backward_inner", "backward_allreduce",
        )
    },
    # [P]
    "train_batch": Timer("compute", mixed=True),
    "batch_input": Timer("data"),
    "pipe_send_output": Timer("communication"),
    "pipe_send_grad": Timer("communication"),
    "pipe_recv_input": Timer("communication"),
    "pipe_recv_grad": Timer("communication"),
    # parts of a step of reinforcement learning, by the names of parsers/declared/targets.py
    "rollout": Timer("rollout"),
    "reward": Timer("reward"),
    "reference": Timer("logprobs"),
    "value": Timer("logprobs"),
    "train": Timer("compute"),
    "sync": Timer("sync"),
    "data": Timer("data"),
    "save": Timer("checkpoint"),
    # [Z]
    "optimizer_allgather": Timer("communication", _STEP),
    "optimizer_gradients": Timer("optimizer", _STEP),
    "optimizer_step": Timer("optimizer", _STEP),
}  # fmt: skip
"""Name as printed -> what it is the time of."""

PART_OF: dict[str, str] = {
    "rollout": "rollout", "reward": "reward", "reference": "logprobs", "value": "logprobs", "train": "training",
    "sync": "sync",
}  # fmt: skip
"""The timers that are parts of a step of reinforcement learning -> the part that each is the time of."""
UNKNOWN = Timer("other")
BESIDE = frozenset(name for name, timer in TIMERS.items() if timer.category in ("checkpoint", "evaluation"))
"""Timers of what happens between two iterations."""
_SET_UP = frozenset(
    {
        "model-and-optimizer-setup", "train/valid/test-data-iterators-setup", "model and optimizer",
        "train/valid/test data iterators", "load-checkpoint", "load checkpoint",
    }
)  # fmt: skip
"""Timers of a start-up, which is no iteration."""
IGNORED = _SET_UP | {name for name, timer in TIMERS.items() if timer.ignored}
"""Timers that say nothing of an iteration."""


def timer(name: str) -> Timer:
    """What a timer is the time of."""
    return TIMERS.get(name, UNKNOWN)
