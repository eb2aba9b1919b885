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

from monitor.run.past import Past
from parsers.events import (
    ArgumentsDumped,
    CheckpointSaved,
    CheckpointSaveScheduled,
    CheckpointSaveStarted,
    MemoryReported,
)
from tests.monitor.detectors.foreseen import foresee, see, steps_of
from tests.monitor.detectors.random_run import EVENTS, GIB, NAMES, Run, late


@pytest.mark.parametrize("seed", range(10))
def test_the_same_memory_as_line_by_line(seed: int) -> None:
    """Whatever came before, and wherever the stretch is cut."""
    run = Run(seed, loss_scale=random.Random(seed).choice((None, 1.0, 65536.0, 65536.0, 2.0**32)))
    run.line["dialect"] = run.random.choice(("megatron-lm", "somebody"))
    pick = run.random
    for _ in range(6):
        for _ in range(pick.choice((1, 1, 2, 3))):
            pick.choice(EVENTS)(run)
        rows, most = pick.choice(((5, 1), (12, 4), (30, 30), (70, 90)))
        run.calm(rows, lambda _, most=most: pick.randint(1, most))  # type: ignore[misc]
    assert run.foreseen


def test_random_runs_reach_all_that_the_detectors_keep() -> None:
    """The seeds above are worth their time: taken together, what they foresee is whole, part and nothing, and the
    memories were in every state that matters.
    """
    reached = Counter[str]()
    for seed in range(24):
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
    for _ in range(2):
        run.calm(200)
    assert run.lines - run.foreseen <= 12


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


def test_what_a_restart_showed_ends_by_any_clock() -> None:
    """Something else was written hours later; the lines after it are of another file, and of before."""
    run = Run(4)
    for _ in range(30):
        run.one()
    run.tell(ArgumentsDumped(values={"iteration": "1"}))
    run.rate = 3e-4
    run.one()
    run.calm(3)
    run.at += 7 * 3600.0
    run.tell(MemoryReported(allocated_bytes=GIB))
    run.at -= 7 * 3600.0
    assert run.memory("resume_discontinuity").found
    run.calm(3)
    assert not run.memory("resume_discontinuity").found


def test_what_an_overflow_told_late_is_forgotten_with_the_next_line() -> None:
    """The first line after it is taken by itself."""
    run = Run(8, loss_scale=65536.0)
    for _ in range(80):
        run.one()
    late(run)
    run.norm = lambda row: 0.1 + row / 1000
    assert run.memory("loss_scale_collapse").told == 1.0
    ahead = [run.next_line() for _ in range(3)]
    for name in NAMES:
        foreseen = foresee(run.state, [event for event, _ in ahead], [at for _, at in ahead], (name,))
        assert foreseen == (0 if name in ("loss_scale_collapse", "overflow_storm") else 3)
    see(run.state, *ahead[0], NAMES)
    assert run.memory("loss_scale_collapse").told == 0.0


@pytest.mark.parametrize("interval", [50, 100, 500, 900])
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
    assert storm.firing
    assert storm.onset == begun + 14


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
