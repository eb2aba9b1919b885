"""The phases of a training, as tables: which event leads where, and which event is progress in which phase.

Law: everything that decides a phase stands here. Liveness is progress, not writing: an event that is no progress in
the current phase never moves the hang clock (in the BLOOM hang an hourly status line kept the log growing).
"""

from __future__ import annotations

from typing import Literal

from parsers.events import Milestone

Phase = Literal[
    "starting", "loading", "first_iteration", "training", "evaluating", "saving", "exiting", "finished", "crashed"
]
"""Seven phases that can hang, and two ends."""

ENDED: frozenset[Phase] = frozenset({"finished", "crashed"})

RUN_STATES = ("starting", "training", "evaluating", "saving", "hung", "crashed", "finished", "lost")
"""The label values of `megatron_run_state`; `hung` and `lost` are judgements, the others follow from the phase."""

STATE_OF_PHASE: dict[Phase, str] = {
    "starting": "starting",
    "loading": "starting",
    "first_iteration": "starting",
    "training": "training",
    "evaluating": "evaluating",
    "saving": "saving",
    "exiting": "training",
    "finished": "finished",
    "crashed": "crashed",
}

# Where an event leads; an event that is not here leaves the phase alone. Iterations, ends and failures need more than
# a table and are folded in fold.py.
PHASE_AFTER_MILESTONE: dict[Milestone, Phase] = {
    "launched": "starting",
    "initialized": "starting",
    "model_built": "starting",
    "dataloaders_built": "starting",
    "setup_done": "first_iteration",
    "training_started": "first_iteration",
    "before_training_step": "first_iteration",
    "training_done": "exiting",
}
PHASE_AFTER: dict[str, Phase] = {
    "checkpoint_load_started": "loading",
    "checkpoint_loaded": "starting",
    "checkpoint_not_found": "starting",
    "evaluation_progress": "evaluating",
    "validation": "evaluating",
    "checkpoint_save_started": "saving",
}

_SETUP = frozenset(
    {
        "arguments",
        "topology",
        "model_setting",
        "parameters",
        "milestone",
        "checkpoint_load_started",
        "checkpoint_loaded",
        "checkpoint_not_found",
        "trainer_setting",
        "software",
    }
)
STEP = frozenset({"iteration", "engine_step", "trainer_log", "trainer_progress", "overflow", "iterations_skipped"})
EVALUATION = frozenset({"evaluation_progress", "validation"})
_SAVE = frozenset(
    {"checkpoint_save_started", "checkpoint_file", "checkpoint_saved", "checkpoint_save_scheduled", "memory"}
)

PROGRESS: dict[Phase, frozenset[str]] = {
    "starting": _SETUP | STEP,
    "loading": _SETUP | STEP,
    "first_iteration": _SETUP | STEP | EVALUATION | _SAVE,
    "training": STEP | EVALUATION | _SAVE - {"memory"},
    "evaluating": STEP | EVALUATION | _SAVE - {"memory"},
    "saving": STEP | EVALUATION | _SAVE,
    "exiting": STEP | EVALUATION | _SAVE | {"process_exit", "exit"},
    "finished": STEP,
    "crashed": STEP,
}
"""A custom pattern of kind `progress` counts in every phase."""
