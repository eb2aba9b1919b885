"""What DeepSpeed's engine does not time: what lies between the end of one step and the begin of the next one.

Its clock runs from the forward pass to the end of the step (deepspeed/utils/timer.py, `ThroughputTimer`): the data
loader of the loop around it is in no figure that it prints. And since 2025 (DeepSpeed #7215) it prints that a save
begins and no end of it; `save_checkpoint` returns when all ranks have written. The stamps of its step lines hold both;
lines without stamps tell nothing here.
"""

from dataclasses import dataclass, field

from monitor.statistics.median import median

_KEPT = 32
_LEARNED = 5  # lines that must have shown how long a step takes, before a longer one tells how long a save took


@dataclass(slots=True)
class Between:
    """The stamps of a launch's last step lines. Moments are seconds of the log's own clock."""

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
