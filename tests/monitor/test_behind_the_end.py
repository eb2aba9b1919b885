"""What stands before a training's first step, and behind its last word. After public logs of pretrainings: nanochat's
script, Megatron-LM that logged no iteration, llm.c, MLPerf's BERT.
"""

import json
from collections.abc import Iterator

import pytest

from megatron_monitor.run.state import RunState
from tests.monitor.core.test_core import NOW, CaughtUp, core_for, data, opened
from tests.monitor.playing import play

FAILED = """Traceback (most recent call last):
  File "/work/nanochat/scripts/base_train.py", line 40, in <module>
    torch.cuda.set_device(device)
RuntimeError: CUDA error: invalid device ordinal
scripts.base_train FAILED
  exitcode  : 1 (pid: 4242)
"""
SET_UP = """Tokens / micro-batch / rank: 8 x 1024 = 8,192
Total batch size 65,536 => gradient accumulation steps: 8
Number of parameters: 73,531,392
Total number of training tokens: 327,680,000
"""


def nanochat(first: int, last: int, milliseconds: float = 500.0) -> str:
    """Steps as nanochat prints them."""
    line = "step {:05d}/05000 (0.01%) | loss: 3.5 | lrm: 1.00 | dt: {:.2f}ms | tok/sec: 131,072 | mfu: 12.2\n"
    return "".join(line.format(number, milliseconds) for number in range(first, last + 1))


def read_at_once(text: str) -> RunState:
    """The run of a log that was written before anybody looked."""
    core = core_for()
    for message in (
        opened("/l/a.log", NOW - 60),
        data("/l/a.log", text.encode(), mtime=NOW),
        CaughtUp("/l/a.log", NOW),
    ):
        core.handle(message, NOW)
    core.tick(NOW + 1)
    (run,) = core.runs.values()
    return run.state


@pytest.mark.parametrize("behind", [False, True])
def test_a_failure_before_the_first_step_of_its_own_file_is_over(behind: bool) -> None:
    """A script's first try failed, its next one trains. Near miss: the same words behind the steps."""
    steps = SET_UP + nanochat(0, 40)
    state = read_at_once(steps + FAILED if behind else FAILED + steps)
    assert (state.attempt.phase == "crashed") is behind
    assert state.attempt.last_iteration == 40


STEP = """++ srun --ntasks=1 --container-name=job_42 describe-system.sh
the only legal values for STATUS are onprem and cloud
srun: error: node7: task 0: Exited with exit code 1
"""


@pytest.mark.parametrize("behind", [False, True])
def test_a_step_that_prepares_the_job_is_no_crash_of_its_training(behind: bool) -> None:
    """Its bare end is all that was told before the training's first word, minutes later. Near miss: behind them."""
    steps = [(500.0, SET_UP), *((560.0 + number, nanochat(number, number)) for number in range(40))]
    played = play([*steps, (620.0, STEP)] if behind else [(0.0, STEP), *steps], after=30.0)
    assert played.kinds() == ({"crash"} if behind else set())
    assert played.state.restarts == 0


def test_a_step_behind_which_nothing_comes_is_told() -> None:
    """What it began was the training, or what the training needs."""
    assert play([(0.0, STEP)], after=590.0).kinds() == set()
    assert play([(0.0, STEP)], after=630.0).kinds() == {"crash"}


MEGATRON = """  train_iters ..................................... 3
training ...
[before the start of training step] datetime: 2024-08-26 14:51:00
"""
DONE = "[after training is done] datetime: 2024-08-26 14:55:22\n"
SAVE = "saving checkpoint at iteration       3 to /ckpt in torch_dist format\n"
SAVED = "  successfully saved checkpoint from iteration       3 to /ckpt\n"


@pytest.mark.parametrize("done", [DONE, ""])
def test_a_save_behind_the_last_word_ends_no_training_that_goes_on(done: str) -> None:
    """Of three iterations none was logged: only the loop's own word says that they are done. Near miss: no word."""
    log = [(0.0, MEGATRON), (260.0, done), (261.0, SAVE), (300.0, SAVED)]
    phase = play([each for each in log if each[1]], after=900.0).state.attempt.phase
    assert phase == ("finished" if done else "training")


def llm_c(number: int) -> str:
    """A step of llm.c, of 20."""
    figures = "(-0.1z)| norm 0.2 (+0.2z)| lr 6.00e-04 | 4200.00 ms | 32.1% bf16 MFU | 124000 tok/s"
    return f"step {number:4d}/20 | loss 3.300000 {figures}\n"


@pytest.mark.parametrize("last", [20, 19])
def test_an_evaluation_that_is_over_behind_the_last_step(last: int) -> None:
    """Its lines count, so that it is a phase; its result ends the training. Near miss: a step more."""
    log = [(4.2 * number, llm_c(number)) for number in range(1, last + 1)]
    hella = [(90.0 + n / 10, f"evaluating HellaSwag: {n}/1256\r") for n in range(10, 1250, 10)]
    played = play([*log, (88.0, "val loss 3.2\n"), *hella, (220.0, "HellaSwag: 3059/10042 = 0.304621\n")], after=20.0)
    assert played.state.attempt.phase == ("finished" if last == 20 else "training")


def bert() -> Iterator[tuple[float, str]]:
    """MLPerf's BERT: evaluations after so many samples; no line tells the length of a sequence."""

    def says(at: float, key: str, value: object, **metadata: object) -> tuple[float, str]:
        body = {"namespace": "", "time_ms": 1714165847730 + int(at * 1000), "event_type": "POINT", "key": key}
        return at, "0: :::MLLOG " + json.dumps({**body, "value": value, "metadata": metadata}) + "\n"

    yield says(0, "global_batch_size", 768)
    yield says(1, "run_start", None)
    for number in range(1, 6):
        samples = number * 153600
        yield says(20.0 * number, "eval_start", samples, epoch_num=samples)
        yield says(20.0 * number + 1, "eval_stop", samples, epoch_num=samples)


def test_samples_where_no_length_of_a_sequence_is_told() -> None:
    """They are no tokens, and no number of a step."""
    assert play(bert()).state.attempt.last_iteration == 5 * 153600 // 768
