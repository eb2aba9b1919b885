"""Which iteration lines are copies: several ranks under tee, per-rank files beside the main one.

A line is a copy if the same values were already reported for the same iteration in the same attempt, or by another
source whose own sequence has not gone back. The same iteration computed again after a restart is no copy.
Residual risk: a source that lags more than `RING` iterations behind its twin is known only by its own order.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final, TypeAlias

from msgspec import Struct, field

from megatron_monitor.parsers.events import EngineStepLogged, IterationLogged, OverflowSkipped

RING = 4096  # iterations remembered while several sources report; a read block of 1 MiB holds some 2,700 lines
_SINGLE = 128  # remembered while one source reports: only tee copies, which stand close together
_ATTEMPTS = 4  # reports of one iteration that are remembered

Report: TypeAlias = tuple[float | None, float | None, int | None, float | None, int, str]
"""(loss, grad norm, consumed samples, seconds, attempt, source) of a line that counted."""


NO_ATTEMPT: Final = -1
"""No attempt."""


class StreamPosition(Struct, omit_defaults=True):
    """Where one source of the run stands."""

    last_iteration: int | None = None
    attempt: int = NO_ATTEMPT
    """In which attempt it last told of an iteration,"""
    first_attempt: int = NO_ATTEMPT
    """and in which one first."""
    replica_attempt: int = NO_ATTEMPT
    """In which attempt it is, where other streams tell the same training (abreast.py);"""
    reported: dict[str, float] = field(default_factory=dict)
    """the last steps that it told there, by kind of line,"""
    marks: set[str] = field(default_factory=set)
    """and what it said of the set-up before them."""
    set_up_again: bool = False
    """It has told of a set-up behind steps that others had told."""
    joins_attempt: bool = False
    """It is in the present attempt beside others, and has told no step of it: what it says of its set-up begins none.
    """

    @property
    def is_replica(self) -> bool:
        """Whether other streams tell the same training."""
        return self.replica_attempt != NO_ATTEMPT


class CountedSteps(Struct):
    """Iteration -> its reports that counted, the oldest iteration first."""

    seen: dict[int, list[Report]] = field(default_factory=dict)
    steps: dict[int, tuple[int, str, float | None, float | None, float | None]] = field(default_factory=dict)
    """Step of DeepSpeed's engine -> (attempt, form, loss, learning rate, seconds) of its newest report."""
    positions: dict[str, StreamPosition] = field(default_factory=dict)
    several: bool = False
    """More than one source has told of iterations."""
    furthest: dict[str, float] = field(default_factory=dict)
    """Kind of line -> the last step that streams which are abreast have told"""
    furthest_attempt: int = NO_ATTEMPT
    """of this attempt."""

    def is_copy(self, event: IterationLogged, source: str, number: int) -> bool:
        """Whether this report adds nothing to what is known."""
        alike = None
        for report in reversed(self.seen.get(event.iteration, ())):
            loss, norm, samples, seconds, attempt, author = report
            if not (_same(loss, event.lm_loss) and _same(norm, event.grad_norm) and samples == event.consumed_samples):
                continue
            if _same(seconds, event.seconds_per_iteration):
                return author != source or attempt == number
            alike = alike or report
        if alike is None or alike[5] == source:
            return False
        # Another source has the same loss with another time: a rank with its own clock, unless it went back itself.
        cursor = self.positions.get(source)
        last = cursor.last_iteration if cursor is not None else None
        return last is None or event.iteration > last

    def remember(self, event: IterationLogged, source: str, number: int) -> None:
        """A report that counts, and where its source stands."""
        seen, iteration = self.seen, event.iteration
        report = (
            event.lm_loss, event.grad_norm, event.consumed_samples, event.seconds_per_iteration, number, source
        )  # fmt: skip
        if iteration in seen:
            seen[iteration] = [*seen.pop(iteration)[1 - _ATTEMPTS :], report]  # the newest stands last
        else:
            seen[iteration] = [report]
        self.moved(source, iteration, number)
        room = RING if self.several else _SINGLE
        if len(seen) > 2 * room:
            for key in tuple(islice(seen, len(seen) - room)):
                del seen[key]

    def is_reported(self, step: int, event: EngineStepLogged, attempt: int) -> bool:
        """Whether DeepSpeed's engine has told this very step in this attempt: the line once more."""
        return self.steps.get(step) == (attempt, event.form, event.loss, event.learning_rate, event.seconds_per_step)

    def record(self, step: int, event: EngineStepLogged, attempt: int) -> None:
        """A step that DeepSpeed's engine has told."""
        self.steps[step] = (attempt, event.form, event.loss, event.learning_rate, event.seconds_per_step)
        if len(self.steps) > 2 * _SINGLE:
            for key in tuple(islice(self.steps, len(self.steps) - _SINGLE)):
                del self.steps[key]

    def count(self, source: str, attempt: int) -> None:
        """An iteration that the source told has counted, whoever counts."""
        self._counting(source, attempt)

    def moved(self, source: str, iteration: int, number: int) -> None:
        """The source has reported this iteration."""
        self._counting(source, number).last_iteration = iteration

    def _counting(self, source: str, number: int) -> StreamPosition:
        cursor = self.position(source)
        if cursor.first_attempt == NO_ATTEMPT:
            cursor.first_attempt = number
            self.several = self.several or any(
                one is not cursor and one.first_attempt != NO_ATTEMPT for one in self.positions.values()
            )
        cursor.attempt, cursor.set_up_again = number, False
        return cursor

    def position(self, source: str) -> StreamPosition:
        """Where the source stands."""
        cursor = self.positions.get(source)
        if cursor is None:
            cursor = self.positions[source] = StreamPosition()
        return cursor

    def note_furthest(self, reported: Mapping[str, float], number: int) -> None:
        """A stream that is abreast of others has told these steps of that attempt."""
        if number != self.furthest_attempt:
            self.furthest, self.furthest_attempt = {}, number
        for kind, step in reported.items():
            self.furthest[kind] = max(step, self.furthest.get(kind, step))


def _same(one: float | None, other: float | None) -> bool:
    """NaN is the same as NaN."""
    return one == other or (one is not None and other is not None and one != one and other != other)


_SOON = 10  # iterations within which the same pair is a copy: no loss scale window is so short
_PAIRS = 64
_ENGINES = 8


class Overflows(Struct):
    """Overflows by step, not by line: every rank may report one, and so may every engine (DeepSpeed-Chat has two).

    An overflow line tells the scale that was tried and what became of it. Each such pair belongs to one step of one
    engine until the scale has been raised again, which takes a hundred steps and more: the same pair soon after is
    another rank's copy. Engines are told apart by their scales. The counter `skipped=` that an engine prints is the
    truth where there is one; engines that print one each do so in the same order at every step.
    """

    seen: dict[str, int] = field(default_factory=dict)
    """What a line told -> the iteration after which it was last told."""
    scales: list[float] = field(default_factory=list)
    """Engine -> its scale after its last overflow."""
    last_engine: int | None = None
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

    def add_line(self, event: OverflowSkipped, iteration: int, every: int) -> bool:
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
        self.last_engine = None if copy else self._engine(old, new)
        return not copy

    def _engine(self, old: float | None, new: float | None) -> int:
        """Which engine has this scale. A loop that does not print the old one (fairseq) has one engine."""
        after = new if new is not None else old if old is not None else 0.0
        place = self.scales.index(old) if old in self.scales else 0 if old is None and self.scales else len(self.scales)
        if place == len(self.scales):
            if place == _ENGINES:  # scales that were raised since
                place = 0
                self.scales.clear()
            self.scales.append(after)
        self.scales[place] = after
        return place

    @property
    def last_counter_step(self) -> int:
        """The step of the last counter; 0 where none is printed, or none that has ever moved."""
        return self.step if any(self.counters) else 0

    def add_counter(self, step: int, skipped: int) -> int:
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
