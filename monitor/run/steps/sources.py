"""State of the step sources of an attempt: the training loop's own line, HF Trainer, DeepSpeed's engine.

Several sources may report the same steps. One of them counts, the others add values: a source earlier in `PRECEDENCE`
replaces a later one that has counted in the same attempt.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from megatron_monitor.parsers.events import TrainerProgressed
from megatron_monitor.run.steps.pace import SampledValues
from megatron_monitor.statistics.median import median

_KEPT_STEPS = 32
_MIN_STEPS = 5  # steps that must show the usual time before a longer one shows how long a save took

StepSource = Literal["iteration", "trainer", "engine"]
PRECEDENCE: Final[tuple[StepSource, ...]] = ("iteration", "trainer", "engine")


@dataclass(slots=True)
class EngineGap:
    """The time between two steps of DeepSpeed's engine.

    The engine's clock runs from the forward pass to the end of the step (deepspeed/utils/timer.py, `ThroughputTimer`):
    the data loader of the loop around it is in no printed figure. Since 2025 (DeepSpeed #7215) it prints the begin of a
    save but not its end; `save_checkpoint` returns when all ranks have written. The stamps of its step lines show both.
    """

    iteration: int | None = None
    moment: float | None = None
    """When the last step's line was written, by its stamp."""
    step: float | None = None
    """Seconds per step between the last two lines; None if more than steps lies between them."""
    usual: list[float] = field(default_factory=list)
    """The seconds per step between the lines before."""
    saving: bool = False
    """A save has begun since that line, nothing else has, and no line has reported its end."""
    outside: tuple[float, float] | None = None
    """(seconds outside the engine's clock, seconds of the whole step) of the last report, if it completes a step."""

    def add_step(self, iteration: int, moment: float | None, *, disturbed: bool) -> float | None:
        """Add a step's line. Return the seconds of a save before it that no line has reported."""
        last, since, saving = self.iteration, self.moment, self.saving
        self.iteration, self.moment, self.step, self.saving = iteration, moment, None, False
        if moment is None or since is None or last is None or moment <= since or iteration <= last:
            return None
        steps = iteration - last
        if not disturbed:
            self.step = (moment - since) / steps
            self.usual.append(self.step)
            del self.usual[:-_KEPT_STEPS]
        elif saving and len(self.usual) >= _MIN_STEPS:
            return max(0.0, moment - since - steps * median(self.usual))
        return None


@dataclass(slots=True)
class TrainerState:
    """HF Trainer's heading, progress bars and metric dicts in one attempt."""

    declared: bool = False
    """Its heading or a dict was seen: a bar may be the training's."""
    numbered_by_reports: bool = False
    """True: nothing shows the step of a report, and each is counted as one."""
    inferred: bool = False
    """Neither was seen: a bar that lasts for minutes counts as the training's."""
    drawings: dict[int, list[TrainerProgressed]] = field(default_factory=dict)
    """Total of a bar that may be the training's -> its first drawing and some later ones."""
    epochs: float | None = None
    """Planned epochs: a dict may name its epoch alone."""
    examples: float | None = None
    """Of an epoch. Whole batches do not make an epoch: the rest of one counts for the next."""
    total: int | None = None
    """Steps of the training's bar."""
    bar: tuple[int, int] | None = None
    """(step, total) of the last bar that may be the training's: a dict may not name its step."""
    drawn: tuple[int, int] | None = None
    """(step, total) of the last other bar."""
    complete: set[str] = field(default_factory=set)
    """Bars of the set-up that have reached their end."""
    elapsed: float | None = None
    """Seconds since its start that the training's bar printed last."""
    before: int = 0
    """Steps of earlier bars of the same length, if one is drawn for each epoch."""
    generates: bool = False
    """A step includes a rollout (TRL's GRPO): it lasts as long as its longest answer."""


@dataclass(slots=True)
class EngineState:
    """DeepSpeed's engine in one attempt."""

    numbered: bool = False
    """A line with the iteration's own number was seen: the timer's line counts from the start of the process."""
    latest_step: int | None = None
    """The last step that it reported while another source counts."""
    timed: bool = False
    """It prints the time of a step, or a rate that gives it. Else the stamps of its lines do."""
    rates: SampledValues = field(default_factory=SampledValues)
    """Printed samples per second."""
    rates_of_loop: bool = False
    """The rates are those of a loop around several engines."""
    gap: EngineGap = field(default_factory=EngineGap)
