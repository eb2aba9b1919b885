"""Overflows by step, not by line: every rank may report one, and so may every engine (DeepSpeed-Chat has two).

An overflow line tells the scale that was tried and what became of it. Each such pair belongs to one step of one engine
until the scale has been raised again, which takes a hundred steps and more: the same pair soon after is another rank's
copy. Engines are told apart by their scales. The counter `skipped=` that an engine prints is the truth where there is
one; engines that print one each do so in the same order at every step.
"""

from dataclasses import dataclass, field

from parsers.events import OverflowSkipped

_SOON = 10  # iterations within which the same pair is a copy: no loss scale window is so short
_PAIRS = 64
_ENGINES = 8


@dataclass(slots=True)
class Overflows:
    """The overflows of one launch."""

    seen: dict[str, int] = field(default_factory=dict)
    """What a line told -> the iteration after which it was last told."""
    scales: list[float] = field(default_factory=list)
    """Engine -> its scale after its last overflow."""
    news: int | None = None
    """The engine of the last overflow line; None if that was a copy."""
    step: int = 0
    """Of the last counter;"""
    place: int = 0
    """how many engines have printed theirs at this step,"""
    skipped: int = 0
    """and the most steps that one of them had skipped since its last one."""
    counters: list[int] = field(default_factory=list)
    """Engine -> its last counter."""
    counted: list[tuple[int, int]] = field(default_factory=list)
    """(step, steps skipped since the counter before), the last few."""

    def take_line(self, event: OverflowSkipped, iteration: int, every: int) -> bool:
        """Whether the line tells a step that no line told before. `every`: iterations between two lines of steps."""
        old, new = event.loss_scale, event.new_loss_scale
        pair = " ".join("" if value is None else f"{value:g}" for value in (old, new, event.hysteresis))
        before = self.seen.pop(pair, None)
        self.seen[pair] = iteration
        while len(self.seen) > _PAIRS:
            del self.seen[next(iter(self.seen))]
        moved = event.hysteresis is not None or (old is not None and new is not None and new < old)
        # a scale that stays where it is may overflow at each step
        copy = before is not None and (iteration - before <= max(_SOON, every) if moved else iteration == before)
        self.news = None if copy else self._engine(old, new)
        return not copy

    def _engine(self, old: float | None, new: float | None) -> int:
        after = new if new is not None else old if old is not None else 0.0
        place = self.scales.index(old) if old in self.scales else len(self.scales)
        if place == len(self.scales):
            if place == _ENGINES:  # scales that were raised since
                place = 0
                self.scales.clear()
            self.scales.append(after)
        self.scales[place] = after
        return place

    @property
    def counted_until(self) -> int:
        """The step of the last counter; 0 where none is printed, or none that has ever moved."""
        return self.step if any(self.counters) else 0

    def take_counter(self, step: int, skipped: int) -> int:
        """An engine has skipped so many steps until this one; how many of them no other engine has told."""
        if step != self.step:
            self.step, self.place, self.skipped = step, 0, 0
            self.counted = [*self.counted[-_SOON:], (step, 0)]
        place, self.place = self.place, self.place + 1
        if place < len(self.counters):
            since, self.counters[place] = max(0, skipped - self.counters[place]), skipped
        else:  # a further engine that was not heard of before may have skipped these long ago
            since = skipped if len(self.counted) == 1 else 0
            self.counters.append(skipped)
        added = max(0, since - self.skipped)
        self.skipped += added
        self.counted[-1] = (step, self.skipped)
        return added
