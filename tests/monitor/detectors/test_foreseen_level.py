"""Slowdown and launch_blocking over steps in a row: the same memory and answers as line by line, whatever the cut."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.config import default_config
from monitor.detectors import DETECTORS
from monitor.detectors.sliding import chunks, outside
from monitor.detectors.slowdown import Memory
from monitor.run.state import RunState
from monitor.run.steps import UNFORESEEN, Foreseen, nothing_to_take
from parsers.events import IterationLogged
from tests.monitor.detectors.foreseen import foresee, see, steps_of

NAMES = ("slowdown", "launch_blocking")


class Read:
    """A run that is read in stretches; each is foreseen, and proved, before it is read line by line."""

    def __init__(self, every: int = 1, batch_size: int = 2048) -> None:
        self.state = RunState("run")
        self.every, self.batch_size = every, batch_size
        self.iteration, self.at = 0, 1000.0
        self.rows = self.alone = self.told = 0
        """Rows that were foreseen, rows that had to be taken one by one, and how often a detector answered there."""

    def line(self, iteration: int, seconds: float) -> IterationLogged:
        """A line as a program prints it."""
        return IterationLogged(
            dialect="bigscience",
            iteration=iteration,
            consumed_samples=iteration * self.batch_size,
            global_batch_size=self.batch_size,
            seconds_per_iteration=seconds,
            lm_loss=2.3,
        )

    def one(self, seconds: float) -> None:
        """Read a line."""
        self.iteration += self.every
        self.at += seconds
        self.alone += 1
        self.told += any(see(self.state, self.line(self.iteration, seconds), self.at, NAMES).values())

    def stretch(self, rows: Sequence[float]) -> None:
        """Read lines, as many at once as are foreseen."""
        left = list(rows)
        while left:
            events = [self.line(self.iteration + self.every * (n + 1), row) for n, row in enumerate(left)]
            at = [self.at + n + 1 for n in range(len(left))]
            found = foresee(self.state, events, at, NAMES[:1])
            if found:  # launch_blocking trusts slowdown to stop before the row that shows a launch's level
                steps, on_steps = (
                    steps_of(self.state, events[:found], at[:found]),
                    DETECTORS["launch_blocking"].on_steps,
                )
                assert on_steps is not None
                assert on_steps(self.state, steps, None) == Foreseen(found, nothing_to_take)
            before = repr(self.state.memory_of.get("launch_blocking"))
            for event, when in zip(events[:found], at, strict=False):
                assert not any(see(self.state, event, when, NAMES).values())
            assert repr(self.state.memory_of.get("launch_blocking")) == before
            self.rows += found
            if found:
                self.iteration, self.at = events[found - 1].iteration, at[found - 1]
            left = left[found:]
            if left:
                self.one(left.pop(0))

    def cut(self, rows: Sequence[float], chance: random.Random, longest: int) -> None:
        """Read lines in stretches of random lengths."""
        start = 0
        while start < len(rows):
            size = chance.choice((1, 8, 9, chance.randint(1, longest), longest))
            self.stretch(rows[start : start + size])
            start += size

    def launch(self, seconds: float, batch_size: int | None = None) -> None:
        """A new launch, from iterations that it had passed; calm steps begin where it is farther than ever."""
        self.batch_size = batch_size or self.batch_size
        highest = self.iteration
        self.iteration = max(0, self.iteration - 2 * self.every)
        while self.iteration <= highest:
            self.one(seconds)

    @property
    def memory(self) -> Memory:
        """Slowdown's."""
        memory = self.state.memory_of["slowdown"]
        assert isinstance(memory, Memory)
        return memory


def begun(seconds: float = 105.2, **kind: int) -> Read:
    """A run whose first two lines have been read: the interval is known."""
    read = Read(**kind)
    read.one(seconds)
    read.one(seconds)
    return read


class Course:
    """Seconds of a training's steps, with noise and what happens to them."""

    def __init__(self, seed: int, noise: float, digits: int | None = None, alike: float = 0.0) -> None:
        self.random, self.noise, self.digits, self.alike = random.Random(seed), noise, digits, alike
        self.off = 0.0

    def rows(self, count: int, seconds: float = 105.2, creep: float = 0.0, hiccups: float = 0.0) -> list[float]:
        """`creep`: growth a row. `hiccups`: the share of rows that take 10 % to 100 % longer."""
        found = []
        for n in range(count):
            self.off = self.alike * self.off + self.random.gauss(0, self.noise)
            row = seconds * (1 + creep) ** n * math.exp(self.off)
            if self.random.random() < hiccups:
                row *= self.random.choice((1.1, 1.3, 1.3, 1 + self.random.random()))
            found.append(row if self.digits is None else round(row, self.digits))
        return found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("noise", [0.0, 0.004, 0.01, 0.02])
def test_a_healthy_run_is_foreseen(seed: int, noise: float) -> None:
    """All but the row at which the launch shows its level, and the few that look wrong."""
    course = Course(seed, noise, (None, 2)[seed])
    read = begun()
    read.cut(course.rows(600), course.random, 400)
    assert read.alone <= 8
    assert read.rows >= 592


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("factor", [0.9, 0.985, 1.012, 1.05, 1.3])
def test_a_step_and_the_way_back(seed: int, factor: float) -> None:
    """Up or down, told or not, for long: what stands for the rest of a run is foreseen too."""
    course = Course(seed, (0.004, 0.012)[seed], alike=(0.0, 0.5)[seed])
    read = begun()
    for count, seconds in ((100, 105.2), (250, 105.2 * factor), (100, 105.2), (30, 110.0), (60, 118.0)):
        read.cut(course.rows(count, seconds), course.random, 200)
    assert read.rows > 450
    if factor == 1.05:
        assert read.told >= 3


def test_an_incident_that_stands_costs_no_rows() -> None:
    """A slow node until the end of the run: nothing is taken one by one once it is known."""
    course = Course(1, 0.008)
    read = begun()
    read.stretch(course.rows(200) + course.rows(100, 112.0))
    shift, alone = read.memory.shift, read.alone
    assert shift is not None
    read.cut(course.rows(800, 112.0), course.random, 500)
    assert read.memory.shift == shift
    assert read.alone == alone


@pytest.mark.parametrize("seed", range(2))
def test_creeping_and_back(seed: int) -> None:
    """A drift is told, its level grows with it in silence, and it ends."""
    course = Course(seed, 0.004)
    read = begun()
    read.stretch(course.rows(200))
    slow = course.rows(700, creep=1e-4)
    read.cut(slow, course.random, 300)
    assert read.memory.shift is not None
    read.cut(course.rows(200, slow[-1]), course.random, 100)
    read.cut(course.rows(500, slow[-1], creep=-2e-4), course.random, 300)
    assert read.told >= 2


@pytest.mark.parametrize("hiccups", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(2))
def test_hiccups(seed: int, hiccups: float) -> None:
    """Single slow steps, a tenth of all of them, and so many that the level is not one."""
    course = Course(seed, (0.002, 0.01)[seed], digits=2)
    read = begun()
    read.cut(course.rows(500, hiccups=hiccups) + course.rows(200) + course.rows(100, hiccups=0.9), course.random, 200)
    assert read.rows > 600


@pytest.mark.parametrize("seed", range(4))
def test_launches_and_batch_sizes(seed: int) -> None:
    """Each launch shows its level anew, at each batch size; an incident stays in doubt until it has."""
    course = Course(seed, 0.008)
    read = begun(every=(1, 10)[seed % 2])
    seconds = 105.2
    for _ in range(6):
        read.cut(course.rows(course.random.choice((5, 12, 60, 150)), seconds), course.random, 100)
        event = course.random.choice(("launch", "slower", "batch size", "shift"))
        if event in ("slower", "shift"):
            seconds *= 1.06
        if event == "batch size":
            read.batch_size = 4096 if read.batch_size == 2048 else 2048
            read.one(seconds)
        elif event != "shift":
            read.launch(seconds)
    read.cut(course.rows(300, seconds), course.random, 200)
    assert read.rows > 200


def test_a_launch_is_foreseen_up_to_the_row_that_shows_its_level() -> None:
    """Warm-up, a row that names the batch size, learning, that row, then everything. launch_blocking answers at it."""
    read = begun()
    seconds = Course(1, 0.01).rows(100)
    read.stretch(seconds)
    assert (read.rows, read.alone, read.told) == (98, 4, 1)
    assert len(read.memory.segments) == 1
    assert len(read.memory.tracks[read.memory.key].recent) == 16


EVENTS = st.tuples(
    st.sampled_from(("steady", "steady", "step", "creep", "hiccups", "launch", "size")),
    st.integers(1, 120),
    st.sampled_from((0.93, 0.98, 1.015, 1.025, 1.05, 1.2)),
)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(EVENTS, min_size=1, max_size=8),
    st.integers(0, 10_000),
    st.sampled_from((0.0, 0.001, 0.004, 0.01, 0.03)),
    st.sampled_from((1, 30, 400)),
)
def test_any_course_and_any_cut(events: list[tuple[str, int, float]], seed: int, noise: float, longest: int) -> None:
    """What the rules of the detector do not expect as well."""
    course = Course(seed, noise, seed % 3 or None, (0.0, 0.8)[seed % 2])
    read, seconds = begun(), 105.2
    for kind, count, factor in events:
        if kind == "step":
            seconds *= factor
        elif kind == "launch":
            read.launch(seconds)
        elif kind == "size":
            read.batch_size = 4096 if read.batch_size == 2048 else 2048
            read.one(seconds)
        creep = (factor - 1) / 200 if kind == "creep" else 0.0
        rows = course.rows(count, seconds, creep, 0.2 if kind == "hiccups" else 0.0)
        read.cut(rows, course.random, longest)
        seconds = rows[-1] if creep else seconds


def test_what_it_cannot_know_is_unforeseen() -> None:
    """No memory yet, one of another launch, another batch size, and one that was saved and not yet read."""
    read = begun()
    read.stretch(Course(1, 0.01).rows(60))
    steps = steps_of(read.state, [read.line(read.iteration + 1, 105.2)], [read.at + 1.0])
    detector, own = DETECTORS["slowdown"], default_config().detectors.slowdown
    blocking = DETECTORS["launch_blocking"]
    assert detector.on_steps is not None
    assert blocking.on_steps is not None
    assert detector.on_steps(read.state, steps, own).rows == 1
    read.state.latest.global_batch_size = 1024
    assert detector.on_steps(read.state, steps, own) == UNFORESEEN
    read.state.latest.global_batch_size = 2048
    read.state.attempt.number += 1
    assert detector.on_steps(read.state, steps, own) == UNFORESEEN
    assert blocking.on_steps(read.state, steps, None).rows == 1  # until slowdown has a level of this launch
    read.state.attempt.number -= 1
    del read.state.memory_of["launch_blocking"]
    assert blocking.on_steps(read.state, steps, None) == UNFORESEEN
    read.state.memory_of["slowdown"] = {"attempt": 0}
    assert detector.on_steps(read.state, steps, own) == UNFORESEEN
    assert blocking.on_steps(read.state, steps, None) == UNFORESEEN


def _windows(values: list[float], held: int, first: int) -> Iterator[tuple[int, list[float]]]:
    """(row, the window after it in order) at each row of the chunks."""
    gone = outside(200)
    for chunk in chunks(values[:held], values[held:], first, 8, 200):
        assert chunk.stop == len(values) - held or (chunk.stop - first) % 8 == 0
        for row in range(chunk.start, chunk.stop):
            alive = chunk.order.translate(None, gone[chunk.held + row + 1 - chunk.start])
            yield row, [chunk.values[at] for at in alive]


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 200), st.integers(1, 15), st.integers(1, 700))
def test_the_order_of_a_window_at_any_row(rng: random.Random, held: int, first: int, rows: int) -> None:
    """Short and full windows, with many equal values."""
    values = [round(rng.gauss(0, 1), rng.choice((0, 1, 9))) for _ in range(held + rows)]
    seen = 0
    for row, window in _windows(values, held, first):
        assert window == sorted(values[max(0, held + row + 1 - 200) : held + row + 1])
        assert row == seen
        seen += 1
    assert seen == rows
