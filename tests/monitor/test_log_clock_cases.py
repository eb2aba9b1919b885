"""The log's own clock: finished logs whose lines are dated by several clocks, by some of them, or by none.

The lines are written here in the programs' formats. What is told must be proved by the lines.
"""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.follow.messages import CaughtUp, Data, Opened
from tests.commands import command
from tests.lines import dump
from tests.lines import line as iteration_line

BEGIN = datetime(2026, 3, 1, 8, 0, 20, tzinfo=UTC)
CANCELLED = "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT {}{} ***\n"


def stamp(seconds: float, form: str = "%Y-%m-%d %H:%M:%S.%f", begin: datetime = BEGIN) -> str:
    """So many seconds after the start of the training."""
    return (begin + timedelta(seconds=seconds)).strftime(form)


def setup(seconds: float = -10, *, begin: datetime = BEGIN, every: int = 1, dated: bool = True) -> str:
    """An attempt up to its training; it prints datetime lines if `dated`."""
    lines = [
        "using world size: 8, data-parallel-size: 2, tensor-model-parallel size: 2, pipeline-model-parallel size: 2 ",
        dump(
            eval_interval=1000, eval_iters=10, global_batch_size=64, hidden_size=2048, log_interval=every,
            num_layers=24, seq_length=2048, train_iters=1000, world_size=8,
        ).rstrip("\n"),
    ]  # fmt: skip
    if dated:
        short = "%Y-%m-%d %H:%M:%S"
        lines += [
            f"[after megatron is initialized] datetime: {stamp(seconds, short, begin)} ",
            "done with setup ...",
            "training ...",
            f"[before the start of training step] datetime: {stamp(seconds + 10, short, begin)} ",
        ]
    return "".join(line + "\n" for line in lines)


def line(iteration: int, duration: float = 2.0, at: float | None = None, form: str = "[{}] ", **of: Any) -> str:
    """An iteration's line, dated if `at` is given; no two attempts have the same losses."""
    date = "" if at is None else form.format(stamp(at, **of))
    loss = 8.0 - iteration / 1000 - sum(map(ord, date)) % 97 / 100
    return iteration_line(iteration, 1000, duration, loss, batch=64, norm=0.3, date=date)


def training(first: int, last: int, start: float, duration: float = 2.0, **of: Any) -> str:
    """Iterations that print when they were done, the first one after `took` seconds."""
    return "".join(line(n, duration, start + (n - first + 1) * duration, **of) for n in range(first, last + 1))


@pytest.fixture
def reported(tmp_path: Path) -> Callable[..., list[str]]:
    """What `replay` tells of a text, as `incident status`."""

    def tell(text: str, *more: str) -> list[str]:
        log = tmp_path / "run.log"
        log.write_text(text)
        return said(log, *more)

    return tell


def records(*arguments: str | Path) -> list[dict[str, Any]]:
    """Of `replay --json`."""
    result = command("replay", "--json", *arguments)
    return [json.loads(text) for text in result.stdout.splitlines()]


def said(*arguments: str | Path) -> list[str]:
    """`incident status`, without what is information alone."""
    return [f"{item['incident']} {item['status']}" for item in records(*arguments) if "incident" in item]


def noted_in(path: Path) -> str:
    """The notes in the one row of `report`. A log that was written just now may still be live."""
    os.utime(path, (path.stat().st_mtime - 3600.0,) * 2)
    result = command("report", path)
    return result.stdout.splitlines()[-1]


Tell = Callable[..., list[str]]


# --- undated lines between dated ones ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "said", "noted"),
    [
        ("08:10:30", ["crash firing"], "time limit at iteration 30"),
        ("08:55:30", ["hang firing", "hang resolved", "crash firing"], "hang at iteration 30"),
    ],
)
def test_a_rare_stamp_and_undated_iterations(
    reported: Tell, tmp_path: Path, limit: str, said: list[str], noted: str
) -> None:
    """DeepSpeed's `step=0` is dated, thirty iterations of 20 s are not, then the time limit: no hang, in replay and
    report. Near miss: they tell of ten minutes, and the limit came 45 minutes later.
    """
    head = "[2026-03-01 08:00:20,000] [INFO] [logging.py:60:log_dist] [Rank 0] step=0, skipped=0, lr=[0.0], mom=[0.9]\n"
    log = setup(dated=False) + head + "".join(line(n, 20.0) for n in range(1, 31))
    log += CANCELLED.format(f"2026-03-01T{limit}", " DUE TO TIME LIMIT")
    assert reported(log) == said
    assert noted in noted_in(tmp_path / "run.log")


def test_an_undated_signal_belongs_to_the_time_limit_behind_it(tmp_path: Path) -> None:
    """A minute after the last iteration. Near miss: a limit ten minutes later is another end."""
    for seconds, told in ((60.0, ["time_limit"]), (600.0, ["stopped"])):
        end = CANCELLED.format(stamp(120.0 + seconds, "%Y-%m-%dT%H:%M:%S"), " DUE TO TIME LIMIT")
        log = tmp_path / "run.log"
        log.write_text(setup() + training(1, 60, 0) + "Main process received SIGTERM, exiting\n" + end)
        assert [item["evidence"]["failure"] for item in records(log) if item.get("incident") == "crash"][:1] == told


@pytest.mark.parametrize(
    "between",
    [
        " validation loss at iteration 60 | lm loss value: 7.9E+00 | lm loss PPL: 2.6E+03 | \n",
        "saving checkpoint at iteration      60 to /ckpt\n"
        "  successfully saved checkpoint at iteration      60 to /ckpt\n",
    ],
)
@pytest.mark.parametrize("seconds", [240.0, 700.0])
def test_an_undated_evaluation_or_save_makes_no_gap(reported: Tell, between: str, seconds: float) -> None:
    """Nobody knows how long it took: between its neighbours there was time enough for it."""
    assert reported(setup() + training(1, 60, 0) + between + training(61, 120, 120 + seconds)) == []


def test_an_undated_evaluation_does_not_hide_a_hang_of_hours(reported: Tell) -> None:
    """Near miss: more than any evaluation and the training beside it may need."""
    between = " validation loss at iteration 60 | lm loss value: 7.9E+00 | lm loss PPL: 2.6E+03 | \n"
    found = reported(setup() + training(1, 60, 0) + between + training(61, 120, 120 + 20_000.0))
    assert found == ["hang firing", "hang resolved"]


def bars(first: int, last: int, duration: float, begin: float) -> str:
    """An attempt of HF's Trainer that dates its begin alone: its bar tells how long it has run, in whole seconds."""
    began = f"{BEGIN + timedelta(seconds=begin):%Y-%m-%d %H:%M:%S},065"
    drawn = [f"[INFO|trainer.py:1786] {began} >> ***** Running training *****\n"]
    drawn.append(f"[INFO|trainer.py:1792] {began} >>   Total optimization steps = 2,000\n")
    for number in range(first, last + 1):
        ran = round(number * duration)
        pace = f"{ran // 60:02}:{ran % 60:02}<18:08:42, {duration:5.2f}s/it"
        drawn.append(f"\r {number // 20:2d}%|#         | {number}/2000 [{pace}]")
        if number % 100 == 0:
            drawn.append(f"\r{' ' * 40}\n{{'loss': 1.9, 'learning_rate': 1e-05, 'epoch': {number / 1000}}}\n")
    return "".join(drawn)


def test_bars_tell_the_time_between_two_stamps(reported: Tell, tmp_path: Path) -> None:
    """Of each attempt by itself: the second one's bar, of the same length, begins anew. Silence behind it is a hang."""
    saved = "07/15/2023 06:08:24 - INFO - trainer - Saving model checkpoint to out/checkpoint-1000\n"
    text = bars(0, 900, 2.5, 0) + bars(0, 1000, 2.5, 2290)
    shown = f"{BEGIN + timedelta(seconds=4790):%m/%d/%Y %H:%M:%S}"
    assert reported(text + saved.replace("07/15/2023 06:08:24", shown) + bars(0, 1, 2.5, 4830)) == []
    late = f"{BEGIN + timedelta(seconds=8900):%m/%d/%Y %H:%M:%S}"
    assert reported(text + saved.replace("07/15/2023 06:08:24", late)) == ["hang firing"]


def test_a_dated_gap_is_a_hang(reported: Tell) -> None:
    """Near miss: nothing stands between."""
    assert reported(setup() + training(1, 60, 0) + training(61, 120, 820)) == ["hang firing", "hang resolved"]


@pytest.mark.parametrize("pause", [60.0, 900.0, 86_400.0])
@pytest.mark.parametrize(
    "end",
    [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity",
    ],
)
def test_undated_crash_lines_and_a_relaunch_are_one_crash(reported: Tell, end: str, pause: float) -> None:
    """It is told, nothing hung in starting, and no process was left behind."""
    crash = f'Traceback (most recent call last):\n  File "pretrain_gpt.py", line 1, in <module>\n{end}\n'
    log = setup() + training(1, 60, 0) + crash + setup(120 + pause) + training(1, 60, 130 + pause)
    assert reported(log) == ["crash firing", "crash resolved"]


def test_a_clean_exit_and_a_relaunch_an_hour_later(reported: Tell) -> None:
    """The set-up lines that stand before the first dated one belong to the relaunch, not to the hour."""
    log = setup() + training(1, 60, 0) + f"[exiting program at iteration 60] datetime: {stamp(130)[:19]} \n"
    assert reported(log + setup(3730) + training(61, 120, 3740)) == []


def test_the_first_line_stands_for_its_interval(reported: Tell) -> None:
    """Ten iterations a line, as the arguments say: 60 x 6.7 s, and the time limit three minutes later."""
    lines = "".join(line(n, 6.7) for n in range(10, 70, 10))
    end = CANCELLED.format("2026-03-01T08:10:15", " DUE TO TIME LIMIT")
    assert reported(setup(every=10) + lines + end) == ["crash firing"]
    without = "".join(row for row in setup().splitlines(True) if "log_interval" not in row)
    assert reported(without + lines + end) == ["crash firing"]  # as the numbers say


def test_a_first_line_that_says_it_took_the_whole_silence(reported: Tell) -> None:
    """98 s an iteration and a line every hundred of them: computing, not hung."""
    log = setup(every=100) + "".join(line(n * 100, 98.3, at=n * 9830.0) for n in range(1, 5))
    assert reported(log) == []


def test_a_first_step_whose_time_stands_on_a_later_line(reported: Tell) -> None:
    """DeepSpeed dates the step, Megatron's undated line behind it says that it took 2,233 s."""

    def both(step: int, at: float, duration: float) -> str:
        head = (
            f"[{stamp(at, '%Y-%m-%d %H:%M:%S')},703] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0,"
        )
        return f"{head} lr=[4.6e-08], mom=[(0.9, 0.999)]\n" + line(step, duration)

    assert reported(setup() + both(1, 2235, 2233.5) + both(2, 3130, 894.7)) == []


# --- every stamp is a clock -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status",
    [
        "[{:%Y-%m-%d %H:%M:%S}] PULSE: tr11-176B-ml is running for 18:27:33 since 2022-03-20T20:46:28\n",
        "{:%Y-%m-%d %H:%M:%S},123 - watcher - INFO - the job is in the queue\n",
        "W{:%m%d %H:%M:%S}.281000 175535 torch/distributed/run.py:793] still here\n",
        "[rank3]:[W{:%m%d %H:%M:%S}.121082513 ProcessGroupNCCL.cpp:4088] still here\n",
        "{:%a %b %d %H:%M:%S UTC %Y} still running\n",
    ],
)
def test_a_dated_line_of_any_kind_proves_silence(reported: Tell, status: str) -> None:
    """A site's status lines behind the last progress: the hang is found, with its phase."""
    pulses = "".join(status.format(BEGIN + timedelta(seconds=120 + 600 * n)) for n in range(1, 4))
    (first, *_) = reported(setup() + training(1, 60, 0) + pulses)
    assert first == "hang firing"


def test_status_lines_beside_undated_iterations(reported: Tell) -> None:
    """Iterations of 100 s, one status line an hour: healthy; then status lines alone: hung while evaluating."""

    def pulse(hour: int) -> str:
        return f"[{stamp(3600 * hour, '%Y-%m-%d %H:%M:%S')}] PULSE: tr11 is running\n"

    log = setup() + "".join(pulse(n // 36) * (n % 36 == 0) + line(n, 100.0) for n in range(1, 200))
    assert reported(log) == []
    log += " validation loss at iteration 199 | lm loss value: 7.9E+00 | lm loss PPL: 2.6E+03 | \n"
    log += "".join(pulse(hour) for hour in range(6, 12))
    assert reported(log) == ["hang firing"]


def test_a_bare_stamp_that_the_next_one_contradicts_is_none(reported: Tell) -> None:
    """A line that names another day is no proof that the day has passed."""
    odd = "[2026-05-01 00:00:00] is when the allocation ends\n"
    assert reported(setup() + training(1, 60, 0) + odd + training(61, 120, 120)) == []


def test_a_watchdog_tells_how_long_it_waited(reported: Tell) -> None:
    """Glog's stamp has no year: the file's other stamps tell it."""
    watchdog = (
        "[rank1]:[E{} ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL("
        "SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
    )
    log = setup() + training(1, 60, 0)
    expected = ["hang firing", "hang resolved", "crash firing"]
    assert reported(log + watchdog.format(stamp(722, "%m%d %H:%M:%S.%f").lstrip("0"))) == expected
    undated = watchdog.replace("[E{} ProcessGroupNCCL.cpp:607] ", "")
    assert reported(log + undated) == expected


# --- clocks that change -----------------------------------------------------------------------------------------------


def test_the_end_of_summer_time(reported: Tell, tmp_path: Path) -> None:
    """Stamps go back an hour, the training goes on; a hang behind it is found."""
    log = setup() + training(1, 60, 0) + training(61, 100, 120 - 3600)
    assert reported(log) == []
    log += CANCELLED.format(stamp(1700 - 3600, "%Y-%m-%dT%H:%M:%S"), "")
    assert reported(log) == ["hang firing", "hang resolved", "crash firing"]
    assert "hang at iteration 100" in noted_in(tmp_path / "run.log")


def test_a_scheduler_in_another_zone(reported: Tell) -> None:
    """The container's clock is UTC, the scheduler's two hours ahead: the job was cancelled, it had not hung."""
    log = setup() + training(1, 60, 0)
    assert reported(log + CANCELLED.format(stamp(130 + 7200, "%Y-%m-%dT%H:%M:%S"), "")) == ["crash firing"]


def test_clocks_of_several_writers(reported: Tell) -> None:
    """A runtime stamps in UTC what prints no time of its own, the program writes local time."""
    log = setup()
    for n in range(1, 60):
        log += line(n, 2.0, at=n * 2.0)
        log += stamp(n * 2.0 - 7200, "%Y-%m-%dT%H:%M:%S.%fZ") + " time (ms) | save-checkpoint: 1.0\n"
    assert reported(log) == []


def test_a_doubled_log_tells_nothing_new(reported: Tell) -> None:
    """The same lines once more: no silence is proved by them."""
    log = setup() + training(1, 60, 0)
    assert not [item for item in reported(log + log) if item.startswith("hang")]


def test_two_logs_in_one_file_prove_no_silence(reported: Tell) -> None:
    """Yesterday's training and today's, written over each other: the clock goes back and on by a day, again and again.
    Near miss: a silence of two hours in one of them.
    """
    today = BEGIN + timedelta(days=1)
    starts = "".join(
        f"[{stamp(second, '%Y-%m-%d %H:%M:%S', day)}] the job begins\n"
        for day in (BEGIN, today)
        for second in (-60, -59)
    )
    parts = [
        setup(), setup(begin=today), training(1, 10, 0.0, 200.0), training(1, 10, 0.0, 200.0, begin=today),
        training(11, 20, 2000.0, 200.0, begin=today),
    ]  # fmt: skip
    assert reported(starts + "".join(parts)) == []
    late = setup() + training(1, 100, 0.0) + training(101, 130, 200.0 + 7200.0)
    assert reported(late) == ["hang firing", "hang resolved"]


# --- a backlog --------------------------------------------------------------------------------------------------------


def after_a_day(text: str, now: float, silence: float = 3600.0) -> list[str]:
    """What the daemon tells of a file that it finds, last written at `now`."""
    core = Core(load("", ["runs=[{paths: [/logs/*.log]}]"]))
    data = text.encode()
    core.handle(Opened("/logs/a.log", "/logs/a.log", None, len(data), now, resumed=False), now)
    core.handle(Data("/logs/a.log", 0, data, now, now, 0), now)
    core.handle(CaughtUp("/logs/a.log", now), now)
    found = core.tick(now)
    step = 0.0
    while step < silence:
        step += 30.0
        found += core.tick(now + step)
    return [f"{item.incident} {item.status}" for item in found if not item.display_only]


def test_a_copied_old_log_is_history() -> None:
    """Its mtime is new, its own stamps say that it ended months ago."""
    text = setup() + training(1, 60, 0)
    assert after_a_day(text, BEGIN.timestamp() + 90 * 86400.0) == []
    assert after_a_day(text, BEGIN.timestamp() + 125.0) == ["hang firing"]  # near miss: written just now


def test_a_log_without_stamps_is_judged_by_its_mtime() -> None:
    """Only its set-up is dated, three days ago: its iterations may be of this minute."""
    text = setup() + "".join(line(n) for n in range(1, 61))
    assert after_a_day(text, BEGIN.timestamp() + 3 * 86400.0) == ["hang firing"]
