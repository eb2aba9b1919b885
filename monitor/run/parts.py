"""The parts of a step of reinforcement learning as phases: which of them lines tell, how long each was silent. Pure.

A part lasts until a line tells of the next one. What no line tells belongs to the part before it: a verl log tells of
the training only, so that its rollout is followed, in silence, by scoring and log probabilities. Ray gathers the lines
of many processes, and one may come a little late: it changes no phase. Residual risk: one that is later still misnames
the phase until the next, which is why no part hangs before a whole step would be over (detectors/hang/budget.py).
"""

from dataclasses import dataclass, field

from monitor.run.phases import PARTS, Phase
from monitor.run.silence import Intervals
from parsers.events import Event, GenerationMoved, PartBegan, TimersReported
from parsers.timers import PART_OF

_LATE = 5.0  # seconds: for so long Ray holds back lines that several processes print alike
_AFTER = ("training", "sync")
"""Parts behind which the next rollout may begin at once."""


@dataclass(slots=True)
class Parts:
    """Of the present launch, but for what was learned."""

    told: list[str] = field(default_factory=list)
    """The parts of which some line has told; none: the whole step is the phase `training`."""
    silence: float = 0.0
    """The longest good silence of the part that goes on, while the log is followed."""
    lines: int = 0
    """Lines of the part that goes on, since it began: more than one prove that it is this part."""
    implied: bool = False
    """No line told that it began."""
    printed: dict[str, Intervals] = field(default_factory=dict)
    """Part -> its seconds in the last steps, where the log prints them."""

    def tell(self, part: str) -> None:
        """A line has told of this part."""
        if part not in self.told:
            self.told.append(part)

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
        took: dict[str, float] = {}
        for name, (_, most) in event.timers.items():
            if name in PART_OF:
                took[PART_OF[name]] = took.get(PART_OF[name], 0.0) + most
        for part, seconds in took.items():
            self.printed.setdefault(part, Intervals()).add(seconds)

    def told_with(self, part: str) -> list[str]:
        """The parts that take time and of which no line tells: the silence of this part may be theirs."""
        return [each for each in PARTS if each != part and each not in self.told and each in self.printed]

    def printed_with(self, part: str) -> float | None:
        """The longest that this part took in the last steps, and those that are told with it; None where none prints
        it.
        """
        if part not in self.printed:
            return None
        return sum(self.printed[each].longest or 0.0 for each in (part, *self.told_with(part)))
