"""Crashes: one incident with its cause, whoever reported it first; loops; processes that do not end."""

import functools
import math
from collections.abc import Callable

import pytest

from megatron_monitor.simulate import Scenario
from tests.monitor.playing import Played, Playing, fault, play, texts


def test_a_fatal_line_and_then_nothing() -> None:
    """BLOOM's limbo: 3.5 min after the line (two iterations), not before, and with what to do."""
    assert fault("crash_without_exit", after=200.0).of("crash_without_exit") == []
    reported = fault("crash_without_exit", after=220.0).firing("crash_without_exit")
    assert reported.severity == "critical"
    assert "kill-on-bad-exit" in reported.summary


ALONE = Scenario(iterations=120, world_size=8, tp=2, pp=1, global_batch_size=64)


@pytest.mark.parametrize(
    ("scenario", "line", "named"),
    [
        (Scenario(iterations=120), "srun: error: n1: task 7: Segmentation fault\n", ["n1"]),
        (ALONE, "srun: error: n1: task 7: Segmentation fault\n", None),
        (ALONE, "srun: error: Node failure on n1\n", ["n1"]),
    ],
)
def test_a_node_is_accused_only_if_the_job_has_others_or_its_hardware_failed(
    scenario: Scenario, line: str, named: list[str] | None
) -> None:
    """In the job of one node each crash is on it. The place is told in any case."""
    head = list(texts(scenario))[:-1]
    ends = [(head[-1][0] + 1.0, line)]
    again = [(at + 20_000.0, text) for at, text in [*head, *ends]]
    played = play([*head, *ends, *again], 400.0)
    told = [item for item in played.of("crash") if item.status == "firing"]
    assert [item.evidence.get("nodes") for item in told] == [named, named]
    assert "n1" in told[0].evidence["message"]
    loop = [item.evidence["common_nodes"] for item in played.of("crash_loop")[:1]]
    assert loop == ([named] if named else [])


BEFORE_ALL = {
    "ValueError: port is missing": """Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/opt/venv/lib/torch/distributed/launcher/api.py", line 235, in _get_addr_and_port
    raise ValueError(
ValueError: port is missing
""",
    "FileNotFoundError: no such configuration": """Traceback (most recent call last):
  File "/opt/venv/bin/accelerate", line 8, in <module>
    sys.exit(main())
FileNotFoundError: no such configuration
""",
    "SyntaxError: invalid syntax": """  File "/job/train.py", line 1
    def main(:
             ^
SyntaxError: invalid syntax
""",
    "deepspeed: error: unrecognized arguments: --bogus": "deepspeed: error: unrecognized arguments: --bogus\n",
    "Accelerate CLI tool: error: unrecognized arguments: --x": "Accelerate CLI tool: error: unrecognized arguments: --x\n",
}


@pytest.mark.parametrize("message", BEFORE_ALL)
def test_a_launcher_that_fails_before_it_starts_anything_is_a_crash(message: str) -> None:
    """Its process has ended with the exception, and no other one holds a node."""
    played = play([(0.0, BEFORE_ALL[message])], 600.0)
    told = played.firing("crash")
    assert (told.severity, told.evidence["message"], played.kinds()) == ("critical", message, {"crash"})
    assert played.state.proven


CANCELLED = "slurmstepd: error: *** JOB {} ON n{} CANCELLED AT 2026-11-26T23:21:1{} {}***\n"
FAILED, PREEMPTED = "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ", "DUE TO PREEMPTION "


def test_jobs_that_end_in_one_second_are_reported_each() -> None:
    """Five jobs append to one file, none trained. Planned ends are no crash loop."""
    ends = [(3, FAILED), (3, FAILED), (4, PREEMPTED), (4, "DUE TO JOB REQUEUE "), (4, "")]
    lines = [CANCELLED.format(1701 + job, job, *end) for job, end in enumerate(ends)]
    played = play([(0.0, "".join(lines))], 60.0)
    told = [item.evidence["message"].split()[3] for item in played.of("crash") if item.status == "firing"]
    assert (told, played.kinds()) == (["1701", "1702", "1703", "1704", "1705"], {"crash"})


OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
CAUGHT = (
    "WARNING: this batch does not fit, it is split and tried again\n"
    "Traceback (most recent call last):\n"
    '  File "/train/training.py", line 1301, in train_step\n'
    "    losses = forward_backward(batch)\n" + OUT_OF_MEMORY
)
UNCAUGHT = (
    "Traceback (most recent call last):\n"
    '  File "/train/pretrain_gpt.py", line 215, in <module>\n'
    "    pretrain(train_valid_test_datasets_provider)\n"
    '  File "/train/training.py", line 1301, in train_step\n'
    "    losses = forward_backward(batch)\n" + OUT_OF_MEMORY
)
PACES = (2.0, 20.0, 100.0)


def interrupted(seconds: float, after: float, text: str, *, lost: float, log_interval: int = 1) -> Played:
    """A training in which `text` is written `after` iterations' time behind iteration 100; `lost` iterations' time
    later than usual the training goes on. If it does not, `lost` is infinite.
    """
    kept, rest = hundred(seconds, log_interval)
    playing, every = kept(), seconds * log_interval
    playing.feed([(playing.at + after * every, text)])
    playing.feed((when + lost * every, line) for when, line in rest if lost < math.inf)
    return playing.end(0.0 if lost < math.inf else 600.0)


@functools.cache
def hundred(seconds: float, log_interval: int) -> tuple[Callable[[], Playing], list[tuple[float, str]]]:
    """A hundred iterations, played once, and the texts behind them."""
    scenario = Scenario(iterations=140, seconds_per_iteration=seconds, save_interval=0, log_interval=log_interval)
    log = list(texts(scenario))
    place = next(place for place, (_, line) in enumerate(log) if " iteration      100/" in line) + 1
    playing = Playing()
    playing.feed(log[:place])
    return playing.kept(), log[place:]


@pytest.mark.parametrize("seconds", PACES)
@pytest.mark.parametrize("text", [CAUGHT, OUT_OF_MEMORY, "OSError: [Errno 28] No space left on device\n"])
@pytest.mark.parametrize(("after", "lost"), [(0.05, 0.05), (0.5, 0.5), (0.95, 0.95), (0.3, 1.2)])
def test_what_the_loop_catches_is_not_told(seconds: float, text: str, after: float, lost: float) -> None:
    """Whenever in an iteration it came, and the whole iteration is computed again (or nearly twice)."""
    played = interrupted(seconds, after, text, lost=lost)
    assert played.kinds() == set()
    assert played.state.attempt.phase == "finished"
    assert played.state.failures_total == {}


@pytest.mark.parametrize("seconds", [2.0, 10.0])
def test_what_the_loop_catches_is_not_told_where_every_tenth_iteration_is_logged(seconds: float) -> None:
    """The next line is ten iterations away: for a crash without exit too."""
    assert interrupted(seconds, 0.5, CAUGHT, lost=0.5, log_interval=10).kinds() == set()


@pytest.mark.parametrize("seconds", PACES)
@pytest.mark.parametrize(
    "end",
    [
        UNCAUGHT,
        CAUGHT + UNCAUGHT,  # caught, and raised again
        OUT_OF_MEMORY + "srun: error: node07: task 3: Exited with exit code 1\n",
        OUT_OF_MEMORY + "W1120 11:03:03 [api.py:900] Sending process 291888 closing signal SIGTERM\n",
        OUT_OF_MEMORY + "[2026-01-01 00:00:00,100] [ERROR] [launch.py:325:sigkill_handler] ['python3', '-u', 'x.py'] "
        "exits with return code = 1\n",
        OUT_OF_MEMORY
        + "[rank2]: torch.distributed.DistBackendError: NCCL error in: ncclRemoteError: remote process exited\n",
        OUT_OF_MEMORY + "slurmstepd: error: Detected 1 oom_kill event in StepId=191.batch cgroup.\n",
        "terminate called after throwing an instance of 'c10::CUDAError'\n  what():  CUDA error: unknown error\n",
    ],
)
def test_an_end_that_anything_proves_is_told_as_fast_as_ever(seconds: float, end: str) -> None:
    """A launcher, the scheduler, another rank, the kernel, an aborted process, or a traceback from the program's top."""
    played = interrupted(seconds, 0.5, end, lost=math.inf)
    reported = played.firing("crash")
    assert reported.severity == "critical"
    assert reported.time - fatal_at(seconds) <= 5.01
    assert sum(played.state.failures_total.values()) == 1


@pytest.mark.parametrize("seconds", PACES)
@pytest.mark.parametrize("text", [CAUGHT, OUT_OF_MEMORY])
def test_an_end_that_nothing_proves_is_told_when_the_iterations_do_not_come(seconds: float, text: str) -> None:
    """The bound: twice the time of an iteration, 5 s at least and 5 minutes at most."""
    played = interrupted(seconds, 0.5, text, lost=math.inf)
    reported = played.firing("crash")
    assert reported.evidence["failure"] == "cuda_oom"
    assert reported.time - fatal_at(seconds) <= max(5.01, 2.1 * seconds)
    assert played.state.failures_total == {"cuda_oom": 1}


@pytest.mark.parametrize("late", [1.0, 20.0, 60.0])
def test_the_end_that_is_proved_later_is_told_then(late: float) -> None:
    """Out of memory, and some time later the launcher reports an exit: told a second after that."""
    log = list(texts(Scenario(iterations=100, save_interval=0)))[:-1]
    fatal = log[-1][0] + 10.0
    end = (fatal + late, "srun: error: node07: task 3: Exited with exit code 1\n")
    reported = play([*log, (fatal, OUT_OF_MEMORY), end], after=60.0).firing("crash")
    assert reported.evidence["failure"] == "cuda_oom"
    assert reported.time - fatal == pytest.approx(max(4.0, late + 1.0), abs=0.01)


@pytest.mark.parametrize(("late", "reported"), [(0.5, "python_exception"), (3.5, "python_exception"), (30.0, "nccl")])
def test_the_cause_on_another_node_is_awaited_while_a_file_server_may_hide_it(late: float, reported: str) -> None:
    """A victim's watchdog is seen first, and the exception when an NFS client looks again, 3 s later. What comes long
    after that was told is neither another crash nor another cause.
    """
    log = list(texts(Scenario(iterations=100, save_interval=0)))[:-1]
    fatal = log[-1][0] + 700.0
    victim = (
        "[rank5]:[E ProcessGroupNCCL.cpp:616] [Rank 5] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=77, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600027 milliseconds before timing out.\n"
    )
    ended = "srun: error: node07: task 5: Aborted (core dumped)\n"
    cause = (
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "pretrain_gpt.py", line 1, in <module>\n[rank3]: KeyError: 3\n'
    )
    played = play([*log, (fatal, victim), (fatal, ended), (fatal + late, cause)], after=120.0)
    assert played.firing("crash").evidence["failure"] == reported
    assert played.state.failures_total == {reported: 1}


def test_what_is_caught_twice_is_no_loop() -> None:
    """After two attempts that died, a third that catches what it meets is not the third that died."""
    died = "srun: error: r7i3n2: task 7: Killed\n"
    head = list(texts(Scenario(iterations=120)))[:-1]
    second = [(at + 20_000, text) for at, text in texts(Scenario(iterations=105, first_iteration=101))][:-1]
    third = [(at + 40_000, text) for at, text in texts(Scenario(iterations=110, first_iteration=101))]
    log = [*head, (head[-1][0] + 1, died.replace("r7i3n2", "r1i1n1")), *second, (second[-1][0] + 1, died), *third]
    place = next(place for place, (at, line) in enumerate(log) if at > 40_000 and " iteration      103/" in line) + 1
    played = play([*log[:place], (log[place - 1][0] + 5.0, OUT_OF_MEMORY), *log[place:]])
    assert played.of("crash_loop") == []


def fatal_at(seconds: float) -> float:
    """When `interrupted` writes its text."""
    log = texts(Scenario(iterations=140, seconds_per_iteration=seconds, save_interval=0))
    return next(at for at, line in log if " iteration      100/" in line) + seconds / 2
