"""Loss spike, divergence and NaN loss over steps in a row: the same memory and answers as line by line."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from monitor.run.state import RunState
from parsers.events import IterationLogged
from tests.monitor.detectors.foreseen import foresee, see

NAMES = ("loss_spike", "divergence", "nan_loss")
Row = tuple[float, float | None]
"""(lm loss, grad norm) of a line."""


def line(iteration: int, row: Row, samples: bool = True) -> IterationLogged:
    """A line as a program prints it."""
    return IterationLogged(
        dialect="bigscience",
        iteration=iteration,
        consumed_samples=iteration * 2048 if samples else None,
        seconds_per_iteration=1.0,
        lm_loss=row[0],
        grad_norm=row[1],
    )


class Read:
    """A run that is read in stretches; each is foreseen, and proved, before it is read line by line."""

    def __init__(self, every: int = 1, samples: bool = True) -> None:
        self.state = RunState("run")
        self.every, self.samples = every, samples
        self.iteration, self.at = 0, 1000.0
        self.rows = self.alone = 0
        """Rows that were foreseen, and that had to be taken one by one."""

    def one(self, row: Row) -> bool:
        """Read a line. Whether a detector answered."""
        self.iteration += self.every
        self.at += 1.0
        self.alone += 1
        return any(see(self.state, line(self.iteration, row, self.samples), self.at, NAMES).values())

    def stretch(self, rows: Sequence[Row]) -> None:
        """Read lines, as many at once as are foreseen."""
        left = list(rows)
        while left:
            events = [line(self.iteration + self.every * (n + 1), row, self.samples) for n, row in enumerate(left)]
            at = [self.at + n + 1 for n in range(len(left))]
            found = foresee(self.state, events, at, NAMES)
            for event, when in zip(events[:found], at, strict=False):
                assert not any(see(self.state, event, when, NAMES).values())
            self.rows += found
            if found:
                self.iteration, self.at = events[found - 1].iteration, at[found - 1]
            left = left[found:]
            if left:
                self.one(left.pop(0))

    def restart(self, back: int) -> None:
        """A new launch, from an iteration that it had passed."""
        self.iteration = max(0, self.iteration - back * self.every)


def begun(start: Row, **kind: bool | int) -> Read:
    """A run whose first two lines have been read: the interval is known."""
    read = Read(**kind)  # type: ignore[arg-type]
    read.one(start)
    read.one(start)
    return read


class Course:
    """Rows of a training: a falling loss with noise, and what happens to it."""

    def __init__(self, seed: int, noise: float = 0.01, norm: float | None = 0.2, tail: bool = False) -> None:
        self.random = random.Random(seed)
        self.noise, self.norm, self.tail = noise, norm, tail
        self.level, self.step = 2.5, 0

    def row(self, times: float = 1.0, norm_times: float = 1.0) -> Row:
        """The next row, its values so many times what they would be."""
        self.step += 1
        wild = self.random.paretovariate(3) if self.tail else 1.0
        loss = (self.level + 5 / (1 + self.step / 100)) * times * math.exp(self.random.gauss(0, self.noise) * wild)
        if self.norm is None:
            return round(loss, 6), None
        if self.norm <= 0.0:
            return round(loss, 6), self.norm
        norm = self.norm * norm_times * math.exp(self.random.gauss(0, 0.15) * wild)
        return round(loss, 6), round(norm, 3)

    def rows(self, count: int, times: float = 1.0, norm_times: float = 1.0) -> list[Row]:
        """The next rows."""
        return [self.row(times, norm_times) for _ in range(count)]


def cut(read: Read, rows: Sequence[Row], chance: random.Random, longest: int) -> None:
    """Read them in stretches of random lengths."""
    start = 0
    while start < len(rows):
        size = chance.choice((1, 2, 15, 16, 17, chance.randint(1, longest)))
        read.stretch(rows[start : start + size])
        start += size


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", [0.0, 0.0001, 0.01, 0.05])
def test_healthy_rows_of_any_noise(seed: int, noise: float) -> None:
    """Falling losses, whatever lengths they are read in. A steady run is foreseen."""
    course = Course(seed, noise, (0.2, None, 0.0, -1.0)[seed % 4], tail=seed > 3)
    read = begun(course.row(), every=(1, 10)[seed % 2], samples=seed % 3 > 0)
    cut(read, course.rows(900), course.random, 400)
    if noise <= 0.01 and seed <= 3:
        assert read.alone <= 2
