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
from tests.parsers.iteration_lines import FORMS
from tests.parsers.test_speakers import CASES
from tests.plain import encode
from tests.test_formats import SAMPLES

ITERATION = (
    " iteration       30/    1000 | consumed samples:  30720 | consumed tokens: 62914560 | elapsed time per iteration "
    "(ms): 2152.2 | learning rate: 1.5E-04 | global batch size:  1024 | lm loss: 6.9E+00 | loss scale: 4096.0 |"
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
LINES = (*(line for line, _ in CASES), *SAMPLES, *(form["text"] for form in FORMS.values()))
NUMBERS = (
    "inf", "-inf", "nan", "-0", "0", "9223372036854775807", "9223372036854775808", "18446744073709551616",
    "-9223372036854775809", "1" + "0" * 400,
    "9" * 5000, "1e308", "1e999", "-1e999", "\u00b2", "\u0661\u0662", "1/\u00b2", "", "-", "1.2.3",
)  # fmt: skip
NUMBER = re.compile(r"(?<![A-Za-z\d])\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
MAY_BE_NONE = frozenset(
    {
        "loss", "losses", "lm_loss", "grad_norm", "params_norm", "num_zeros", "loss_scale", "new_loss_scale",
        "eval_loss", "perplexities", "extra", "train_loss", "learning_rate", "reward",
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
    check(ITERATION, state)
    for text in itertools.islice(variants(line), LINES.index(line) % every, None, every):
        check(text, RunState(name="run"), state)
    check(ITERATION.replace("30/", "31/"), state)
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
    """In torchrun's report of several lines, and in the arguments dump."""
    state = RunState(name="run")
    check(ITERATION, state)
    check(BLOCK.format(number), state)
    check(DUMP.format(number), state)


@PARTS
def test_a_page_is_made_of_them(tmp_path: Path, every: int) -> None:
    """All of them in one file that is read to its end: judged, shown, saved."""
    log = tmp_path / "run.log"
    with log.open("w", errors="surrogateescape") as stream:
        stream.write(DUMP.format(8))
        for number, line in enumerate(LINES):
            stream.write(ITERATION.replace("30/", f"{30 + number}/") + "\n")
            some = itertools.islice(variants(line), number % every, None, every)
            stream.writelines(text[:6000] + "\n" for text in some)
    core, _ = read_all(ConfigOptions().configured([str(log)]))
    assert core.snapshot(1.0).runs[0].page["run"] == "run"
    TextFormat().page(core.snapshot(1.0))
    encode(core.save(1.0))
    command("report", log)
