"""Who counts a launch's steps: the training loop's own line, HF Trainer, DeepSpeed's engine. Plain values.

Several may report the same steps; one of them counts, the others add values. `PRECEDENCE` is the order: what a source
further to the left reports takes the place of what one further to the right has counted in the same launch.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from monitor.charts.steady import Sample
from monitor.run.steps.between import Between
from parsers.events import TrainerProgressed

SourceName = Literal["iteration", "trainer", "engine"]
PRECEDENCE: Final[tuple[SourceName, ...]] = ("iteration", "trainer", "engine")


@dataclass(slots=True)
class Loop:
    """The training loop's line, of any dialect."""

    counts_steps: bool = False
    """A number that may count samples counts steps."""


@dataclass(slots=True)
class Trainer:
    """HF Trainer's heading, bar and dicts."""

    declared: bool = False
    """Its heading or one of its dicts was seen: a bar may be the training's."""
    supposed: bool = False
    """Neither was seen: a bar that goes on for minutes is taken for the training's."""
    began: TrainerProgressed | None = None
    """The first drawing of a bar that may be the training's."""
    epochs: float | None = None
    """That are planned: a dict may name its epoch alone."""
    total: int | None = None
    bar: tuple[int, int] | None = None
    """(step, total) of the last progress bar that may be the training's: a dict may not name its step."""
    drawn: tuple[int, int] | None = None
    """The same of the last one that is not."""
    elapsed: float | None = None
    """Seconds since its start that the training's bar showed last."""


@dataclass(slots=True)
class Engine:
    """DeepSpeed's engine."""

    numbered: bool = False
    """A line with the iteration's own number was seen: the timer's counts from the start of the process."""
    step_beside: int | None = None
    """The last step that it reported beside another source."""
    rates: Sample = field(default_factory=Sample)
    """Samples per second as it prints them."""
    rates_of_loop: bool = False
    """They are those of a loop around several engines."""
    between: Between = field(default_factory=Between)
    """What it does not time."""


def takes_over(name: SourceName, counting: SourceName | None) -> bool:
    """Whether reports of the source `name` count where those of `counting` did."""
    return counting is None or PRECEDENCE.index(name) <= PRECEDENCE.index(counting)
