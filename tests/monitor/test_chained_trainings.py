"""Trainings that a script starts one after the other into one log, in torchtitan's format: how each ended, when, and
what may be compared. After the orchestrators' logs of a public repository.
"""

import io
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from megatron_monitor.config import Config
from megatron_monitor.incidents import Transition
from megatron_monitor.reading import dated_events
from tests.monitor.playing import play
from tests.monitor.replayed import Ended
from tests.monitor.replayed import replayed as of_sources

BEGAN = datetime(2026, 5, 3, 18, 0, 0, tzinfo=UTC)


def stamp(at: float) -> str:
    """Seconds since the beginning as torchtitan prints them."""
    return f"{BEGAN + timedelta(seconds=at):%Y-%m-%d %H:%M:%S,%f}"[:-3]


def says(at: float, text: str) -> tuple[float, str]:
    """A line of torchtitan."""
    return at, f"[rank0]:[titan] {stamp(at)} - root - INFO - {text}\n"


def script(at: float, words: str) -> tuple[float, str]:
    """A line that the job's script prints with `date`."""
    return at, f"[{BEGAN + timedelta(seconds=at):%a %b %e %H:%M:%S} UTC 2026] {words}\n"


def step(at: float, number: int, loss: float = 3.0) -> tuple[float, str]:
    """A step line."""
    figures = f"loss: {loss:8.5f}  grad_norm:  0.1250  memory: 23.75GiB(75.73%)  tps: 1,774  tflops: 13.24  mfu: 4.24%"
    return says(at, f"step: {number:2d}  {figures}")


def attempt(
    begin: float, first: int, count: int, seconds: float, *, batch: int | None = 128, tensor: int = 1, every: int = 1
) -> Iterator[tuple[float, str]]:
    """An attempt from its set-up to its last step. Without `batch` it tells nothing of its sizes."""
    yield script(begin, "pretrain START")
    if batch is not None:
        mesh = f"pp=1, dp_replicate=1, dp_shard=8, cp=1, tp={tensor}, ep=1, etp=1"
        yield says(begin + 5, f"Building device mesh with parallelism: {mesh}")
        yield says(begin + 6, "Model kimi_linear 447m size: 1,409,320,896 total parameters")
        sizes = f"local batch size 16, global batch size {batch}, gradient accumulation steps 1, sequence length 260"
        yield says(begin + 7, f"Trainer is initialized with {sizes}, total steps 7500 (warmup 200)")
    yield says(begin + 10, f"Training starts at step {first}")
    rng, now = random.Random(first), begin + 20.0
    for number in range(count):
        now += seconds * every * (1 + rng.gauss(0, 0.003))
        yield step(now, first + number * every + every - 1)


def replayed(timed: list[tuple[float, str]]) -> tuple[list[Transition], Ended]:
    """What `replay` says of the log, and its player."""
    data = "".join(text for _, text in timed).encode()
    runs, reported = of_sources({"log": dated_events(io.BytesIO(data), Config())})
    return reported, runs["run"]


def firing(reported: list[Transition]) -> list[str]:
    """Kinds, in their order."""
    return [item.incident for item in reported if item.status == "firing"]


def slowdowns(timed: list[tuple[float, str]]) -> list[Transition]:
    """What people are told of slowdowns while the log is followed."""
    return [item for item in play(timed).of("slowdown") if item.status == "firing"]


def test_a_shell_names_a_killed_command_with_all_its_arguments() -> None:
    """The launcher was killed: no hang of two hours. Near miss: the same words within a sentence are none."""
    before = list(attempt(0, 1, 60, 2.0))
    at = before[-1][0] + 1
    arguments = " ".join(f'--training.option_{number} "$VALUE_{number}"' for number in range(60))
    killed = (at, f"/home/me/launch.sh: line 233: 1621687 Killed                  torchrun {arguments} 2>&1\n")
    end = script(at, "[ERROR] pretrain failed; user can re-run with same dump_folder")
    reported, player = replayed([*before, killed, end, *attempt(at + 8000, 1, 20, 2.0)])
    assert firing(reported) == ["crash"]
    assert player.run.state.ends[0].failure == "killed"
    prose = (at, "a note of the user: Killed the last one because it was slow\n")
    reported, _ = replayed([*before, prose, *attempt(at + 8000, 1, 20, 2.0)])
    assert firing(reported) == ["hang"]


def test_work_is_lost_once() -> None:
    """To 60, from 41 to 50, and from 41 again: 20 and 10 iterations, not 20 twice."""
    log = [*attempt(0, 1, 60, 2.0), *attempt(200, 41, 10, 2.0), *attempt(300, 41, 30, 2.0)]
    state = play(log).state
    assert (state.restarts, state.lost_iterations_total, state.iterations_total) == (2, 30, 100)
    tenth = [
        *attempt(0, 1, 6, 2.0, every=10),
        *attempt(200, 41, 4, 2.0, every=10),
    ]  # the first line stands for 41 to 50
    assert play(tenth).state.lost_iterations_total == 20


@pytest.mark.parametrize("slow", [6, 45])
def test_what_is_critical_has_stood_for_half_a_minute(slow: int) -> None:
    """Iterations of 2.3 s take 3 s for 18 s on a shared node: nobody is woken. Near miss: for 130 s."""
    calm = list(attempt(0, 1, 200, 2.3))
    now, number, rest = calm[-1][0], 200, []
    for seconds in [3.0] * slow + [2.3] * 100:
        now, number = now + seconds, number + 1
        rest.append(step(now, number))
    reported = slowdowns([*calm, *rest])
    assert [item.severity for item in reported] == (["critical"] if slow > 6 else [])
    if reported:
        assert reported[0].iteration in range(208, 215)


@pytest.mark.parametrize(
    ("then", "said"),
    [({"batch": 120}, []), ({"tensor": 2}, []), ({}, ["slowdown"])],
    ids=["another batch size", "another layout", "the same"],
)
def test_launches_of_other_sizes_are_not_compared(then: dict[str, int], said: list[str]) -> None:
    """In the second one each step takes half as long again. It goes back to the beginning at whatever batch size."""
    log = [*attempt(0, 1, 60, 4.0), says(265, "Training completed"), *attempt(400, 1, 40, 6.0, **then)]
    assert firing(play(log).reported) == said  # nor is another batch size one that does not go on


@pytest.mark.parametrize(("first", "said"), [(1, []), (301, ["slowdown"])])
def test_a_chain_of_which_nothing_is_told(first: int, said: list[str]) -> None:
    """A log that keeps step lines alone: what begins anew is another training. Near miss: what goes on is the same."""
    log = [*attempt(0, 1, 30, 2.5, batch=None, every=10), *attempt(900, first, 30, 3.8, batch=None, every=10)]
    assert [item.incident for item in slowdowns(log)] == said


def test_the_save_after_the_last_step() -> None:
    """Of its end no line tells but that the training is completed; what a thread says at the interpreter's end is
    ignored by Python itself.
    """
    before = list(attempt(0, 1, 40, 4.0))
    at = before[-1][0]
    save = [
        says(at, "Saving the checkpoint (or staging if async is enabled)."),
        says(at, "Saving a full checkpoint at last step, step 40."),
        says(at + 30, "[GC] GC collection invoked by checkpointer. took 0.05 seconds"),
    ]
    complaint = """[rank0]:Exception ignored while calling deallocator <function CheckpointManager.__del__ at 0x7fe1>:
[rank0]:Traceback (most recent call last):
[rank0]:  File "/work/torchtitan/components/checkpoint.py", line 405, in __del__
[rank0]:    self.close()
[rank0]:PythonFinalizationError: cannot join thread at interpreter shutdown
"""
    end = [says(at + 33, "Training completed"), (at + 34, complaint)]
    played = play([*before, *save, *end, *attempt(at + 60, 1, 10, 4.0)])
    checkpoints = played.state.learned.checkpoints
    assert played.kinds() == set()
    assert (checkpoints.last_iteration, checkpoints.save_seconds) == (40, 33.0)


def test_a_grad_norm_that_is_no_number_from_the_first_step_on() -> None:
    """Believed at the fifth line, and told with the first; the loss itself is still printed."""
    log = [(at, text.replace("grad_norm:  0.1250", "grad_norm:     inf")) for at, text in attempt(0, 1, 20, 4.0)]
    reported = play(log).firing("nan_loss")
    assert (reported.iteration, reported.onset_iteration) == (5, 1)
    assert "since iteration 1 (5 lines); stop" in reported.summary


@pytest.mark.parametrize(("count", "said"), [(60, []), (50, ["resume_discontinuity"])])
def test_a_training_that_was_done_may_begin_anew_after_a_launch_that_died(count: int, said: list[str]) -> None:
    """It did its 60 steps and failed on its way out; the next attempt died before a step, the one behind it begins at
    1. Near miss: it died ten steps before its end, and its checkpoint is left behind.
    """
    elastic = "torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: 1) local_rank: 0 (pid: 7)"

    def traceback(at: float) -> list[tuple[float, str]]:
        return [
            (at, "[rank0]:Traceback (most recent call last):\n"),
            (at, "[rank0]:RuntimeError: Eq(u0 + u1, 30960)\n"),
            (at + 1, f"E0503 18:09:00.100000 1 {elastic} of binary: /usr/bin/python\n"),
        ]

    first = [(at, text.replace("7500", "60")) for at, text in attempt(0, 1, count, 2.0)]
    saved = [
        says(100.0, "Saving the checkpoint (or staging if async is enabled)."),
        says(101.0, "Finished saving the checkpoint (or staging if async is enabled) in 1.00 seconds."),
    ]
    end = first[-1][0]
    second = [*attempt(end + 60, 1, 0, 2.0), *traceback(end + 75)]
    third = [(at, text.replace("7500", "60")) for at, text in attempt(end + 200, 1, 30, 2.0)]
    reported = play([*sorted([*first, *saved]), *traceback(end + 2), *second, *third]).of("resume_discontinuity")
    assert [item.incident for item in reported if item.status == "firing"] == said


def test_the_length_of_a_training_that_was_whole_is_not_the_next_ones() -> None:
    """Nanochat trains on in its process, with steps that name no total: their end is unknown, not that of before."""
    figures = "lrm: 1.00 | dt: 500.00ms | tok/sec: 1,000 | mfu: 40.00 | total time: 0.00m"
    base = [(0.5 * n, f"step {n:05d}/100 ({n}.00%) | loss: {4 - n / 100:.6f} | {figures}\n") for n in range(100)]
    then = [(60 + 0.5 * n, f"step {n:05d} ({n / 3:.2f}%) | loss: {2 - n / 99:.6f} | {figures}\n") for n in range(30)]
    attempt = play([*base, (51.0, "Minimum validation bpb: 0.8118\n"), *then]).state.attempt
    assert (attempt.number, attempt.last_iteration, attempt.train_iterations) == (1, 29, None)
