"""A run of random events with calm stretches in between, at which `on_steps` is held to what line by line does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.monitor.detectors.foreseen import SOURCE, foresee, see

from monitor.config import default_config
from monitor.detectors import DETECTORS
from monitor.run.fold import fold
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
            if not self.is_calm():
                self.one()
        assert self.is_calm()
        todo = [self.next_line() for _ in range(rows)]
        while todo:
            size = min(len(todo), max(1, pieces(len(todo))))
            ahead = todo[:size]
            events, at = [event for event, _ in ahead], [when for _, when in ahead]
            taken = foresee(self.state, events, at, NAMES)
            if 0 < taken < size:
                assert foresee(self.state, events[:taken], at[:taken], NAMES) == taken
            if taken < size:  # one alone may foresee more than all of them
                alone = (self.random.choice(NAMES),)
                more = foresee(self.state, events, at, alone)
                assert not more or foresee(self.state, events[:more], at[:more], alone) == more
            self.stretches["whole" if taken == size else "part" if taken else "none"] += 1
            ahead = ahead[: taken or self.random.choice((1, 1, 2, 5))]
            for event, when in ahead:
                see(self.state, event, when, NAMES)
            self.lines += len(ahead)
            self.foreseen += taken
            del todo[: len(ahead)]

    def is_calm(self) -> bool:
        """Whether the next line is a step of run/steps.py, as far as these detectors can tell."""
        state = self.state
        scale = self.line.get("loss_scale")
        return (
            state.driver == "iteration"
            and state.phase == "training"
            and state.failure is None
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


def restart(run: Run) -> None:
    """A new launch goes on from some iterations before, or where it was, perhaps with another plan."""
    run.tell(ArgumentsDumped(values={"iteration": str(run.at), "save_interval": str(run.random.choice((50, 1000)))}))
    run.iteration = max(0, run.iteration - run.interval * run.random.choice((0, 1, 30)))
    run.rate = run.random.choice((run.rate, run.rate, 3e-4))
    run.one()
    while run.state.highest_iteration != run.iteration:
        run.one()


def save(run: Run) -> None:
    """It may be handed over, it may never become whole."""
    run.tell(CheckpointSaveStarted(iteration=run.iteration))
    if run.random.random() < 0.4:
        run.tell(CheckpointSaveScheduled(iteration=run.iteration))
    if run.random.random() < 0.6:
        run.tell(CheckpointSaved(iteration=run.iteration))


def overflow(run: Run) -> None:
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


def late(run: Run) -> None:
    """Another rank tells of an overflow when the line with the new scale has come."""
    scale = run.line.get("loss_scale")
    run.one()
    if scale and scale > 0:
        run.tell(OverflowSkipped(loss_scale=2 * scale, new_loss_scale=scale))


def total(run: Run) -> None:
    """The plan is another, which only the lines tell."""
    run.line["train_iterations"] = run.random.choice((None, 10**8, 2 * 10**8))


def scale(run: Run) -> None:
    """The scale is anything."""
    run.line["loss_scale"] = run.random.choice((None, -1.0, 0.5, 1.0, 2.0, 4.0, 16.0, 65536.0, 2.0**32))


def report(run: Run) -> None:
    """Of memory; nearly full at times."""
    used = run.random.randrange(30 * GIB, 81 * GIB)
    run.tell(MemoryReported(allocated_bytes=used, host_used_ratio=run.random.choice((None, 0.5, 0.97))))


def norms(run: Run) -> None:
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


def pace(run: Run) -> None:
    """A launch that prints every so many iterations; an interval that grows within one is taken for lost lines."""
    run.interval = run.random.choice((1, 1, 5, 20, 100, 700))
    run.seconds = run.random.choice((0.05, 5.0, 40.0))
    restart(run)


def odd(run: Run) -> None:
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


EVENTS: tuple[Callable[[Run], None], ...] = (
    restart, save, save, overflow, overflow, late, total, scale, report, norms, pace, odd,
)  # fmt: skip
