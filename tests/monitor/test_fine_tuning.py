"""Fine-tunings as people run them: scripts one behind another in nohup.out, bars of notebooks, saves without steps."""

from collections.abc import Iterator

import pytest

from tests.monitor.playing import play

OOM = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 90, in <module>\n'
    "    trainer.train()\n"
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has 24 GiB\n"
)


def clock(seconds: float) -> str:
    """As tqdm writes a time."""
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def bars(begun: float, steps: int, total: int, *, drawn: str = "|#   |") -> Iterator[tuple[float, str]]:
    """A bar without a name, at 12 s a step; `drawn`: what stands between the share and the count."""
    for step in range(steps + 1):
        passed = 12.0 * step
        share = f"\r {100 * step // total:2d}%{drawn} {step}/{total}"
        yield begun + passed, f"{share} [{clock(passed)}<{clock(12 * (total - step))}, {'12.00' if step else '?'}s/it]"


@pytest.mark.parametrize("drawn", ["|#   |", "|          |", ""])
def test_a_bar_of_which_nothing_is_drawn(drawn: str) -> None:
    """A notebook's shell leaves out what is drawn: its steps count as any bar's."""
    state = play([*bars(0.0, 40, 90, drawn=drawn), (481.0, "\n")]).state
    assert (state.attempt.last_iteration, state.iterations_total) == (40, 40)
    assert state.attempt.pace.baseline == 12.0


def test_a_bar_that_was_drawn_twice_at_short_distance() -> None:
    """... tells nothing of how many steps lie between two: where it is drawn each 25 no gap of 25 is a hang."""

    def logged() -> Iterator[tuple[float, str]]:
        for step in sorted({*range(25, 1001, 25), 447}):
            at = 10.0 * step
            yield at, f"\r {step // 10:2d}%|#   | {step}/1000 [{clock(at)}<{clock(10000 - at)}, 10.00s/it]\n"
            if step % 25 == 0:
                yield at, f"{{'loss': 1.2, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': {step / 500}}}\n"

    played = play(logged())
    assert (played.kinds(), played.state.attempt.last_iteration) == (set(), 1000)


def test_saves_alone() -> None:
    """Of a program whose steps no line tells silence between two saves means nothing; its crash is told."""
    saves = [(7200.0 * epoch, f"Saving checkpoint at {epoch} epochs\n") for epoch in range(1, 6)]
    assert play(saves, after=20000.0).kinds() == set()
    assert "crash" in play([*saves, (36500.0, OOM)], after=300.0).kinds()


def test_a_watchdog_that_ends_as_it_should() -> None:
    """... is no failure, and one that hears of a kernel's error is not its cause."""
    words = "[{} ProcessGroupNCCL.cpp:844] [Rank 0] NCCL watchdog thread terminated {}\n"
    trained = [*bars(0.0, 90, 90), (1081.0, "\n")]
    assert play([*trained, (1090.0, words.format("I", "normally"))], after=900.0).kinds() == set()
    asserted = words.format("E", "with exception: CUDA error: device-side assert triggered")
    assert play([*trained[:60], (720.0, "\n" + asserted)], after=900.0).firing("crash").evidence["failure"] == (
        "cuda_error"
    )
