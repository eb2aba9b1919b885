"""Timers that training loops print, and what each one measures: one row per name in timers.csv.

A timer may be part of another timer. Its time is counted once. `inside`, here `parent`, names the timers around it, the
nearest first; the first one that is printed contains it. A name without a row is `other` and is shown by its name.

Sources: [M] NVIDIA Megatron-LM since 2022 (megatron/training/training.py `timers_to_log`, core/pipeline_parallel/
schedules.py and p2p_communication.py, core/distributed/finalize_model_grads.py, core/optimizer/), [O] Megatron-LM of
2019 to 2022 and its forks (megatron/training.py `add_to_logging`), [D] DeepSpeed's `wall_clock_breakdown`
(deepspeed/utils/timer.py, runtime/engine.py), [P] its pipeline engine (runtime/pipe/engine.py), [Z] its ZeRO optimizers
1 and 2 (runtime/zero/stage_1_and_2.py).
"""

from typing import Literal, get_args

from msgspec import Struct

from megatron_monitor.parsers.tables import rows_of

Category = Literal[
    "compute", "communication", "data", "optimizer", "checkpoint", "evaluation", "rollout", "reward", "logprobs",
    "sync", "other",
]  # fmt: skip
CATEGORIES: tuple[Category, ...] = get_args(Category)


class Timer(Struct, frozen=True):
    """What one timer measures."""

    category: Category
    parent: tuple[str, ...] = ()
    mixed: bool = False
    """True if its own time without its parts may belong to another category: no line reports what a whole pass
    contains.
    """
    ignored: bool = False
    """True if it does not describe an iteration: it belongs to the start-up, or another timer of the report has the
    same time.
    """


TIMERS: dict[str, Timer] = {
    name: Timer(category, tuple((inside or "").split()), kind == "mixed", kind == "ignored")
    for name, category, inside, kind in rows_of(
        "megatron_monitor.parsers", "timers.csv", tuple[str, Category, str | None, str | None]
    )
}
"""Printed name -> what the timer measures."""

PART_OF: dict[str, str] = {
    "rollout": "rollout", "reward": "reward", "reference": "logprobs", "value": "logprobs", "train": "training",
    "sync": "sync",
}  # fmt: skip
"""Timer of a part of a reinforcement learning step -> that part."""
UNKNOWN = Timer("other")
BETWEEN_STEPS = frozenset(name for name, timer in TIMERS.items() if timer.category in ("checkpoint", "evaluation"))
"""Timers of events between two iterations."""
IGNORED = frozenset(name for name, timer in TIMERS.items() if timer.ignored)
"""Timers that do not describe an iteration."""


def timer(name: str) -> Timer:
    """Return what a timer measures."""
    return TIMERS.get(name, UNKNOWN)
