"""Timers that training loops print: what each is the time of, one row a name in timers.csv.

A timer may be part of another one: its time is counted once, where it stands. `inside`, here `parent`, names the timers
around it, the nearest first; the first that is printed has it inside. What is in no row is `other`: shown by its name,
never guessed.

Sources: [M] NVIDIA Megatron-LM since 2022 (megatron/training/training.py `timers_to_log`, core/pipeline_parallel/
schedules.py and p2p_communication.py, core/distributed/finalize_model_grads.py, core/optimizer/), [O] Megatron-LM of
2019 to 2022 and the forks of it (megatron/training.py `add_to_logging`), [D] DeepSpeed's `wall_clock_breakdown`
(deepspeed/utils/timer.py, runtime/engine.py), [P] its pipeline engine (runtime/pipe/engine.py), [Z] its ZeRO
optimizers 1 and 2 (runtime/zero/stage_1_and_2.py).
"""

import csv
from collections.abc import Iterator
from pkgutil import get_data
from typing import Literal, get_args

import msgspec
from msgspec import Struct

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
    """Its own time, its parts taken out, may be that of another category: of a whole pass nothing tells what it holds.
    """
    ignored: bool = False
    """It says nothing of an iteration: it is of a start-up, or the same time stands in another timer of the report."""


def _table() -> Iterator[tuple[str, Timer]]:
    lines = (get_data("megatron_monitor.parsers", "timers.csv") or b"").decode().splitlines()
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        inside, kind = tuple(row["inside"].split()), row["is"]
        yield row["name"], Timer(msgspec.convert(row["category"], Category), inside, kind == "mixed", kind == "ignored")


TIMERS: dict[str, Timer] = dict(_table())
"""Name as printed -> what it is the time of."""

PART_OF: dict[str, str] = {
    "rollout": "rollout", "reward": "reward", "reference": "logprobs", "value": "logprobs", "train": "training",
    "sync": "sync",
}  # fmt: skip
"""The timers that are parts of a step of reinforcement learning -> the part that each is the time of."""
UNKNOWN = Timer("other")
BETWEEN_STEPS = frozenset(name for name, timer in TIMERS.items() if timer.category in ("checkpoint", "evaluation"))
"""Timers of what happens between two iterations."""
IGNORED = frozenset(name for name, timer in TIMERS.items() if timer.ignored)
"""Timers that say nothing of an iteration."""


def timer(name: str) -> Timer:
    """What a timer is the time of."""
    return TIMERS.get(name, UNKNOWN)
