"""`on_steps` of the scaler's, the checkpoints', the memory's, the configuration's and the resume's detector: runs of
random events with calm stretches in between, cut anywhere, leave the same memory as line by line.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.config import default_config
from monitor.detectors import DETECTORS
from monitor.run.fold import fold
from monitor.run.past import Past
from monitor.run.state import RunState
from parsers.events import (
    ArgumentsDumped,
    CheckpointSaved,
    CheckpointSaveScheduled,
    CheckpointSaveStarted,
    Event,
    FailureSeen,
    IterationLogged,
    LogEvent,
    LossScaleExhausted,
    MemoryReported,
    OverflowSkipped,
    TopologyLogged,
)
from tests.monitor.detectors.foreseen import SOURCE, foresee, see, steps_of

NAMES = (
    "loss_scale_collapse",
    "overflow_storm",
    "configuration",
    "resume_discontinuity",
    "checkpoint_failed",
    "checkpoint_overdue",
    "memory_pressure",
)
GIB = 2**30


class Run:
    """A run whose events are made one by one: the detectors see everything, and calm stretches are foreseen."""

    def __init__(self, seed: int, **line: Any) -> None:
        self.random = random.Random(seed)
        self.state = RunState(name="run-7b")
        self.settings = default_config().detectors
        self.at = 1_700_000_000.0
        self.iteration = 0
        self.interval = 1
        self.seconds = 5.0
        self.norm: Callable[[int], float | None] = lambda row: 0.2 + row % 997 / 1e4
        self.line: dict[str, Any] = {"global_batch_size": 8, "dialect": "megatron-lm", **line}
        self.rate = 1e-4
        self.lines = self.foreseen = 0
        self.stretches = Counter[str]()

    def tell(self, *events: Event) -> None:
        """Other events than iterations: listeners see them."""
        for event in events:
            fold(self.state, LogEvent(1, "test", event, "line"), SOURCE, self.at, True)
            for name in NAMES:
                detector = DETECTORS[name]
                if isinstance(event, detector.listens):
                    assert detector.on_event is not None
                    detector.on_event(self.state, event, getattr(self.settings, name))

    def next_line(self, **values: Any) -> tuple[IterationLogged, float]:
        """The next line and when it is written."""
        self.iteration += self.interval
        self.at += self.seconds * self.interval
        event = IterationLogged(
            iteration=self.iteration,
            seconds_per_iteration=self.seconds * self.random.uniform(0.9, 1.1),
            lm_loss=self.random.uniform(2, 3),
            grad_norm=self.norm(self.iteration),
            consumed_samples=self.iteration * 8,
            learning_rate=self.rate,
            **{"skipped_iterations": 0, "nan_iterations": 0, **self.line, **values},
        )
        return event, self.at

    def one(self, **values: Any) -> None:
        """A line by itself, of whatever kind."""
        see(self.state, *self.next_line(**values), NAMES)

    def calm(self, rows: int, pieces: Callable[[int], int] = lambda left: left) -> None:
        """So many calm lines, cut as `pieces` says; what is not foreseen is taken one by one."""
        for _ in range(8):
            if not self._is_calm():
                self.one()
        assert self._is_calm()
        todo = [self.next_line() for _ in range(rows)]
        while todo:
            size = min(len(todo), max(1, pieces(len(todo))))
            ahead = todo[:size]
            events, at = [event for event, _ in ahead], [when for _, when in ahead]
            taken = foresee(self.state, events, at, NAMES)
            if 0 < taken < size:
                assert foresee(self.state, events[:taken], at[:taken], NAMES) == taken
            self.stretches["whole" if taken == size else "part" if taken else "none"] += 1
            for event, when in ahead[: taken or 1]:
                see(self.state, event, when, NAMES)
            self.lines += taken or 1
            self.foreseen += taken
            del todo[: taken or 1]

    def _is_calm(self) -> bool:
        state = self.state
        scale = self.line.get("loss_scale")
        return (
            state.driver == "iteration"
            and state.phase == "training"
            and state.failure is None
            and not state.impure
            and state.log_interval == self.interval
            and state.latest.iteration == self.iteration
            and state.highest_iteration == self.iteration
            and state.latest.global_batch_size == self.line["global_batch_size"]
            and state.latest.sequence_length == state.topology.sequence_length
            and (not scale or scale <= 0 or state.latest.loss_scale == scale)
        )

    def memory(self, name: str) -> Any:
        """A detector's memory."""
        return self.state.memory_of[name]


def _restart(run: Run) -> None:
    """A new launch goes on from some iterations before, or where it was, perhaps with another plan."""
    run.tell(ArgumentsDumped(values={"iteration": str(run.at), "save_interval": str(run.random.choice((50, 1000)))}))
    run.iteration = max(0, run.iteration - run.interval * run.random.choice((0, 1, 30)))
    run.rate = run.random.choice((run.rate, run.rate, 3e-4))
    run.one()
    while run.state.highest_iteration != run.iteration:
        run.one()


def _save(run: Run) -> None:
    run.tell(CheckpointSaveStarted(iteration=run.iteration))
    if run.random.random() < 0.4:
        run.tell(CheckpointSaveScheduled(iteration=run.iteration))
    if run.random.random() < 0.6:
        run.tell(CheckpointSaved(iteration=run.iteration))


def _overflow(run: Run) -> None:
    """Told, counted, or neither, and once, or as a storm; the scale falls or stays."""
    scale = run.line.get("loss_scale")
    for _ in range(run.random.choice((1, 1, 2, 6, 14))):
        new = max(1.0, scale / 2) if scale and run.random.random() < 0.7 else scale
        if run.random.random() < 0.6:
            run.tell(OverflowSkipped(loss_scale=scale, new_loss_scale=new))
        if scale:
            run.line["loss_scale"] = scale = new
        if run.random.random() < 0.8:
            run.one(skipped_iterations=run.random.choice((0, 1)))


def _scale(run: Run) -> None:
    run.line["loss_scale"] = run.random.choice((None, -1.0, 0.5, 1.0, 2.0, 4.0, 16.0, 65536.0, 2.0**32))


def _report(run: Run) -> None:
    used = run.random.randrange(30 * GIB, 81 * GIB)
    run.tell(MemoryReported(allocated_bytes=used, host_used_ratio=run.random.choice((None, 0.5, 0.97))))


def _norms(run: Run) -> None:
    """Healthy, coarse, frozen, constant, none, zero, mixed."""
    choice, noise = run.random.choice, run.random.random
    kinds: tuple[Callable[[int], float | None], ...] = (
        lambda _row: noise() + 0.1,
        lambda _row: choice((0.139, 0.14, 0.141)),
        lambda row: 0.1 + row // (9 * run.interval),
        lambda row: 2000.5 + row // (2 * run.interval),
        lambda _row: 0.25,
        lambda _row: None,
        lambda _row: 0.0,
        lambda _row: choice((0.0, -1.0, 0.3, 0.3, 0.31)),
    )
    run.norm = choice(kinds)


def _pace(run: Run) -> None:
    """A launch that prints every so many iterations; an interval that grows within one is taken for lost lines."""
    run.interval = run.random.choice((1, 1, 5, 20, 100, 700))
    run.seconds = run.random.choice((0.05, 5.0, 40.0))
    _restart(run)


def _odd(run: Run) -> None:
    """What is rare: exhausted, out of memory, a topology that changes, a skipped step, a disk that is full."""
    run.tell(
        run.random.choice(
            (
                LossScaleExhausted(),
                FailureSeen(failure="out_of_memory", message="oom", fatal=False, device_bytes=80 * GIB),
                FailureSeen(failure="disk_full", message="No space left"),
                TopologyLogged(world_size=8),
            )
        )
    )
    run.one(skipped_iterations=run.random.choice((0, 1)))


EVENTS = (_restart, _save, _save, _overflow, _overflow, _scale, _report, _norms, _pace, _odd)


@pytest.mark.parametrize("seed", range(24))
def test_the_same_memory_as_line_by_line(seed: int) -> None:
    """Whatever came before, and wherever the stretch is cut."""
    run = Run(seed, loss_scale=random.Random(seed).choice((None, 1.0, 65536.0, 65536.0, 2.0**32)))
    run.line["dialect"] = run.random.choice(("megatron-lm", "somebody"))
    pick = run.random
    for _ in range(6):
        for _ in range(pick.choice((1, 1, 2, 3))):
            pick.choice(EVENTS)(run)
        rows, most = pick.choice(((5, 1), (12, 4), (60, 60), (120, 200)))
        run.calm(rows, lambda _, most=most: pick.randint(1, most))  # type: ignore[misc]
    assert run.foreseen


def test_random_runs_reach_all_that_the_detectors_keep() -> None:
    """The seeds above are worth their time: taken together, what they foresee is whole, part and nothing, and the
    memories were in every state that matters.
    """
    reached = Counter[str]()
    for seed in range(32):
        run = Run(seed, loss_scale=random.Random(seed).choice((1.0, 65536.0, 2.0**32)))
        for _ in range(12):
            run.random.choice(EVENTS)(run)
            for _ in range(25):
                run.one()
            scale, storm = run.memory("loss_scale_collapse"), run.memory("overflow_storm")
            reached += Counter(
                {
                    f"reason {scale.reason}": 1,
                    "blocks": bool(scale.blocks),
                    "storm": storm.firing,
                    "repeats": storm.repeats,
                    "pending": bool(run.memory("checkpoint_failed").pending),
                    "overdue": run.memory("checkpoint_overdue").over,
                    "found": bool(run.memory("resume_discontinuity").found),
                    "near": run.memory("memory_pressure").near,
                }
            )
    wanted = {"reason ", "reason falling", "reason minimum", "reason exhausted", "blocks", "storm", "repeats"}
    assert wanted | {"pending", "overdue", "found", "near"} <= set(+reached)


def _steady() -> Iterator[Any]:
    """(name, what is told before the steady lines begin)."""

    def nothing(_run: Run) -> None:
        pass

    def report(run: Run) -> None:
        run.tell(MemoryReported(allocated_bytes=40 * GIB))
        run.one()

    def asynchronous(run: Run) -> None:
        run.tell(CheckpointSaveStarted(iteration=run.iteration), CheckpointSaveScheduled(iteration=run.iteration))

    def untold(run: Run) -> None:
        run.line["dialect"] = "somebody"
        run.tell(CheckpointSaveStarted(iteration=run.iteration), CheckpointSaveScheduled(iteration=run.iteration))

    def overdue(run: Run) -> None:
        for _ in range(3):
            run.tell(CheckpointSaveStarted(iteration=run.iteration), CheckpointSaved(iteration=run.iteration))
            run.calm(20)
        run.calm(100)
        assert run.memory("checkpoint_overdue").over

    def irregular(run: Run) -> None:
        for rows in (10, 30, 60):
            run.tell(CheckpointSaveStarted(iteration=run.iteration), CheckpointSaved(iteration=run.iteration))
            run.calm(rows)
        run.tell(CheckpointSaveStarted(iteration=run.iteration), CheckpointSaved(iteration=run.iteration))

    def never(run: Run) -> None:
        arguments = {"save_interval": "10", "save": "/ckpt", "train_iters": "1000000"}
        run.tell(ArgumentsDumped(values={**arguments, "iteration": "0"}))
        run.calm(100)

    def fallen(run: Run) -> None:
        for _ in range(6):
            run.line["loss_scale"] = (run.line["loss_scale"] or 4096.0) / 2
            run.one(skipped_iterations=1)
        assert run.memory("loss_scale_collapse").reason

    def minimum(run: Run) -> None:
        run.line["loss_scale"] = 2.0
        run.one()
        assert run.memory("loss_scale_collapse").reason == "minimum"

    def resumed(run: Run) -> None:
        run.tell(ArgumentsDumped(values={"iteration": "1"}))
        run.rate *= 3
        run.one()
        assert run.memory("resume_discontinuity").found

    both = (nothing, report, asynchronous, untold, overdue, irregular, never, resumed)
    yield from (pytest.param(None, told, id=f"bf16-{told.__name__}") for told in both)
    yield from (pytest.param(65536.0, told, id=f"fp16-{told.__name__}") for told in (*both, fallen, minimum))


@pytest.mark.parametrize(("scale", "told"), list(_steady()))
def test_what_lasts_long_is_not_taken_one_by_one(scale: float | None, told: Callable[[Run], None]) -> None:
    """A steady run, whatever it is left with."""
    run = Run(3, loss_scale=scale)
    for _ in range(80):
        run.one()
    told(run)
    for _ in range(30):
        run.one()
    run.lines = run.foreseen = 0
    for _ in range(3):
        run.calm(200)
    assert run.lines - run.foreseen <= 8


def test_what_a_restart_showed_ends_once() -> None:
    """Six hours later it is told as over; the lines after that are foreseen."""
    run = Run(4)
    for _ in range(30):
        run.one()
    run.tell(ArgumentsDumped(values={"iteration": "1"}))
    run.rate, run.seconds = 3e-4, 300.0
    run.one()
    assert run.memory("resume_discontinuity").found
    run.calm(40)
    assert run.memory("resume_discontinuity").found
    run.calm(60)
    assert not run.memory("resume_discontinuity").found
    run.lines = run.foreseen = 0
    run.calm(60)
    assert run.foreseen >= 58


@pytest.mark.parametrize("interval", [10, 100, 500, 900])
def test_blocks_of_a_scale_that_sinks(interval: int) -> None:
    """A decline is told at the block that shows it, by any interval; so is its end."""
    run = Run(5, loss_scale=2.0**16)
    run.interval = interval
    for _ in range(70):
        run.one()
    reasons = set()
    for scale in (16, 15, 13, 13):
        run.line["loss_scale"] = 2.0**scale
        for _ in range(3):
            run.calm(max(2, 600 // interval), lambda left: run.random.randint(left // 2 + 1, left))
            reasons.add(run.memory("loss_scale_collapse").reason)
    assert reasons == {"", "declining"}


def test_a_frozen_norm_is_seen_at_its_line() -> None:
    """Healthy norms, then one that stands still: the line at which it is told is not among the foreseen."""
    run = Run(6, loss_scale=65536.0)
    for _ in range(80):
        run.one()
    run.calm(20)
    begun = run.iteration
    run.norm = lambda row: 0.5 if row > begun + 10 else row / 1000
    run.calm(30)
    storm = run.memory("overflow_storm")
    assert storm.firing and storm.onset == begun + 14


def test_steps_count_seconds_as_the_lines_do() -> None:
    """Sums are rounded line by line, the product first."""
    for interval in (1, 3):
        run = Run(7)
        run.interval = interval
        for _ in range(5):
            run.one()
        events = [run.next_line() for _ in range(50)]
        steps = steps_of(run.state, [event for event, _ in events], [at for _, at in events])
        seconds = 0.1
        for event, _ in events:
            seconds += (event.seconds_per_iteration or 0.0) * interval
        assert steps.seconds_since(0.1) == seconds


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1100), st.lists(st.integers(1, 700), max_size=8), st.booleans(), st.booleans())
def test_a_past_takes_many_lines_at_once(before: int, cuts: list[int], rates: bool, samples: bool) -> None:
    """As one by one, thinning included."""
    one, many = Past(), Past()
    for past in (one, many):
        for iteration in range(before):
            past.add(iteration, 1e-4, 8, None)
    begin = before
    for cut in cuts:
        iterations = range(begin, begin + cut)
        for iteration in iterations:
            one.add(iteration, iteration / 7 if rates else None, 16, iteration * 16 if samples else None)
        many.add_all(
            list(iterations),
            [iteration / 7 for iteration in iterations] if rates else None,
            16,
            [iteration * 16 for iteration in iterations] if samples else None,
        )
        begin += cut
    assert one == many
