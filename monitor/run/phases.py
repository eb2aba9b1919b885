"""The phases of a training, as tables: which event leads to which phase, and which event is progress in which phase.

A handler of the fold returns the phase that its event leads to, and only `enter` (attempts.py) assigns it. Progress is
not the same as output: an event that is not progress in the current phase never moves the hang clock. During BLOOM's
hangs an hourly status line kept the log growing.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from megatron_monitor.parsers import events
from megatron_monitor.parsers.events import Event, GenerationMoved, Milestone, Part, PartBegan, TimersReported
from megatron_monitor.parsers.timers import PART_OF
from megatron_monitor.run.silence import Intervals

Phase = Literal[
    "starting", "loading", "first_iteration", "training", "evaluating", "saving", "exiting", "finished", "crashed",
    "rollout", "reward", "logprobs", "sync",
]  # fmt: skip
"""Phases that can hang, and two ends. The last four are parts of a reinforcement learning step besides its training, if
the log's lines distinguish them.
"""

PARTS: tuple[Part, ...] = get_args(Part)
"""The phases of a reinforcement learning step in their order."""

Moved: TypeAlias = bool | Phase
"""The result of a handler of the fold: whether its event was progress, or the phase that it leads to."""

ENDED: frozenset[Phase] = frozenset({"finished", "crashed"})

RUN_STATES = ("starting", "training", "evaluating", "saving", "hung", "crashed", "stopped", "finished", "lost")
"""Label values of `megatron_run_state`. `hung` and `lost` are findings. `stopped` is a crash that a person or a script
requested. The others follow from the phase.
"""

STATE_OF_PHASE: dict[Phase, str] = {
    **{phase: phase for phase in get_args(Phase)},
    **dict.fromkeys(("loading", "first_iteration"), "starting"),
    **dict.fromkeys((*PARTS, "exiting"), "training"),
}


def drawn_as(phase: Phase) -> Phase:
    """Return the phase that charts and histories show: the parts of a step are shown as training."""
    return "training" if phase in PARTS else phase


# The phase to which an event leads. Other events leave the phase unchanged. Iterations, ends and failures need more
# than a table: counting.py, ending.py.
PHASE_AFTER_MILESTONE: dict[Milestone, Phase] = {
    "launched": "starting",
    "initialized": "starting",
    "model_built": "starting",
    "dataloaders_built": "starting",
    "setup_done": "first_iteration",
    "training_started": "first_iteration",
    "before_training_step": "first_iteration",
}
PHASE_AFTER: dict[str, Phase] = {
    "checkpoint_load_started": "loading",
    "checkpoint_loaded": "starting",
    "checkpoint_not_found": "starting",
}

SETUP: frozenset[type[Event]] = frozenset({
    events.ArgumentsDumped, events.TopologyLogged, events.ModelSettingLogged, events.SizesReported,
    events.ParametersCounted, events.MilestoneReached, events.CheckpointLoadStarted, events.CheckpointLoaded,
    events.CheckpointNotFound, events.TrainerSetting, events.SoftwareSeen,
})  # fmt: skip
STEP: frozenset[type[Event]] = frozenset({
    events.IterationLogged, events.EngineStepLogged, events.TrainerLogged, events.TrainerProgressed,
    events.OverflowSkipped, events.IterationsSkipped,
})  # fmt: skip
EVALUATION: frozenset[type[Event]] = frozenset({events.EvaluationProgressed, events.ValidationLogged})
SAVE: frozenset[type[Event]] = frozenset({
    events.CheckpointSaveStarted, events.CheckpointFileWritten, events.CheckpointSaved,
    events.CheckpointSaveScheduled, events.MemoryReported,
})  # fmt: skip
_MEMORY, _OWN, _PART = events.MemoryReported, events.CustomProgressLogged, events.PartBegan
_TOKENS, _GUESS = events.GenerationMoved, events.StepInferred
_EXITS: frozenset[type[Event]] = frozenset({events.ProcessExited, events.ProgramExited})

_STEPPING: frozenset[type[Event]] = STEP | EVALUATION | (SAVE - {_MEMORY}) | {_OWN, _PART}
PROGRESS: dict[Phase, frozenset[type[Event]]] = {
    "starting": SETUP | STEP | {_OWN, _PART, _TOKENS, _GUESS},
    "loading": SETUP | STEP | {_OWN, _PART, _GUESS},
    "first_iteration": SETUP | STEP | EVALUATION | SAVE | {_OWN, _PART, _TOKENS, _GUESS},
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
"""Phase -> events that are progress. A line of kind `progress` of a user's format is progress in each phase."""


@dataclass(slots=True)
class Parts:
    """The parts of a reinforcement learning step as phases: which ones have lines, and how long each was silent.

    A part lasts until a line reports the next one. Parts without lines belong to the part before them: a verl log
    reports only the training, so that its rollout includes scoring and log probabilities. Ray collects the lines of
    many processes. Known limit: a late line misnames the phase until the next line. Therefore no part hangs before a
    whole step would be over (detectors/hang/timeout.py).
    """

    reported: list[str] = field(default_factory=list)
    """The parts that lines have reported. Empty: the whole step is the phase `training`."""
    silence: float = 0.0
    """Longest silence of the current part that ended in progress, while the log is followed."""
    lines: int = 0
    """Lines of the current part since it began. More than one prove that it is this part."""
    printed: dict[str, Intervals] = field(default_factory=dict)
    """Part -> its seconds in the last steps, if the log prints them."""

    def follow(self, before: Phase, phase: Phase, event: Event) -> float:
        """Process an event that led to another phase or belongs to the present one. Return the longest silence of an
        ended part, otherwise 0.
        """
        over = 0.0
        if phase != before:
            over, self.silence = self.silence if before in PARTS else 0.0, 0.0
            self.lines = 0
        if type(event) is PartBegan:
            self.lines += event.part == phase and not event.implied
        elif type(event) is GenerationMoved and phase == "rollout":
            self.lines += 1
        return over

    def note_printed(self, event: TimersReported) -> None:
        """Add the printed seconds of the parts of one step."""
        totals: dict[str, float] = {}
        for name, (_, most) in event.timers.items():
            if name in PART_OF:
                totals[PART_OF[name]] = totals.get(PART_OF[name], 0.0) + most
        for part, seconds in totals.items():
            self.printed.setdefault(part, Intervals()).add(seconds)

    def reported_with(self, part: str) -> list[str]:
        """Return the parts that take time and have no lines: the silence of this part may be theirs."""
        return [each for each in PARTS if each != part and each not in self.reported and each in self.printed]

    def printed_with(self, part: str) -> float | None:
        """Return the maximum of this part in the last steps, and the parts printed together with it. None:
        not printed.
        """
        if part not in self.printed:
            return None
        return sum(self.printed[each].longest or 0.0 for each in (part, *self.reported_with(part)))
