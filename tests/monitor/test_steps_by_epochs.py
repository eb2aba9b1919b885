"""Trainers that count within an epoch: their steps are those of the run, and what stands between is no hang."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from megatron_monitor.parsers.reader import SourceReader
from tests.monitor.replayed import replayed


def drawn(name: str, done: int, total: int, passed: float, figures: str = "") -> str:
    """A bar of tqdm, drawn again."""
    clock = f"{int(passed) // 60:02}:{int(passed) % 60:02}"
    return f"\r{name}: {100 * done // total:3}%|##  | {done}/{total} [{clock}<00:30,  0.17it/s{figures}]"


def lightning(figures: str) -> Iterator[str]:
    """Two epochs of 40 steps of 6 s, each with an evaluation of 30 s behind it."""
    for epoch in range(2):
        for step in range(1, 41):
            yield drawn(f"Epoch {epoch}", step, 40, 6 * step, f", {figures}=2.{500 - step}")
        for batch in range(1, 31):
            yield "\n" + drawn("Validation DataLoader 0", batch, 30, batch) + "\x1b[A"
        yield drawn(f"Epoch {epoch}", 40, 40, 270, f", {figures}=2.46, val_loss=2.4")
        yield drawn(f"Epoch {epoch}", 0, 40, 0, f", {figures}=2.46, val_loss=2.4")  # as Lightning 1 does
        yield drawn(f"Epoch {epoch + 1}", 0, 40, 0, f", {figures}=2.46, val_loss=2.4") + "\n"
    yield "`Trainer.fit` stopped: `max_epochs=2` reached.\n"


def clip() -> Iterator[str]:
    """open_clip: 2048 samples a step, a line each 20 steps."""
    begin = datetime(2026, 3, 1, 10, tzinfo=UTC)
    sizes = {"accum_freq": 1, "batch_size": 256, "world_size": 8}
    yield from (f"2026-03-01,09:59:00 | INFO |   {name}: {size}\n" for name, size in sizes.items())
    for line in range(80):
        epoch, step = divmod(20 * line, 800)
        yield (
            f"{begin + timedelta(seconds=10 * line):%Y-%m-%d,%H:%M:%S} | INFO | Train Epoch: {epoch} "
            f"[{(step + 1) * 2048:8}/1638400 ({step // 8}%)] Data (t): 0.104 Batch (t): 0.512, 4000.0/s, 500.0/s/gpu "
            "LR: 0.000500 Logit Scale: 14.286 Contrastive_loss: 8.1021 (8.3022) Loss: 8.1021 (8.3022)\n"
        )


def chat() -> Iterator[str]:
    """DeepSpeed-Chat: two engines beside the loop, whose second epoch begins at 0."""
    engine = (
        "[2026-03-01 08:{:02}:00,100] [INFO] [logging.py:96:log_dist] [Rank 0] step={}, skipped=0, lr=[9e-6], mom=[]\n"
    )
    for epoch in range(2):
        for step in range(30):
            if step % 10 == 9:
                yield 2 * engine.format(30 * epoch + step, 30 * epoch + step + 1)
            yield f"epoch: {epoch}|step: {step}|ppo_ep: 1|act_loss: 0.02|cri_loss: 0.1|unsuper_loss: 0.0\n"


def played(lines: Iterator[str]) -> tuple[list[str], dict[str, Any]]:
    """Incidents that were told, and the summary."""
    reader = SourceReader()
    entries = [*reader.feed("".join(lines).encode()), *reader.flush()]
    runs, reported = replayed({"run": entries})
    return [item.incident for item in reported], runs["run"].summary()


@pytest.mark.parametrize(
    ("lines", "iterations", "seconds"),
    [
        (lightning("v_num=3, train_loss"), 80, 6.0),
        (lightning("train_loss_step"), 80, 6.0),
        (clip(), 1581, 0.5),
        (chat(), 60, None),
    ],
    ids=["lightning", "without a version", "open_clip", "deepspeed-chat"],
)
def test_each_step_counts_once(lines: Iterator[str], iterations: int, seconds: float | None) -> None:
    """... at its pace, and nothing is told."""
    reported, figures = played(lines)
    assert (reported, figures["iterations"], figures["restarts"]) == ([], iterations, 0)
    assert figures.get("median_seconds_per_iteration") == seconds


def test_a_bar_by_epochs_of_another_program() -> None:
    """... names no step of a run."""
    reader = SourceReader()
    entries = [*reader.feed("".join(lightning("accuracy")).encode()), *reader.flush()]
    assert "iteration" not in {entry.event.kind for entry in entries}


@pytest.mark.parametrize(("silent", "reported"), [(1500, []), (2000, ["hang", "hang"])])
def test_an_own_loop_that_stands_for_a_while(silent: int, reported: list[str]) -> None:
    """It may evaluate or save, of which no line tells. A longer silence is a hang, which ends."""
    begin = datetime(2026, 3, 1, 8, 0, tzinfo=UTC)
    steps = range(10, 2000, 10)
    late = {step: silent * (step > 1000) for step in steps}
    lines = (
        f"{begin + timedelta(seconds=step + late[step]):%Y-%m-%d %H:%M:%S},000 net INFO: Iters: {step}/80000 || "
        f"Lr: 0.0001 || Loss: {3.0 - step / 8000:.4f} || Cost Time: 0:00:09 || Estimated Time: 4:55:31\n"
        for step in steps
    )
    found, figures = played(lines)
    assert (found, figures["iterations"]) == (reported, 1990)
