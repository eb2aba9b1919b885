"""The steps of a loop without a format count; what is no step of it counts as progress of the set-up while its losses
move; what else repeats hides no hang.
"""

from collections.abc import Callable, Iterator

import msgspec
import pytest

from megatron_monitor.run.state import RunState
from tests.monitor.playing import Played, play

HOUR = 3600.0
BUDGET = 7200.0
SET_UP = (
    "[2026-02-03 04:00:00,250] [INFO] [launch.py:162:main] dist_world_size=8\n"
    "[2026-02-03 04:00:00,310] [INFO] [comm.py:637:init_distributed] cdb=None\n"
)
Timed = Iterator[tuple[float, str]]
OWN: dict[str, Callable[[int], str]] = {
    "bars between the names": lambda n: f"it {n:>6d} ~ {0.4 + n % 7 / 99:.2f}s ~ train/loss {2.31 + n % 13 / 99:.2f}\n",
    "a logger's": lambda n: f"2026-02-03 04:10:00,001 - train - INFO - Step {n} loss: {33.2 / n} token_entropy: 0.7\n",
    "a comma behind the name": lambda n: f"TRAIN in epoch 0 , step {50 * n}, loss = {2.4 + 1 / n:.11f}\n",
    "the loss before the step": lambda n: f"loss={3 - n / 1000:.4f} lr=1e-4 iter={n}\n",
    "json": lambda n: f'{{"t": {41 * n}, "step": {n}, "train": {{"loss": {3 - n / 1000:.4f}}}}}\n',
    "a tensor": lambda n: f"Batch {n} Loss: tensor({3 - n / 1000:.4f}, device='cuda:0', grad_fn=<NllLossBackward0>)\n",
    "an epoch that begins anew each ten lines": lambda n: f"batch {n % 10} of it: loss {3 - n / 1000:.4f}\n",
    "each rank's": lambda n: "".join(f"[rank{r}]: upd {n} took 0.4s loss {3 - n / 999 + r:.4f}\n" for r in range(8)),
}  # fmt: skip
UNREAD: dict[str, Callable[[int], str]] = {
    "an epoch alone": lambda n: f"Epoch {1 + n // 200} - Batch loss: {3 - n % 200 / 1000:.4f}\n",
    "an evaluation": lambda n: f"Evaluation at step {n}: loss {3 - n / 1000:.4f}\n",
}


def each(text: Callable[[int], str], begin: float, until: float, every: float) -> Timed:
    """A text for each of these instants, numbered from 1."""
    return ((begin + every * n, text(n)) for n in range(1, int((until - begin) / every) + 1))


def hung_at(played: Played) -> float:
    """When the only hang was told."""
    reported = played.firing("hang")
    assert reported.severity == "critical"
    return reported.time


@pytest.mark.parametrize("form", OWN)
def test_the_steps_of_a_loop_count_and_its_hang_is_told(form: str) -> None:
    """Five hours of a home-grown form behind a launcher's lines: nothing is told before the steps stop."""
    steps = list(each(OWN[form], 100.3, 5 * HOUR, 61.0))
    played = play([(0.5, SET_UP), *steps], after=3 * HOUR)
    assert played.state.iterations_total >= 0.9 * len(steps)
    assert steps[-1][0] < hung_at(played) <= steps[-1][0] + BUDGET + 1.0
    assert "hung in training after iteration" in played.firing("hang").summary


@pytest.mark.parametrize("form", UNREAD)
def test_a_loop_that_nobody_reads_is_not_hung_in_its_set_up(form: str) -> None:
    """Five hours of losses: nothing is told, not even that it is late. Two hours after the last one the hang is told,
    and said that it may be no set-up.
    """
    steps = list(each(UNREAD[form], 100.3, 5 * HOUR, 61.0))
    played = play([(0.5, SET_UP), *steps], after=3 * HOUR)
    assert not played.state.iterations_total, "the form is read by now: another one must stand here"
    assert hung_at(played) == pytest.approx(steps[-1][0] + BUDGET, abs=1.0)
    assert "hung in starting or in steps whose format is unknown" in played.firing("hang").summary


def test_a_loop_behind_no_set_up_may_end_without_a_word() -> None:
    """Somebody's script, of which a checkpoint alone is read: nobody knows that it is to go on."""
    epochs = each(lambda n: f"2026-02-03 04:{n:02d}:00 INFO: Epoch {n}: Train Loss: {1 / n:.6f}\n", 0.0, 600.0, 30.0)
    played = play([*epochs, (601.0, "2026-02-03 04:30:00 INFO: Checkpoint saved: epoch20.pth\n")], after=5 * HOUR)
    assert not played.of("hang", display_only=True)


REPEATED: dict[str, tuple[float, Callable[[int], str]]] = {
    "BLOOM's hourly status line": (HOUR, lambda n: f"PULSE: tr11-176B-ml is running for {n} hours since 2026-02-03\n"),
    "a heartbeat with its number": (11.0, lambda n: f"heartbeat {n} ok\n"),
    "ticks and seconds": (31.0, lambda n: f"[{30 * n}s] tick {n}: elapsed {30 * n} s, pid 4242, port 29500\n"),
    "the number of a poll": (19.0, lambda n: f"iteration {n}: waiting for 3 of 64 nodes, {20 * n} s\n"),
    "a poll of the network": (19.0, lambda n: f"ping iteration {n}: packet loss {n % 7}%\n"),
    "the last step again": (59.0, lambda n: f"status: step 1200 | loss 2.31 | up {60 * n} s\n"),
    "the seconds since the last step": (59.0, lambda n: f"loss 2.31, seconds since the last step {60 * n}\n"),
    "the last step of each rank": (
        59.0, lambda n: "".join(f"[rank{r}]: step {5 + r % 2} loss {2 + r / 9:.3f} up {n} min\n" for r in range(64)),
    ),
    "a bar that stands": (
        11.0, lambda n: f"run 3:  12%|#2  | 12/100 [{n // 6:02d}:{n % 6}0<?, 9.1s/it, step=12, loss=2.31]\r",
    ),
    "no finite loss": (59.0, lambda n: f"it {n} ~ loss nan\n"),
    "a step that names no loss": (59.0, lambda n: f"step {n}\n"),
    "a loss that names no step": (59.0, lambda n: f"loss scaler checked {n} times, loss {n}\n"),
    "NCCL's warning": (59.0, lambda n: f"n1:77:91 [0] NCCL WARN Call to connect returned Timeout, retry {n}\n"),
}  # fmt: skip


@pytest.mark.parametrize("what", REPEATED)
def test_what_repeats_hides_no_hang_of_the_set_up(what: str) -> None:
    """The log grows all the time, and the hang is told at the instant at which it is told of a silent log. (Of 64 ranks
    each one's first line is new, and so is a bar when it is drawn first: one repetition later.)
    """
    every, text = REPEATED[what]
    silent = play([(0.5, SET_UP)], after=6 * HOUR)
    assert hung_at(silent) == pytest.approx(0.5 + BUDGET, abs=0.01)
    reported = hung_at(play([(0.5, SET_UP), *each(text, 1.7, 6 * HOUR, every)]))
    once = what in ("the last step of each rank", "a bar that stands")
    assert reported == (pytest.approx(1.7 + every + BUDGET, abs=0.01) if once else hung_at(silent))


@pytest.mark.parametrize("what", REPEATED)
def test_nor_that_of_a_loop_that_had_begun(what: str) -> None:
    """The same behind steps that nobody reads: what repeats may cost one line, which is another one than the step's."""
    steps = list(each(OWN["bars between the names"], 100.3, 2 * HOUR, 61.0))
    last, (every, text) = steps[-1][0], REPEATED[what]
    reported = hung_at(play([(0.5, SET_UP), *steps, *each(text, last + 0.3, last + 4 * HOUR, every)]))
    assert reported <= last + every + BUDGET + 1.0


def test_beside_steps_that_are_read_a_guess_is_no_progress() -> None:
    """A loop that is read hangs, and another program's own steps go on: it is told as without them."""
    read = "".join(f"step {n}/500 | loss {3 - n / 100:.4f} | lr 1e-04\n" for n in range(1, 4))
    log = [(0.5, SET_UP), *((10.0 * n, line) for n, line in enumerate(read.splitlines(keepends=True), 1))]
    single = play(log, after=6 * HOUR)
    assert single.state.iterations_total
    second_job = play([*log, *each(OWN["json"], 31.0, 6 * HOUR, 61.0)])
    assert hung_at(second_job) == hung_at(single)


def test_its_pace_teaches_nothing_of_the_set_up_and_the_state_can_be_saved() -> None:
    """Silences of a loop are none of its set-up. What is remembered is bounded; states without it load."""
    played = play([(0.5, SET_UP), *each(UNREAD["an epoch alone"], 100.3, 3 * HOUR, 61.0)])
    assert played.state.learned.silences.values("starting") == []
    assert len(played.state.attempt.inferred) == 64
    saved = msgspec.json.decode(msgspec.json.encode(played.state.attempt))
    again = msgspec.convert(saved, type(played.state.attempt))
    assert again.inferred == played.state.attempt.inferred
    del saved["inferred"]
    assert msgspec.convert(saved, type(RunState(name="run").attempt)).inferred == []
