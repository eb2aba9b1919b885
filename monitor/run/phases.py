"""The phases of a training, as tables: which event leads where, and which event is progress in which phase.

Law: a handler of the fold returns the phase that its event leads to, and `enter` (launches.py) alone assigns it.
Liveness is progress, not writing: an event that is no progress in the current phase never moves the hang clock (in the
BLOOM hang an hourly status line kept the log growing).
"""

from typing import Literal, TypeAlias, get_args

from parsers import events
from parsers.events import Event, Milestone, Part

Phase = Literal[
    "starting", "loading", "first_iteration", "training", "evaluating", "saving", "exiting", "finished", "crashed",
    "rollout", "reward", "logprobs", "sync",
]  # fmt: skip
"""Phases that can hang, and two ends. The last four are parts of a step of reinforcement learning beside its training,
where the log's lines tell them apart.
"""

PARTS: tuple[Part, ...] = get_args(Part)
"""The phases of one step of reinforcement learning, in its order."""

Moved: TypeAlias = bool | Phase
"""What a handler of the fold returns: whether its event was progress, and where that leads if it leads anywhere."""

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
    "rollout": "training",
    "reward": "training",
    "logprobs": "training",
    "sync": "training",
}


def drawn_as(phase: Phase) -> Phase:
    """The phase as charts and histories have it: the parts of a step are its training."""
    return "training" if phase in PARTS else phase


# Where an event leads; an event that is not here leaves the phase alone. Iterations, ends and failures need more than
# a table: counting.py, ending.py.
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

SETUP: frozenset[type[Event]] = frozenset(
    {
        events.ArgumentsDumped,
        events.TopologyLogged,
        events.ModelSettingLogged,
        events.SizesTold,
        events.ParametersCounted,
        events.MilestoneReached,
        events.CheckpointLoadStarted,
        events.CheckpointLoaded,
        events.CheckpointNotFound,
        events.TrainerSetting,
        events.SoftwareSeen,
    }
)
STEP: frozenset[type[Event]] = frozenset(
    {
        events.IterationLogged,
        events.EngineStepLogged,
        events.TrainerLogged,
        events.TrainerProgressed,
        events.OverflowSkipped,
        events.IterationsSkipped,
    }
)
EVALUATION: frozenset[type[Event]] = frozenset({events.EvaluationProgressed, events.ValidationLogged})
SAVE: frozenset[type[Event]] = frozenset(
    {
        events.CheckpointSaveStarted,
        events.CheckpointFileWritten,
        events.CheckpointSaved,
        events.CheckpointSaveScheduled,
        events.MemoryReported,
    }
)
_MEMORY, _OWN, _PART = events.MemoryReported, events.CustomProgressLogged, events.PartBegan
_TOKENS = events.GenerationMoved
_EXITS: frozenset[type[Event]] = frozenset({events.ProcessExited, events.ProgramExited})

_STEPPING: frozenset[type[Event]] = STEP | EVALUATION | (SAVE - {_MEMORY}) | {_OWN, _PART}
PROGRESS: dict[Phase, frozenset[type[Event]]] = {
    "starting": SETUP | STEP | {_OWN, _PART, _TOKENS},
    "loading": SETUP | STEP | {_OWN, _PART},
    "first_iteration": SETUP | STEP | EVALUATION | SAVE | {_OWN, _PART, _TOKENS},
    "training": _STEPPING,
    "evaluating": _STEPPING | {_TOKENS},
    "saving": STEP | EVALUATION | SAVE | {_OWN, _PART},
    "exiting": STEP | EVALUATION | SAVE | _EXITS | {_OWN},
    "finished": STEP | {_OWN},
    "crashed": STEP | {_OWN},
    "rollout": _STEPPING | {_TOKENS},
    "reward": _STEPPING,
    "logprobs": _STEPPING,
    "sync": _STEPPING,
}
"""A pattern of the configuration of kind `progress` counts in every phase."""
