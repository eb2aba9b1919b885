"""Loss spike, divergence and NaN loss over steps in a row: the same memory and answers as line by line."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.run.state import RunState
from parsers.events import IterationLogged
from tests.monitor.detectors.foreseen import foresee, see

NAMES = ("loss_spike", "divergence", "nan_loss")
Row = tuple[float, float | None]
"""(lm loss, grad norm) of a line."""


class Read:
    """A run that is read in stretches: each is foreseen, and that is proved, before it is read line by line."""

    def __init__(self, first: Row, every: int = 1, samples: bool = True) -> None:
        """Two lines are read: then the interval is known."""
        self.state = RunState("run")
        self.every, self.samples = every, samples
        self.iteration, self.at = 0, 1000.0
        self.together = self.alone = 0
        """Rows that were foreseen, and that had to be taken one by one."""
        self.one(first)
        self.one(first)

    def event(self, after: int, row: Row) -> IterationLogged:
        """A line so many lines after the last one, as a program prints it."""
        iteration = self.iteration + self.every * after
        return IterationLogged(
            dialect="bigscience",
            iteration=iteration,
            consumed_samples=iteration * 2048 if self.samples else None,
            seconds_per_iteration=1.0,
            lm_loss=row[0],
            grad_norm=row[1],
        )

    def one(self, row: Row) -> dict[str, bool]:
        """Read a line alone. Who answered."""
        event = self.event(1, row)
        self.iteration, self.at, self.alone = event.iteration, self.at + 1.0, self.alone + 1
        return see(self.state, event, self.at, NAMES)

    def all(self, rows: Sequence[Row], names: Sequence[str] = NAMES) -> int:
        """Read a stretch, as many rows at once as are foreseen. How many were, the first time."""
        left, found = list(rows), [0]
        highest = self.state.highest_iteration or 0
        while left and (self.iteration < highest or self.state.log_interval is None):  # computed again after a restart
            self.one(left.pop(0))
        while left:
            events = [self.event(after, row) for after, row in enumerate(left, 1)]
            found.append(foresee(self.state, events, [self.at + after for after in range(1, len(left) + 1)], names))
            for row in left[: found[-1]]:
                assert True not in [answer for name, answer in self.one(row).items() if name in names]
                self.alone, self.together = self.alone - 1, self.together + 1
            left = left[found[-1] :]
            if left:
                self.one(left.pop(0))
        return found[:2][-1]

    def cut(self, rows: Sequence[Row], chance: random.Random, longest: int = 250) -> None:
        """Read in stretches of any length."""
        start = 0
        while start < len(rows):
            size = chance.choice((1, 16, 17, chance.randint(1, longest), longest, longest))
            self.all(rows[start : start + size])
            start += size

    def restart(self, back: int) -> None:
        """A new launch begins again so many lines before."""
        self.iteration = max(0, self.iteration - back * self.every)

    def answers(self, rows: Sequence[Row], name: str) -> list[int]:
        """At which of the rows to come the detector would answer."""
        other = copy.deepcopy(self)
        return [row for row, values in enumerate(rows) if other.one(values)[name]]


class Course:
    """Rows of a training: a loss with noise, which falls unless it is `flat`."""

    def __init__(
        self, seed: int, noise: float = 0.01, norm: float | None = 0.2, tail: bool = False, flat: bool = False
    ) -> None:
        self.random = random.Random(seed)
        self.noise, self.norm, self.tail = noise, norm, tail
        self.level, self.step, self.flat = 2.5, 0, flat

    def row(self, times: float = 1.0, norm_times: float = 1.0) -> Row:
        """The next row, its values so many times what they would be."""
        self.step += 1
        wild = self.random.paretovariate(3) if self.tail else 1.0
        level = self.level + (0.0 if self.flat else 5 / (1 + self.step / 100))
        loss = level * times * math.exp(self.random.gauss(0, self.noise) * wild)
        if self.norm is None or self.norm <= 0.0:
            return round(loss, 6), self.norm
        norm = self.norm * norm_times * math.exp(self.random.gauss(0, 0.15) * wild)
        return round(loss, 6), round(norm, 3)

    def rows(self, count: int, times: float = 1.0, norm_times: float = 1.0) -> list[Row]:
        """The next rows."""
        return [self.row(times, norm_times) for _ in range(count)]


@pytest.mark.parametrize("noise", [0.0, 0.0001, 0.01, 0.05])
@pytest.mark.parametrize("norm", [0.2, None, 0.0, -1.0])
def test_healthy_rows(norm: float | None, noise: float) -> None:
    """Of any noise, with and without a grad norm, in stretches of any length: hardly one is taken alone."""
    course = Course(7, noise, norm)
    read = Read(course.row(), every=10 if norm is None else 1, samples=norm != 0.0)
    read.cut(course.rows(400), course.random)
    assert read.together >= 400 - 3 * (noise > 0.01)
    assert len(read.state.memory_of["loss_spike"].levels) == read.together // 32


@pytest.mark.parametrize("seed", range(3))
def test_heavy_tails(seed: int) -> None:
    """Lines that are high alone, many of them: what is high is taken as ever, without an answer."""
    course = Course(seed, 0.02, tail=True)
    read = Read(course.row())
    read.cut(course.rows(500), course.random)
    assert read.together > 400


def test_more_rows_than_are_taken_together() -> None:
    """Levels are thinned on the way."""
    course = Course(3, 0.005)
    read = Read(course.row())
    read.state.memory_of["loss_spike"].levels = [(level - 300, 1.0) for level in range(250)]
    assert read.all(course.rows(1300)) == 1300
    levels = read.state.memory_of["loss_spike"].levels
    assert 128 < len(levels) < 250
    assert levels[-1][0] == 1280


@pytest.mark.parametrize("lines", [1, 2, 3, 12, 60])
@pytest.mark.parametrize(("times", "norm_times"), [(1.12, 1.0), (1.3, 5.0), (1.0, 30.0), (4.0, 1.0)])
def test_spikes(lines: int, times: float, norm_times: float) -> None:
    """Of any length and height: all rows are foreseen up to the first answer, wherever it lies."""
    course = Course(lines, 0.005)
    rows = course.rows(300)
    read = Read(rows[0])
    read.all(rows[1:])
    struck = [*course.rows(lines), *course.rows(lines, times, norm_times), *course.rows(70)]
    answers = read.answers(struck, "loss_spike")
    assert copy.deepcopy(read).all(struck, ("loss_spike",)) == (answers[0] if answers else len(struck))
    assert answers or lines < 3
    read.cut(struck, course.random, 70)


def test_a_spike_that_stays() -> None:
    """It rises, is told as not recovered, and after a thousand lines it is the new normal."""
    course = Course(5, 0.004, flat=True)
    rows = course.rows(300)
    read = Read(rows[0])
    read.all(rows[1:])
    read.all([course.row(1 + 0.01 * step) for step in range(30)])
    answers = read.answers(course.rows(250, 1.3), "loss_spike")
    assert answers
    read.all(course.rows(250, 1.3), ("loss_spike",))
    assert read.state.memory_of["loss_spike"].spike.stage == "not recovered"
    assert read.all(course.rows(650, 1.3), ("loss_spike", "nan_loss")) == 650
    assert read.state.memory_of["loss_spike"].spike.lines < 1000
    last = course.rows(200, 1.06)
    answers = read.answers(last, "loss_spike")
    assert read.all(last, ("loss_spike", "nan_loss")) == answers[0]
    assert read.state.memory_of["loss_spike"].spike is None


def test_a_divergence() -> None:
    """Each full block answers while it stands: so far it is foreseen, block by block."""
    course = Course(11, 0.004, norm=None, flat=True)
    rows = course.rows(500)
    read = Read(rows[0])
    read.all(rows[1:])
    rising = [course.row(1 + 0.0004 * step) for step in range(300)]
    answers = read.answers(rising, "divergence")
    assert copy.deepcopy(read).all(rising, ("divergence",)) == answers[0]
    read.all(rising, ("divergence", "nan_loss"))
    assert read.state.memory_of["divergence"].rise is not None
    read.cut(course.rows(150), course.random)
    assert read.state.memory_of["divergence"].rise is None


@pytest.mark.parametrize("times", [1.0, 1.1])
def test_after_a_restart(times: float) -> None:
    """The first lines of a launch are taken alone; a bump stays open, and is foreseen again."""
    course = Course(2, 0.005, flat=True)
    rows = course.rows(300)
    read = Read(rows[0])
    read.all(rows[1:])
    read.restart(2)
    for row in course.rows(2, times):
        read.one(row)
    alone = read.alone
    read.all(course.rows(120, times))
    assert read.alone - alone == 8 if times == 1.0 else 1 <= read.alone - alone <= 4
    assert (read.state.memory_of["loss_spike"].spike is not None) == (times > 1.0)


def test_grad_norms_that_come_and_go() -> None:
    """0 and -1 between them, the same one for long, few different ones: spreads of 0 are no level."""
    course = Course(4, 0.005, flat=True)
    rows: list[Row] = course.rows(700)
    kinds = [(0.2, 0.0, -1.0), (1.0,), (0.1, 0.1, 0.1, 0.2), (0.0, 0.0, 0.3, 5.0), (1.0, 1.0, 2.0)]
    read = Read(rows[0])
    for start, kind in zip(range(0, 700, 100), [None, *kinds, None], strict=True):
        part = rows[start : start + 100]
        if kind is not None:
            part = [(loss, course.random.choice(kind)) for loss, _ in part]
        read.cut(part, course.random, 100)
    assert read.together > 600


def test_a_grad_norm_that_stands_still() -> None:
    """Its spread is the last one that was not 0, found within the same stretch."""
    course = Course(8, 0.005)
    rows = course.rows(500)
    read = Read(rows[0])
    read.all(rows[:150])
    before = read.state.memory_of["loss_spike"].norm_spread
    assert read.all([*rows[150:250], *((loss, 0.2) for loss, _ in rows[250:])]) == 350
    memory = read.state.memory_of["loss_spike"]
    assert memory.norm_level is None
    assert memory.norm_spread != before


@pytest.mark.parametrize(
    "odd",
    [{"lm_loss": 2.5, "grad_norm": math.nan}, {"skipped_iterations": 1, "grad_norm": 0.2}, {"skipped_iterations": 1}],
)
def test_after_an_odd_line(odd: dict[str, float]) -> None:
    """A grad norm that is no number, a skipped step: a sound line ends what was counted of them."""
    course = Course(9, 0.005)
    read = Read(course.row())
    read.all(course.rows(20))
    event = IterationLogged(dialect="bigscience", iteration=23, seconds_per_iteration=1.0, **odd)  # type: ignore[arg-type]
    see(read.state, event, read.at, NAMES)
    read.iteration = 23
    memory = read.state.memory_of["nan_loss"]
    assert memory.norm_lines + memory.skipped_intervals == 1
    assert read.all(course.rows(20)) == 20


def test_a_gone_loss_is_not_foreseen() -> None:
    """While it is, nothing is; with the next sound line it begins again."""
    course = Course(6)
    rows = course.rows(60)
    read = Read(rows[0])
    read.all(rows[:50])
    gone = IterationLogged(dialect="bigscience", iteration=53, seconds_per_iteration=1.0, grad_norm=1.0)
    see(read.state, gone, read.at, NAMES)
    read.iteration = 53
    assert read.state.memory_of["nan_loss"].form == "gone"
    assert read.all(rows[50:]) == 0
    assert read.together == 50 + 9


segment = st.tuples(
    st.sampled_from(["rows", "spike", "rise", "restart", "level", "norms", "flat"]),
    st.integers(1, 90),
    st.sampled_from([1.03, 1.06, 1.1, 1.3, 4.0]),
    st.sampled_from([1.0, 3.0, 20.0]),
)


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.001, 0.01, 0.05]),
    st.sampled_from([0.2, 1.0, None, 0.0]),
    st.lists(segment, min_size=1, max_size=6),
)
def test_any_course(seed: int, noise: float, norm: float | None, segments: list[tuple[str, int, float, float]]) -> None:
    """Whatever happens, in whatever order and stretches."""
    course = Course(seed, noise, norm, tail=seed % 2 > 0)
    read = Read(course.row(), every=1 + seed % 3, samples=seed % 5 > 0)
    read.all(course.rows(100))
    for kind, count, times, norm_times in segments:
        rows = course.rows(count)
        if kind == "spike":
            rows = course.rows(1 + count // 4, times, norm_times)
        elif kind == "rise":
            rows = [course.row(1 + step * (times - 1) / 50) for step in range(count)]
        elif kind == "restart":
            read.restart(count // 4)
        elif kind == "level":
            course.level *= times
        elif kind == "norms" and norm is not None:
            rows = [(loss, course.random.choice((0.2, 0.0, -1.0, 0.2))) for loss, _ in rows]
        elif kind == "flat" and norm is not None:
            rows = [(loss, 1.0) for loss, _ in rows]
        read.cut(rows, course.random, 60)
