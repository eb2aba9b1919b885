"""History in bounded memory: lows, highs, means and counts survive every merge; it can be saved and cut."""

import io
import json
import math
import statistics
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.charts.history import BUCKETS, SERIES, History, Track
from megatron_monitor.parsers.events import (
    ArgumentsDumped,
    CheckpointSaved,
    CheckpointSaveStarted,
    IterationLogged,
    LogEvent,
    ValidationLogged,
)
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.run.derived import computed_tflops
from megatron_monitor.run.fold import fold
from megatron_monitor.run.state import RunState
from megatron_monitor.serve.past import columns, history_json
from megatron_monitor.simulate import Scenario, write
from tests.plain import decode, encode
from tests.simulated import WITH_MEGATRON_SETUP

VALUES = st.one_of(st.none(), st.floats(width=32), st.just(1e300))


def track_of(values: list[float | None], attempt_at: int | None = None) -> Track:
    """One series `x`; a second attempt begins at row `attempt_at`."""
    track = Track()
    for number, value in enumerate(values, start=1):
        attempt = int(attempt_at is not None and number >= attempt_at)
        track.add((number, float(number), attempt, value), ("x",))
    return track


@given(st.lists(VALUES, min_size=1, max_size=40), st.integers(1, 300))
def test_merging_loses_no_low_no_high_and_no_mean(values: list[float | None], times: int) -> None:
    """Whatever was merged, the extremes and the mean of all are those of the rows; absent and NaN are in none."""
    rows = values * times
    track = track_of(rows)
    got = columns(track, ("x",))
    kept = [value for value in rows if value is not None and abs(value) <= 3e38]
    assert len(got["iteration"]) <= BUCKETS + 1
    assert got["iteration"][-1] == len(rows)
    assert got["first_iteration"][0] == 1
    assert sum(got["not_finite"]) == sum(value is not None and not abs(value) <= 3e38 for value in rows)
    if not kept:
        assert "x" not in got["series"]
        return
    figures = got["series"]["x"]
    lows = [low for low in figures.get("low", figures["mean"]) if low is not None]
    highs = [high for high in figures.get("high", figures["mean"]) if high is not None]
    assert math.isclose(min(lows), min(kept), rel_tol=1e-6)
    assert math.isclose(max(highs), max(kept), rel_tol=1e-6)
    assert all(low <= high for low, high in zip(lows, highs, strict=True))
    closed = len(rows) - len(track.open)
    if max(abs(value) for value in kept) < 1e30:  # float32 holds no larger sums
        past = [value for value in rows[:closed] if value is not None and abs(value) <= 3e38]
        figures = array("f", bytes(track.series.get("x", b"")))
        assert sum(figures[3::4]) == len(past)
        size = sum(abs(value) for value in past)
        assert math.isclose(sum(figures[2::4]), sum(past), rel_tol=1e-5, abs_tol=1e-5 * size + 1e-30)


def test_two_launches_are_never_one_bucket() -> None:
    """Buckets of two attempts are never merged: no step was trained with a batch size between theirs."""
    track, rows = Track(), 0
    for attempt, many in enumerate((701, 33, 1501, 7, 1200)):
        for number in range(many):
            track.add((number, float(rows), attempt, float(2**attempt)), ("x",))
            rows += 1
    got = columns(track, ("x",))
    assert track.width == 16
    assert len(track) < BUCKETS
    assert [got["attempt"].count(attempt) for attempt in range(5)] == [44, 3, 95, 1, 75]
    assert got["series"]["x"]["low"] == got["series"]["x"]["high"] == [2.0**attempt for attempt in got["attempt"]]
    crowded = track_of([])
    for number in range(3 * BUCKETS):  # a crash loop: memory is bounded all the same
        crowded.add((number, None, number, 1.0), ("x",))
    assert len(crowded) <= BUCKETS


def test_a_client_gets_only_what_is_new() -> None:
    """With the width and the closed buckets it has; everything again once the width has changed."""
    history = History()
    for number in range(1, 101):
        history.add_step((number, None, 0, *([float(number)] * len(SERIES))))
    first = history_json(history)["steps"]
    assert (first["start"], first["closed"], len(first["iteration"])) == (0, 99, 100)
    for number in range(101, 104):
        history.add_step((number, None, 0, *([float(number)] * len(SERIES))))
    more = history_json(history, first["width"], first["closed"])["steps"]
    assert (more["start"], more["iteration"]) == (99, [100, 101, 102, 103])
    assert more["series"]["lm_loss"] == {"mean": [100.0, 101.0, 102.0, 103.0]}
    assert history_json(history, 2, 99)["steps"]["start"] == 0
    assert history_json(history, 1, 5000)["steps"]["start"] == 0


def test_what_seldom_changes_is_sent_when_it_has() -> None:
    """The key of the last answer keeps validation, phases and restarts at home, until one of them is new."""
    history = History()
    key = history_json(history)["key"]
    history.add_step((1, None, 0, *([1.0] * len(SERIES))))
    assert set(history_json(history, key=key)) == {"key", "steps"}
    for change in (
        lambda: history.add_validation("v", (1, None, 0, 2.0)),
        lambda: history.add_validation("v", (2, None, 0, 2.0)),
        lambda: history.add_phase(5.0, 1, "saving"),
        lambda: history.add_restart(1, 2, None),
    ):
        change()
        got = history_json(history, key=key)
        assert set(got) == {"key", "steps", "validation", "phases", "restarts"}
        assert got["key"] != key
        key = got["key"]
        assert "phases" not in history_json(history, key=key)


def step(number: int, seconds: float = 2.0, logged_at: str | None = None) -> LogEvent:
    """An iteration."""
    event = IterationLogged(
        iteration=number, seconds_per_iteration=seconds, lm_loss=3.0 - number / 100, global_batch_size=8,
        grad_norm=math.nan if number == 5 else 1.0, logged_at=logged_at,
    )  # fmt: skip
    return LogEvent(number, "r", event, "line")


def test_the_fold_fills_it_and_it_survives_a_restart_of_the_monitor() -> None:
    """Steps, phases, validation, a restart; the same after it was saved and read back."""
    state = RunState(name="run")
    at = 1000.0
    for number in range(1, 11):
        at += 2
        fold(state, step(number), "a", at, True)
    fold(state, LogEvent(11, "r", CheckpointSaveStarted(iteration=10), ""), "a", at + 1, True)
    fold(state, LogEvent(12, "r", CheckpointSaved(iteration=10), ""), "a", at + 4, True)
    fold(
        state,
        LogEvent(13, "r", ValidationLogged(dataset="v", iteration=10, losses={"lm loss": 2.5}), ""),
        "a",
        at + 5,
        True,
    )
    for number in range(7, 13):
        at += 2
        fold(state, step(number, 3.0), "a", at + 10, True)
    state = decode(encode(state), RunState)
    fold(state, step(13, 3.0), "a", at + 12, True)
    got = history_json(state.history.frozen())
    assert got["steps"]["iteration"] == [*range(1, 11), *range(7, 14)]
    assert got["steps"]["attempt"] == [0] * 10 + [1] * 7
    assert got["steps"]["series"]["lm_loss"]["mean"][0] == 2.99
    assert got["steps"]["series"]["grad_norm"]["mean"][4] is None
    assert sum(got["steps"]["not_finite"]) == 1
    assert got["steps"]["series"]["seconds_per_iteration"]["mean"][1] == 2.0
    assert got["restarts"] == [{"iteration": 7, "after_iteration": 10, "time": 1032.0}]
    assert got["validation"]["v"]["series"]["loss"]["mean"] == [2.5]
    assert [phase["phase"] for phase in got["phases"]][2:5] == ["saving", "training", "evaluating"]
    json.dumps(got, allow_nan=False)


def used(lines: list[tuple[int, int, int | None]]) -> dict[str, list[float]]:
    """What was used up by iterations of (number, batch size, samples as printed), 2 s each."""
    state = RunState(name="run")
    values = {"world_size": "4", "seq_length": "100", "train_iters": "50"}
    fold(state, LogEvent(0, "r", ArgumentsDumped(values=values), ""), "a", 0.0, False)
    for at, (number, batch, samples) in enumerate(lines):
        event = IterationLogged(
            iteration=number, seconds_per_iteration=2.0, lm_loss=3.0 - at / 10, global_batch_size=batch,
            consumed_samples=samples,
        )  # fmt: skip
        fold(state, LogEvent(at, "r", event, "line"), "a", float(at), False)
    return history_json(state.history)["steps"]["axes"]


def test_what_was_used_up_by_each_iteration() -> None:
    """Samples and tokens as printed through a ramp, counted on where they are not; GPU-hours go on over a relaunch."""
    ramp = used([(1, 8, 8), (2, 8, 16), (3, 16, 32), (4, 16, 48)])
    assert ramp["samples"] == [8, 16, 32, 48]
    assert ramp["tokens"] == [800, 1600, 3200, 4800]
    assert ramp["gpu_hours"] == pytest.approx([hours * 8 / 3600 for hours in (1, 2, 3, 4)])
    silent = used([(5, 8, None), (6, 8, None), (7, 16, None)])
    assert silent["samples"] == [40, 48, 64]
    assert silent["tokens"] == [4000, 4800, 6400]
    back = used([(1, 8, None), (2, 8, None), (3, 8, None), (2, 8, None), (3, 8, None)])
    assert back["samples"] == [8, 16, 24, 16, 24]
    assert back["gpu_hours"] == pytest.approx([hours * 8 / 3600 for hours in (1, 2, 3, 4, 5)])


def test_a_launch_with_other_arguments_says_which() -> None:
    """Those that say what is trained: no paths, nothing that is off; an attempt that changes nothing says nothing."""
    state, at = RunState(name="run"), 0.0
    dump = {"lr": "0.0003", "load": "/a", "fp8": "None", "bf16": "True", "train_iters": "50"}
    attempts = (dump, {**dump, "lr": "0.0001", "load": "/b", "fp8": "hybrid", "bf16": "False"}, {**dump, "seed": "5"})
    for attempt, values in enumerate(attempts):
        for event in (
            ArgumentsDumped(values=values),
            *(
                IterationLogged(iteration=n, seconds_per_iteration=2.0, lm_loss=3.0 - at - n)
                for n in (attempt + 1, attempt + 2)
            ),
        ):
            at += 1.0
            fold(state, LogEvent(int(at), "r", event, "line"), "a", at, True)
    state = decode(encode(state), RunState)
    assert state.attempt.arguments == {"lr": "0.0003", "bf16": "True", "train_iters": "50", "seed": "5"}
    first, second = history_json(state.history)["changes"]
    assert (first["iteration"], second["iteration"]) == (2, 3)
    assert sorted(first["arguments"]) == [("bf16", "True", ""), ("fp8", "", "hybrid"), ("lr", "0.0003", "0.0001")]
    assert ("seed", "", "5") in second["arguments"]


def test_times_are_the_logs_own_and_its_zone_is_found_while_it_comes_live() -> None:
    """A backlog without printed times has none; printed ones are brought to our clock by whole quarters of an hour."""
    silent = RunState(name="run")
    fold(silent, step(1), "a", 5.0, False)
    assert history_json(silent.history)["steps"]["time"] == [None]
    state = RunState(name="run")
    fold(state, step(1, logged_at="2026-01-01T00:00:00"), "a", 1.0, False)
    (before,) = history_json(state.history)["steps"]["time"]
    fold(state, step(2, logged_at="2026-01-01T00:00:02"), "a", before + 2 + 3600 + 0.7, True)
    assert history_json(state.history)["steps"]["time"] == [before + 3600, before + 3602]


def test_a_step_reported_twice_is_one_row() -> None:
    """DeepSpeed prints a step in two lines: the second adds to the row of the first."""
    history = History()
    row = (1, None, 0, *([None] * len(SERIES)))
    history.add_step(row)
    history.add_step((1, None, 0, 2.0, *row[4:]))
    assert history_json(history)["steps"]["series"] == {"lm_loss": {"mean": [2.0]}}


@pytest.mark.parametrize("format_name", sorted(WITH_MEGATRON_SETUP))
def test_every_format_has_its_charts(format_name: str) -> None:
    """Each iteration of a simulated log is a row, with its time and loss; TFLOPs where the log lets them be known."""
    stream = io.BytesIO()
    write(Scenario(format=format_name, iterations=40, save_interval=0, eval_interval=20, seed=2), stream)
    state = RunState(name=format_name)
    reader = SourceReader()
    for entry in [*reader.feed(stream.getvalue()), *reader.flush()]:
        fold(state, entry, "a", 1000.0, False)
    got = history_json(state.history)
    assert got["steps"]["iteration"] == list(range(1, 41))
    assert got["restarts"] == []
    series = got["steps"]["series"]
    seconds = [value for value in series["seconds_per_iteration"]["mean"] if value is not None]
    assert len(seconds) >= 36
    assert 104.0 < statistics.median(seconds) < 107.0
    if format_name != "deepspeed":  # the engine alone prints no loss here
        losses = series["lm_loss"]["mean"]
        assert len(losses) == 40
        assert losses[-1] < losses[0]
    if format_name in ("bigscience", "megatron-lm", "microsoft", "megatron-lm-2021"):
        tflops, computed = series["tflops"]["mean"][-1], computed_tflops(state)
        assert 110 < tflops < 160
        if format_name == "megatron-lm-2021":  # it prints none: they are those of the figures
            assert computed is not None
            assert math.isclose(tflops, computed[1], rel_tol=1e-6)
    if format_name not in ("deepspeed",):
        (validation, *_) = got["validation"].values()
        assert validation["iteration"] == [20, 40]
