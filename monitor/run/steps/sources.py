"""Who counts an attempt's steps: the training loop's own line, HF Trainer, DeepSpeed's engine. Plain values.

Several may report the same steps; one of them counts, the others add values. `PRECEDENCE` is the order: what a source
further to the left reports takes the place of what one further to the right has counted in the same attempt.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from megatron_monitor.charts.steady import SampledValues
from megatron_monitor.parsers.events import TrainerProgressed
from megatron_monitor.statistics.median import median

_KEPT = 32
_LEARNED = 5  # lines that must have shown how long a step takes, before a longer one tells how long a save took


@dataclass(slots=True)
class EngineGap:
    """What DeepSpeed's engine does not time: what lies between the end of one step and the begin of the next one.

    Its clock runs from the forward pass to the end of the step (deepspeed/utils/timer.py, `ThroughputTimer`): the data
    loader of the loop around it is in no figure that it prints. And since 2025 (DeepSpeed #7215) it prints that a save
    begins and no end of it; `save_checkpoint` returns when all ranks have written. The stamps of its step lines hold
    both; lines without stamps tell nothing here.
    """

    iteration: int | None = None
    moment: float | None = None
    """Of the last step's line."""
    step: float | None = None
    """Seconds per step from the line before it to that one; None where more than steps lies between."""
    usual: list[float] = field(default_factory=list)
    """The same of the last lines."""
    saving: bool = False
    """A save and nothing else has begun since that line, and no line has told of its end."""
    outside: tuple[float, float] | None = None
    """Of the last report, if it completes a step: seconds per step outside the engine's clock, and of all of it."""

    def take(self, iteration: int, moment: float | None, *, disturbed: bool) -> float | None:
        """A step's line. Seconds that the save before it took, if there was one that nothing else tells of."""
        last, since, saving = self.iteration, self.moment, self.saving
        self.iteration, self.moment, self.step, self.saving = iteration, moment, None, False
        if moment is None or since is None or last is None or moment <= since or iteration <= last:
            return None
        steps = iteration - last
        if not disturbed:
            self.step = (moment - since) / steps
            self.usual.append(self.step)
            del self.usual[:-_KEPT]
        elif saving and len(self.usual) >= _LEARNED:
            return max(0.0, moment - since - steps * median(self.usual))
        return None


StepSource = Literal["iteration", "trainer", "engine"]
PRECEDENCE: Final[tuple[StepSource, ...]] = ("iteration", "trainer", "engine")


@dataclass(slots=True)
class TrainerState:
    """HF Trainer's heading, bar and dicts."""

    declared: bool = False
    """Its heading or one of its dicts was seen: a bar may be the training's."""
    inferred: bool = False
    """Neither was seen: a bar that goes on for minutes is taken for the training's."""
    drawings: dict[int, list[TrainerProgressed]] = field(default_factory=dict)
    """Of bars that may be the training's, by their length, while nobody knows: the first one, ever fewer of the others.
    """
    epochs: float | None = None
    """That are planned: a dict may name its epoch alone."""
    total: int | None = None
    bar: tuple[int, int] | None = None
    """(step, total) of the last progress bar that may be the training's: a dict may not name its step."""
    drawn: tuple[int, int] | None = None
    """The same of the last one that is not."""
    whole: set[str] = field(default_factory=set)
    """Bars of the set-up that have come to their end."""
    elapsed: float | None = None
    """Seconds since its start that the training's bar showed last."""
    before: int = 0
    """Steps that earlier bars of the same length have counted: one is drawn for each epoch."""
    generates: bool = False
    """A step holds a rollout (TRL's GRPO): it takes as long as its longest answer."""


@dataclass(slots=True)
class EngineState:
    """DeepSpeed's engine."""

    numbered: bool = False
    """A line with the iteration's own number was seen: the timer's counts from the start of the process."""
    latest_step: int | None = None
    """The last step that it reported beside another source."""
    timed: bool = False
    """It prints the time of a step, or a rate that gives it: else the stamps of its lines do."""
    rates: SampledValues = field(default_factory=SampledValues)
    """Samples per second as it prints them."""
    rates_of_loop: bool = False
    """They are those of a loop around several engines."""
    gap: EngineGap = field(default_factory=EngineGap)
    """What it does not time."""
