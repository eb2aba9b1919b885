"""Numbers that are none: whatever stands where a program prints a number, nothing raises and the state can be saved."""

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from megatron_monitor.commands.arguments import ConfigOptions
from megatron_monitor.once import read_all
from megatron_monitor.parsers.events import Event
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.prometheus_text import TextFormat
from megatron_monitor.run.fold import fold
from megatron_monitor.run.state import RunState
from tests.commands import command
from tests.parsers.test_speakers import CASES
from tests.plain import encode
from tests.test_formats import SAMPLES

ITERATIONS = (
    " iteration       30/    1000 | consumed samples:  30720 | consumed tokens: 62914560 | elapsed time per iteration "
    "(ms): 2152.2 | learning rate: 1.5E-04 | global batch size:  1024 | lm loss: 6.9E+00 | loss scale: 4096.0 | grad "
    "norm: 1.2 | num zeros: 0.0 | number of skipped iterations:   1 | number of nan iterations:   0 | samples per "
    "second: 19.464 | TFLOPs: 149.02 |",
    " samples/sec: 206.7 | iteration       10/     512 | elapsed time per iteration (ms): 2476.9 | learning rate: "
    "1.0E-04 | approx flops per GPU: 13.3TFLOPS | lm_loss: 1.09E+01 | MFU: 35.8% |",
    "Training epoch 0, iteration 45/99 | lr: 0.0001 | global_batch_size: 128 | global_step: 45 | reduced_train_loss: "
    "7.0 | train_step_timing in s: 6.08 | consumed_samples: 5888",
    "Epoch 0: :  10%|#   | 2/20 [00:49<07:25, v_num=None, reduced_train_loss=11.20, global_step=1.000, "
    "consumed_samples=256.0, train_step_timing in s=24.80]",
    "{'loss': 2.0, 'grad_norm': 1.0, 'memory(GiB)': 64.5, 'global_step/max_steps': '1/8', 'train_speed(s/it)': 9.9}",
    "[INFO:swift] rank: 0, local_rank: 0, world_size: 8, local_world_size: 8",
    "per_device_train_batch_size=4, gradient_accumulation_steps=2, sequence_parallel_size=2",
    "INFO:__main__:Overriding config: n_embd=11264,n_head=32,n_layer=64,n_positions=1024",
    "+ MSIZE=18",
    "[2021-05-25 22:30:04,196] [INFO] [config.py:752:print]   world_size ................... 64",
    "|E2E latency=7.99s |Gather latency=0.0s |CurSamplesPerSec=8.01 |AvgSamplesPerSec=8.01",
    "Total number of parameters in billions: 7.24",
    "[INFO|trainer.py:1147] >>   Total optimization steps = 1500",
    ':::MLLOG {"namespace": "", "time_ms": 1759226382926, "event_type": "POINT", "key": "eval_stop", "value": 5, '
    '"metadata": {"file": "train.py", "lineno": 5, "samples_count": 512}}',
    "[INFO|trainer.py:1147] >>   Instantaneous batch size per device = 8",
)
DUMP = """\
------------------------ arguments ------------------------
  world_size ...................................... {0}
  num_layers ...................................... {0}
  train_iters ..................................... {0}
  global_batch_size ............................... {0}
  num_virtual_stages_per_pipeline_rank ............ {0}
  rampup_batch_size ............................... ['{0}', '{0}', '{0}']
  num_experts ..................................... [{0}]
  lr .............................................. {0}
  exit_duration_in_mins ........................... {0}
-------------------- end of arguments ---------------------
"""
LINES = (*(line for line, _ in CASES), *SAMPLES, *ITERATIONS)
NUMBERS = (
    "inf", "-inf", "nan", "-0", "0", "9223372036854775807", "9223372036854775808", "18446744073709551616",
    "-9223372036854775809", "1" + "0" * 400,
    "9" * 5000, "1e308", "1e999", "-1e999", "\u00b2", "\u0661\u0662", "1/\u00b2", "", "-", "1.2.3",
)  # fmt: skip
NUMBER = re.compile(r"(?<![A-Za-z\d])\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
MAY_BE_NONE = frozenset(
    {
        "loss", "losses", "lm_loss", "grad_norm", "params_norm", "num_zeros", "loss_scale", "new_loss_scale",
        "eval_loss", "perplexities", "extra", "train_loss", "learning_rate",
    }
)  # fmt: skip
"""Fields in which nan and inf say something of the training; they stay as they are printed."""


def variants(line: str) -> Iterator[str]:
    """The line with each number in it, and with all of them where there are several, replaced by each that is none."""
    found = list(NUMBER.finditer(line))
    for number in NUMBERS:
        for match in found:
            yield line[: match.start()] + number + line[match.end() :]
        if len(found) != 1:
            yield NUMBER.sub(number.replace("\\", ""), line)


def numbers(event: Event) -> Iterator[tuple[str, Any]]:
    """Every number in an event, with the name of its field."""
    for name in event.__struct_fields__:
        waiting = [getattr(event, name)]
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                waiting += value.values()
            elif isinstance(value, list | tuple):
                waiting += value
            elif isinstance(value, int | float):
                yield name, value


def check(text: str, *states: RunState) -> None:
    """Read, fold and save what has changed."""
    reader = SourceReader()
    entries = [*reader.feed(text.encode("utf-8", "surrogateescape") + b"\n"), *reader.flush()]
    for entry in entries:
        for name, value in numbers(entry.event):
            if isinstance(value, int):
                assert -(2**63) <= value < 2**63, (text[:200], name, value)
            elif name not in MAY_BE_NONE:
                assert math.isfinite(value), (text[:200], name, value)
        for state in states:
            fold(state, entry, "run.log", 1.0, False)
    for state in states if entries else ():
        encode(state)


PARTS = pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.nightly)])
"""Of all variants, so many times fewer; others of each line."""


@PARTS
@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:40])
def test_a_number_that_is_none_is_absent(line: str, every: int) -> None:
    """Infinity, nan, more than 64 bits, other digits than ours, nothing at all: in each place of each line, as a
    run's first word and in the middle of a training, one behind the other.
    """
    state = RunState(name="run")
    check(DUMP.format(8), state)
    check(ITERATIONS[0], state)
    for text in itertools.islice(variants(line), LINES.index(line) % every, None, every):
        check(text, RunState(name="run"), state)
    check(ITERATIONS[0].replace("30/", "31/"), state)
    encode(state)


BLOCK = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_10:00:00
  host      : node1
  rank      : {0} (local_rank: {0})
  exitcode  : {0} (pid: {0})
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID {0}
"""


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: ascii(number)[:24])
def test_a_launcher_s_block_of_them(number: str) -> None:
    """The summary that torchrun prints takes several lines."""
    state = RunState(name="run")
    check(ITERATIONS[0], state)
    check(BLOCK.format(number), state)


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: ascii(number)[:24])
def test_an_argument_that_is_none(number: str) -> None:
    """In the arguments dump."""
    state = RunState(name="run")
    check(DUMP.format(number), state)
    check(ITERATIONS[0], state)


@PARTS
def test_a_page_is_made_of_them(tmp_path: Path, every: int) -> None:
    """All of them in one file that is read to its end: judged, shown, saved."""
    log = tmp_path / "run.log"
    with log.open("w", errors="surrogateescape") as stream:
        stream.write(DUMP.format(8))
        for number, line in enumerate(LINES):
            stream.write(ITERATIONS[0].replace("30/", f"{30 + number}/") + "\n")
            some = itertools.islice(variants(line), number % every, None, every)
            stream.writelines(text[:6000] + "\n" for text in some)
    core, _ = read_all(ConfigOptions().configured([str(log)]))
    assert core.snapshot(1.0).runs[0].page["run"] == "run"
    TextFormat().page(core.snapshot(1.0))
    encode(core.save(1.0))
    command("report", log)
