"""Steps in a row in which nothing but training happened: what is folded and judged at once while a backlog is read.

One list a field, row i is the i-th iteration line. Law: to take a row of steps at once leaves exactly what taking its
lines one by one leaves, bit for bit (tests/monitor/test_same_state.py). Whatever is not calm is taken one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import repeat
from operator import add, mul
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Steps:
    """Lines of the training loop's own that follow each other, none of them eventful.

    In all of them, and in the state before them: driver `iteration`, the same attempt, the phase `training`, nothing
    failed, the same dialect, `interval`, batch size, sequence length and `loss_scale`; nothing skipped, no NaN counted;
    no other event in between. Each iteration is the one before plus `interval`, and higher than any before.
    """

    iterations: list[int]
    at: list[float]
    """When each line was written, Unix seconds, never backwards: `state.last_iteration_at` after the row."""
    seconds: list[float]
    """Seconds per iteration as printed, positive and finite: `state.step_seconds` after the row."""
    losses: list[float]
    """lm loss, positive and finite."""
    grad_norms: list[float] | None
    """Finite, 0 and -1 among them; None if no line prints it."""
    samples: list[int] | None
    """Consumed samples; None if no line prints them."""
    loss_scale: float | None
    """`state.latest.loss_scale` before, in and after all rows."""
    interval: int
    """Iterations that each line stands for: `state.log_interval`."""
    learning_rates: list[float] | None
    """As printed; None if no line prints it."""

    def __len__(self) -> int:
        """Rows, at least one."""
        return len(self.iterations)

    def first(self, rows: int) -> Steps:
        """The first rows alone."""
        norms, samples, rates = self.grad_norms, self.samples, self.learning_rates
        return Steps(
            self.iterations[:rows],
            self.at[:rows],
            self.seconds[:rows],
            self.losses[:rows],
            None if norms is None else norms[:rows],
            None if samples is None else samples[:rows],
            self.loss_scale,
            self.interval,
            None if rates is None else rates[:rows],
        )

    def seconds_since(self, start: float) -> float:
        """`start` and then, line by line, the seconds of its iterations: rounded as `+=` rounds them."""
        if self.interval == 1:
            return reduce(add, self.seconds, start)
        return reduce(add, map(mul, self.seconds, repeat(self.interval)), start)


class Foreseen(NamedTuple):
    """What steps would do to one detector, found without changing anything."""

    rows: int
    """So many first rows change no verdict: a step that `on_step` or `on_event` would answer True is not among them."""
    take: Callable[[], None]
    """Write into the detector's memory what all the steps leave there. Called only where `rows` is all of them."""


def nothing_to_take() -> None:
    """For a detector that steps leave as it was."""


UNFORESEEN = Foreseen(0, nothing_to_take)
"""These steps must be taken one by one."""
