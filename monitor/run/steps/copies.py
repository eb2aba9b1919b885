"""Tells step and overflow lines that add nothing (copies) from those that count.

Copies come from several ranks under `tee` and from per-rank files. A line is a copy if the same values were already
reported for the same iteration in the same attempt, or by another stream whose own iterations have not gone back. An
iteration that is computed again after a restart is not a copy.
Residual risk: a stream that lags more than `RING` iterations is judged by the order of its own iterations only.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, TypeAlias

from msgspec import Struct, field

from megatron_monitor.parsers.events import EngineStepLogged, Event, IterationLogged, OverflowSkipped, TrainerLogged

RING = 4096  # iterations remembered while several streams report; a read block of 1 MiB holds some 2,700 lines
_RING_OF_ONE = 128  # iterations remembered while one stream reports: only copies of tee, which are close together
_MAX_REPORTS = 4  # reports of one iteration that are remembered

Report: TypeAlias = tuple[float | None, float | None, int | None, float | None, int, str]
"""(loss, grad norm, consumed samples, seconds, attempt, stream) of a line that counted."""

NO_ATTEMPT: Final = -1


class StreamPosition(Struct, omit_defaults=True):
    """How far one stream of the run is. Attempts are numbers, or `NO_ATTEMPT`."""

    last_iteration: int | None = None
    attempt: int = NO_ATTEMPT
    """The attempt of its last iteration."""
    first_attempt: int = NO_ATTEMPT
    """The attempt of its first iteration."""
    replica_attempt: int = NO_ATTEMPT
    """The attempt that it is in, if it is a replica (run/replicas.py)."""
    reported: dict[str, float] = field(default_factory=dict)
    """Kind of line -> the last step that it reported in `replica_attempt`."""
    marks: set[str] = field(default_factory=set)
    """The set-up lines that it reported before those steps."""
    leads: bool = False
    """As a replica, it has reported its last step before all other streams: what follows is not known from them."""
    set_up_again: bool = False
    """It has reported a set-up after steps of other streams."""
    joins_attempt: bool = False
    """It has joined the present attempt of other streams without a step: its set-up lines begin no attempt."""

    @property
    def is_replica(self) -> bool:
        """Return True if other streams report the same training."""
        return self.replica_attempt != NO_ATTEMPT


def step_of(event: Event) -> tuple[str, float] | None:
    """Return (kind of line, step number); None for other lines and for bars, which may count anything."""
    if isinstance(event, IterationLogged):
        return event.kind, event.iteration
    if isinstance(event, EngineStepLogged):
        return f"{event.kind} {event.form}", event.step  # the timer's line of a step follows the step's own
    if isinstance(event, TrainerLogged) and event.eval_loss is None:
        number = event.step if event.step is not None else event.epoch
        return None if number is None else (event.kind, number)
    return None


class CountedSteps(Struct):
    """The steps of a run that have counted, and the position of each of its streams."""

    seen: dict[int, list[Report]] = field(default_factory=dict)
    """Iteration -> its reports that counted, the iteration reported last at the end."""
    steps: dict[int, tuple[int, str, float | None, float | None, float | None]] = field(default_factory=dict)
    """Step of DeepSpeed's engine -> (attempt, form, loss, learning rate, seconds) of its newest report."""
    positions: dict[str, StreamPosition] = field(default_factory=dict)
    several: bool = False
    """More than one stream has reported iterations."""
    joined: bool = False
    """A stream was found to be a replica (run/replicas.py)."""
    furthest: dict[str, float] = field(default_factory=dict)
    """Kind of line -> the last step that any replica has reported in `furthest_attempt`."""
    furthest_attempt: int = NO_ATTEMPT

    def is_copy(self, event: IterationLogged, stream: str, attempt: int) -> bool:
        """Return True if the report adds nothing."""
        similar = None
        for report in reversed(self.seen.get(event.iteration, ())):
            loss, norm, samples, seconds, reported_in, author = report
            if not (_same(loss, event.lm_loss) and _same(norm, event.grad_norm) and samples == event.consumed_samples):
                continue
            if _same(seconds, event.seconds_per_iteration):
                return author != stream or reported_in == attempt
            similar = similar or report
        if similar is None or similar[5] == stream:
            return False
        # Another stream has the same loss with another time: a rank with its own clock, unless this stream went back.
        last = self.position(stream).last_iteration
        return last is None or event.iteration > last

    def remember(self, event: IterationLogged, stream: str, attempt: int) -> None:
        """Remember a report that counts, and the position of its stream."""
        seen, iteration = self.seen, event.iteration
        report = (
            event.lm_loss, event.grad_norm, event.consumed_samples, event.seconds_per_iteration, attempt, stream
        )  # fmt: skip
        seen[iteration] = [*seen.pop(iteration, ())[1 - _MAX_REPORTS :], report]
        self.count(stream, attempt).last_iteration = iteration
        if len(seen) > 2 * (size := RING if self.several else _RING_OF_ONE):
            _trim(seen, size)

    def is_reported(self, step: int, event: EngineStepLogged, attempt: int) -> bool:
        """Return True if DeepSpeed's engine has reported the same line of this step in this attempt."""
        return self.steps.get(step) == (attempt, event.form, event.loss, event.learning_rate, event.seconds_per_step)

    def record(self, step: int, event: EngineStepLogged, attempt: int) -> None:
        """Remember a step of DeepSpeed's engine."""
        self.steps[step] = (attempt, event.form, event.loss, event.learning_rate, event.seconds_per_step)
        if len(self.steps) > 2 * _RING_OF_ONE:
            _trim(self.steps, _RING_OF_ONE)

    def note_step(self, event: Event, stream: str) -> None:
        """Record the step of a stream that is not a replica; ReplicaAttempts records those of replicas."""
        step, position = step_of(event), self.position(stream)
        if step is not None and position.replica_attempt == NO_ATTEMPT:
            position.reported[step[0]] = step[1]

    def count(self, stream: str, attempt: int) -> StreamPosition:
        """Note that an iteration of the stream has counted, by whichever step source. Return the stream's position."""
        position = self.position(stream)
        if position.first_attempt == NO_ATTEMPT:
            position.first_attempt = attempt
            others = (other for other in self.positions.values() if other is not position)
            self.several = self.several or any(other.first_attempt != NO_ATTEMPT for other in others)
        position.attempt, position.set_up_again = attempt, False
        return position

    def position(self, stream: str) -> StreamPosition:
        """Return the position of the stream, a new one if the stream is new."""
        return self.positions.get(stream) or self.positions.setdefault(stream, StreamPosition())

    def note_furthest(self, reported: Mapping[str, float], attempt: int) -> None:
        """Note the steps that a replica has reported in an attempt."""
        if attempt != self.furthest_attempt:
            self.furthest, self.furthest_attempt = {}, attempt
        for kind, step in reported.items():
            self.furthest[kind] = max(step, self.furthest.get(kind, step))


def _same(one: float | None, other: float | None) -> bool:
    """Return True for equal values. NaN equals NaN."""
    return one == other or (one is not None and other is not None and one != one and other != other)


def _trim(ring: dict[int, Any], size: int) -> None:
    """Keep the newest `size` entries."""
    for key in tuple(islice(ring, len(ring) - size)):
        del ring[key]


_COPY_WITHIN = 10  # iterations within which the same overflow is a copy: loss scale windows are longer
_MAX_PAIRS = 64
_MAX_ENGINES = 8


class Overflows(Struct):
    """Overflows by step, not by line: every rank may report one, and every engine (DeepSpeed-Chat has two).

    An overflow line prints the loss scale before and after. Such a pair belongs to one step of one engine until the
    scale has been raised again, which takes a hundred steps and more: the same pair soon after is another rank's copy.
    Engines are distinguished by their scales. Where engines print the counter `skipped=`, the largest counter is exact.
    """

    seen: dict[str, int] = field(default_factory=dict)
    """Scales of an overflow -> the iteration after which it was last reported."""
    scales: list[float] = field(default_factory=list)
    """Engine -> its scale after its last overflow."""
    last_engine: int | None = None
    """The engine of the last overflow line; None if that line was a copy."""
    skipped: int = 0
    """The largest counter of skipped steps so far."""

    def add_line(self, event: OverflowSkipped, iteration: int, every: int) -> bool:
        """Return True if no line has reported this overflow before. `every`: iterations between two lines of steps."""
        old, new = event.loss_scale, event.new_loss_scale
        pair = " ".join("" if value is None else f"{value:g}" for value in (old, new, event.hysteresis))
        before = self.seen.pop(pair, None)
        self.seen[pair] = iteration
        if len(self.seen) > _MAX_PAIRS:
            del self.seen[next(iter(self.seen))]
        moved = event.hysteresis is not None or (old is not None and new is not None and new < old)
        # a scale that does not change may overflow at each step
        copy = before is not None and (iteration - before <= max(_COPY_WITHIN, every) if moved else iteration == before)
        self.last_engine = None if copy else self._engine(old, new)
        return not copy

    def _engine(self, old: float | None, new: float | None) -> int:
        """Return the engine with this scale. A loop that does not print the old scale (fairseq) has one engine."""
        after = new if new is not None else old if old is not None else 0.0
        if old in self.scales:
            engine = self.scales.index(old)
        elif old is None and self.scales:
            engine = 0
        else:
            if len(self.scales) == _MAX_ENGINES:  # scales that were raised since
                self.scales.clear()
            engine = len(self.scales)
            self.scales.append(after)
        self.scales[engine] = after
        return engine

    def add_counter(self, skipped: int) -> int:
        """Add an engine's count of skipped steps. Return how many of them no engine has reported."""
        added = max(0, skipped - self.skipped)
        self.skipped += added
        return added
