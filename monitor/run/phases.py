"""The phases of a training, as tables: which event leads where, and which event is progress in which phase.

Law: a handler of the fold returns the phase that its event leads to, and `enter` (attempts.py) alone assigns it.
Liveness is progress, not writing: an event that is no progress in the current phase never moves the hang clock (in the
BLOOM hang an hourly status line kept the log growing).
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
"""Phases that can hang, and two ends. The last four are parts of a step of reinforcement learning beside its training,
where the log's lines tell them apart.
"""

PARTS: tuple[Part, ...] = get_args(Part)
"""The phases of one step of reinforcement learning, in its order."""

Moved: TypeAlias = bool | Phase
"""What a handler of the fold returns: whether its event was progress, and where that leads if it leads anywhere."""

ENDED: frozenset[Phase] = frozenset({"finished", "crashed"})

RUN_STATES = ("starting", "training", "evaluating", "saving", "hung", "crashed", "stopped", "finished", "lost")
"""The label values of `megatron_run_state`. `hung` and `lost` are judgements; `stopped` is a crash that a person or a
script wanted; the others follow from the phase.
"""

STATE_OF_PHASE: dict[Phase, str] = {
    **{phase: phase for phase in get_args(Phase)},
    **dict.fromkeys(("loading", "first_iteration"), "starting"),
    **dict.fromkeys((*PARTS, "exiting"), "training"),
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
"""A pattern of the configuration of kind `progress` counts in every phase."""


_LATE = 5.0  # seconds: for so long Ray holds back lines that several processes print alike
_AFTER = ("training", "sync")
"""Parts behind which the next rollout may begin at once."""


@dataclass(slots=True)
class Parts:
    """The parts of a step of reinforcement learning as phases: which of them lines tell, how long each was silent.

    A part lasts until a line tells of the next one. What no line tells belongs to the part before it: a verl log tells
    of the training only, so that its rollout is followed, in silence, by scoring and log probabilities. Ray gathers the
    lines of many processes, and one may come a little late: it changes no phase. Residual risk: one that is later still
    misnames the phase until the next, which is why no part hangs before a whole step would be over
    (detectors/hang/timeout.py).
    """

    reported: list[str] = field(default_factory=list)
    """The parts of which some line has told; none: the whole step is the phase `training`."""
    silence: float = 0.0
    """The longest good silence of the part that goes on, while the log is followed."""
    lines: int = 0
    """Lines of the part that goes on, since it began: more than one prove that it is this part."""
    implied: bool = False
    """No line told that it began."""
    printed: dict[str, Intervals] = field(default_factory=dict)
    """Part -> its seconds in the last steps, where the log prints them."""

    def report(self, part: str) -> None:
        """A line has told of this part."""
        if part not in self.reported:
            self.reported.append(part)

    def is_late(self, part: str, phase: Phase, since: float, at: float) -> bool:
        """Whether a line of `part`, at `at`, is of a part that is over: the present phase began at `since`."""
        if part == phase or phase not in PARTS or at - since >= _LATE or (part == "rollout" and phase in _AFTER):
            return False
        return self.implied or PARTS.index(part) < PARTS.index(phase)

    def follow(self, before: Phase, phase: Phase, event: Event) -> float:
        """Take the event that led from one phase to the other, or is of the present one; the longest good silence of a
        part that is over, else 0.
        """
        over = 0.0
        if phase != before:
            over, self.silence = self.silence if before in PARTS else 0.0, 0.0
            self.lines, self.implied = 0, type(event) is PartBegan and bool(event.implied)
        if type(event) is PartBegan:
            if event.part == phase and not event.implied:
                self.lines, self.implied = self.lines + 1, False
        elif type(event) is GenerationMoved and phase == "rollout":
            self.lines += 1
        return over

    def note_printed(self, event: TimersReported) -> None:
        """The parts of one step, as its line prints them."""
        totals: dict[str, float] = {}
        for name, (_, most) in event.timers.items():
            if name in PART_OF:
                totals[PART_OF[name]] = totals.get(PART_OF[name], 0.0) + most
        for part, seconds in totals.items():
            self.printed.setdefault(part, Intervals()).add(seconds)

    def reported_with(self, part: str) -> list[str]:
        """The parts that take time and of which no line tells: the silence of this part may be theirs."""
        return [each for each in PARTS if each != part and each not in self.reported and each in self.printed]

    def printed_with(self, part: str) -> float | None:
        """The longest that this part took in the last steps, and those that are told with it; None where none prints
        it.
        """
        if part not in self.printed:
            return None
        return sum(self.printed[each].longest or 0.0 for each in (part, *self.reported_with(part)))
