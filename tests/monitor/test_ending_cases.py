"""Every launch that died is reported once, with its cause; what ends as people mean it to is no failure."""

import functools
import itertools
from collections.abc import Callable

import msgspec
import pytest

from megatron_monitor.config import Watch, default_config
from megatron_monitor.core import Core
from megatron_monitor.follow.messages import CaughtUp, Data, Opened, Scanned
from megatron_monitor.incidents import Transition
from megatron_monitor.judgement import Judge
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.replay import replay
from megatron_monitor.simulate import Scenario
from tests.monitor.playing import Played, Playing, play, texts

NOW = 1_700_000_000.0
IMPORT_ERROR = (
    "Traceback (most recent call last):\n"
    '  File "/home/me/pretrain_gpt.py", line 9, in <module>\n'
    "    from megatron.training import pretrain\n"
    "ModuleNotFoundError: No module named 'flash_attn'\n"
)
KEY_ERROR = (
    "Traceback (most recent call last):\n"
    '  File "/home/me/pretrain_gpt.py", line 215, in <module>\n'
    "    pretrain(train_valid_test_datasets_provider)\n"
    "KeyError: 'text'\n"
)
TORCHRUN = (
    "E0301 08:00:05.100000 1 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: 1) local_rank: 0 "
    "(pid: 77) of binary: /usr/bin/python\n"
    "Traceback (most recent call last):\n"
    '  File "/usr/bin/torchrun", line 8, in <module>\n'
    "    sys.exit(main())\n"
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
)
SIGTERM = (
    "W0418 17:38:31.112000 3734582 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, "
    "shutting down workers\n"
    "W0418 17:38:31.129000 3734582 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 3735510 "
    "closing signal SIGTERM\n"
    "Traceback (most recent call last):\n"
    '  File "/usr/bin/torchrun", line 8, in <module>\n'
    "    sys.exit(main())\n"
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 3734582 got signal: 15\n"
)
OPEN_MPI = (
    "--------------------------------------------------------------------------\n"
    "Primary job  terminated normally, but 1 process returned\n"
    "a non-zero exit code. Per user-direction, the job has been aborted.\n"
    "mpirun detected that one or more processes exited with non-zero status, thus causing\n"
    "the job to be terminated. The first process to do so was:\n"
    "  Process name: [[1,1],0]\n"
    "  Exit code:    1\n"
)
HYDRA = (
    "===================================================================================\n"
    "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    "=   RANK 3 PID 5490 RUNNING AT gn59\n"
    "=   KILLED BY SIGNAL: 9 (Killed)\n"
    "===================================================================================\n"
)
WATCHDOG = (
    "[rank{rank}]:[E301 08:12:19.123456789 ProcessGroupNCCL.cpp:694] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=8058, OpType=BROADCAST, Timeout(ms)=600000) ran for 600062 milliseconds before "
    "timing out.\n"
)
CANCELLED = "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-03-01T08:13:19{why} ***\n"


def trained(text: str, *, after: float = 180.0) -> Played:
    """A training that is cut after its last iteration; then the text, then silence."""
    return ended(text, after, trains=True)


def starting(text: str, *, after: float = 180.0) -> Played:
    """A training that has printed its arguments and no iteration; then the text."""
    return ended(text, after, trains=False)


def ended(text: str, after: float, *, trains: bool) -> Played:
    """What was printed so far, then the text a second later, then silence."""
    playing = so_far(trains)()
    playing.feed([(playing.at + 1, text)])
    return playing.end(after)


@functools.cache
def so_far(trains: bool) -> Callable[[], Playing]:
    """Played once: sixty iterations, or none."""
    playing = Playing()
    playing.feed(cut() if trains else head())
    return playing.kept()


def head() -> list[tuple[float, str]]:
    """What a training prints before its first iteration."""
    return list(itertools.takewhile(lambda one: " iteration " not in one[1], texts(Scenario(iterations=10))))


def cut(iterations: int = 60, **more: object) -> list[tuple[float, str]]:
    """A training's texts without an end."""
    log = []
    for one in texts(Scenario(iterations=500, seconds_per_iteration=2.0, save_interval=0, **more)):  # type: ignore[arg-type]
        log.append(one)
        if f" iteration {iterations:8d}/" in one[1]:
            break
    return log


def failed(played: Played) -> tuple[str, str]:
    """Kind and severity of the one crash that was reported."""
    told = played.firing("crash")
    return str(told.evidence["failure"]), told.severity


# --- what says that a launch died -----------------------------------------------------------------------------------


DEATHS = {
    "plain python": (IMPORT_ERROR, "python_exception"),
    "torchrun": (IMPORT_ERROR + TORCHRUN, "python_exception"),
    "deepspeed": (
        IMPORT_ERROR + "[2026-03-01 08:00:05,100] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 22513\n"
        "[2026-03-01 08:00:05,200] [ERROR] [launch.py:325:sigkill_handler] ['python', '-u', 'pretrain_gpt.py'] exits "
        "with return code = 1\n",
        "python_exception",
    ),
    "pdsh": (IMPORT_ERROR + "pdsh@head: node02: ssh exited with exit code 1\n", "python_exception"),
    "pdsh alone": ("pdsh@head: node02: ssh exited with exit code 1\n", "unknown"),
    "srun": (IMPORT_ERROR + "srun: error: n1: task 0: Exited with exit code 1\n", "python_exception"),
    "srun, killed": ("srun: error: n1: tasks 0-3: Killed\n", "killed"),
    "srun, node failure": ("srun: error: Node failure on n7\n", "node_failure"),
    "Open MPI": (IMPORT_ERROR + OPEN_MPI, "python_exception"),
    "Open MPI alone": (OPEN_MPI, "unknown"),
    "Open MPI, signal": (
        "mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).\n", "killed",
    ),
    "MPICH and Intel": (HYDRA, "killed"),
    "MPICH, exit code": (HYDRA.replace("KILLED BY SIGNAL: 9 (Killed)", "EXIT CODE: 1"), "unknown"),
    "Cray": ("x3006c0s13b0n0.hsn.cm: rank 3 died from signal 9\n", "killed"),
    "PBS, memory": ("=>> PBS: job killed: mem 123456kb exceeded limit 120000kb\n", "host_oom"),
    "LSF, memory": (
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nExited with exit code 137.\n", "host_oom",
    ),
    "LSF, exit code": (IMPORT_ERROR + "\nExited with exit code 1.\n", "python_exception"),
    "Primus": (IMPORT_ERROR + "[NODE-0(gpu-26)] [ERROR] primus launcher exited with code 1\n", "python_exception"),
    "the kernel": ("[1234.5] Out of memory: Killed process 4242 (python3) total-vm:1kB\n", "host_oom"),
    "the shell": ("./train.sh: line 12:  4242 Killed                  python pretrain_gpt.py $ARGS\n", "killed"),
    "the shell, alone": ("Killed\n", "killed"),
    "the shell, segfault": ("Segmentation fault (core dumped)\n", "segfault"),
    "a script": ("[Sun May 10 01:54:52 AM UTC 2026] SFT attempt #1 rc=1 last_step=40\n", "unknown"),
    "a script, killed": ("train.sh: training exited with code 137\n", "killed"),
    "accelerate": (
        IMPORT_ERROR + "Traceback (most recent call last):\n"
        '  File "/usr/bin/accelerate", line 8, in <module>\n'
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.\n",
        "python_exception",
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", ["without a dump", "after the arguments", "while it trains"])
@pytest.mark.parametrize(("text", "failure"), DEATHS.values(), ids=DEATHS.keys())
def test_a_death_is_reported_once_wherever_it_comes(text: str, failure: str, place: str) -> None:
    """Before anything that is known, before the first iteration, and in the loop: one crash, and no hang."""
    if place == "without a dump":
        played = play([(0.0, "START\n"), (5.0, text)], after=180.0)
    else:
        played = starting(text) if place == "after the arguments" else trained(text)
    assert failed(played) == (failure, "critical")
    assert played.kinds() <= {"crash", "crash_without_exit"}
    assert played.state.proven
    if text != DEATHS["the kernel"][0]:  # which tells of a process, not whether the job ended
        assert played.kinds() == {"crash"}
    assert played.state.failures_total == {failure: 1}


def live(*readings: tuple[float, str]) -> tuple[list[Transition], dict[str, str]]:
    """A file that grows while the daemon follows it: what was reported, and the states that the page shows."""
    core = Core(msgspec.structs.replace(default_config(), runs=(Watch(paths=("/l/*",)),)))
    core.handle(Scanned("/l", NOW), NOW)
    core.handle(Opened("/l/a.log", "/l/a.log", None, 0, NOW, False), NOW)
    core.handle(CaughtUp("/l/a.log", NOW), NOW)
    told: list[Transition] = []
    offset, now = 0, NOW
    for pause, text in readings:
        for _ in range(int(pause)):
            now += 1
            told += core.tick(now)
        core.handle(Data("/l/a.log", offset, text.encode(), now, now, 0), now)
        offset += len(text.encode())
        told += core.tick(now)
    return told, {run.run: str(run.page["state"]) for run in core.snapshot(now).runs}


@pytest.mark.parametrize(("text", "failure"), DEATHS.values(), ids=DEATHS.keys())
def test_a_death_before_any_known_line_is_reported_live(text: str, failure: str) -> None:
    """The file says nothing else: it is a run, and shows on the page. Of an import that failed nothing is told for two
    minutes, a program may go on without it.
    """
    lines = [(1.0, line) for line in text.splitlines(keepends=True)]
    told, states = live((1.0, "START\n"), *lines, (125.0 if text == IMPORT_ERROR else 60.0, "\n"))
    assert [(item.incident, item.status, item.evidence["failure"]) for item in told] == [("crash", "firing", failure)]
    assert states == {"a": "crashed"}


def test_the_processes_of_one_node_of_several() -> None:
    """Its launcher's log tells of four ends of eight: all that it started. Near miss: one of them has not ended."""
    launcher = "[2026-03-01 08:00:00,100] [INFO] [launch.py:168:main] nnodes=2, num_local_procs=4, node_rank=0\n"
    log = list(texts(Scenario(iterations=20, seconds_per_iteration=2.0, save_interval=0, world_size=8, tp=1, pp=1)))
    end = next(place for place, (_, text) in enumerate(log) if " iteration       20/" in text)
    at = log[end][0]
    gone = "[2026-03-01 08:20:00,100] [INFO] [launch.py:348:main] Process {} exits successfully.\n"
    for ended, expected in ((4, ("finished", set())), (3, ("exiting", {"hang"}))):
        ends = [(at + 5 + pid, gone.format(4242 + pid)) for pid in range(ended)]
        played = play([(0.0, launcher), *log[: end + 1], *ends], after=3600.0)
        assert (played.state.launch.phase, played.kinds()) == expected


def test_a_finished_log_that_ends_with_a_failed_import() -> None:
    """Plain python, no launcher's word: nobody went on behind it, so `replay` reports it, whatever `--after` says.
    Near miss: one that set-up lines follow.
    """
    head = [text for _, text in cut()][:3]
    for lines, expected in (([*head, IMPORT_ERROR], ["crash"]), ([IMPORT_ERROR, *head], [])):
        entries = SourceReader().feed("".join(lines).encode())
        found = replay(Judge(default_config(), repeats=False), "run", {"run": entries}, 10.0)
        assert [item.incident for _, item in found if item is not None and not item.quiet] == expected


@pytest.mark.parametrize("ranks", [1, 8])
def test_an_import_that_the_program_can_do_without_is_no_crash(ranks: int) -> None:
    """Caught and printed by the training script, by all ranks of a node; its set-up goes on a minute later."""
    printed = ranks * IMPORT_ERROR.replace("from megatron.training import pretrain", "import flash_attn_3")
    played = play([(0.0, printed), *((60.0 + at, text) for at, text in cut())])
    assert played.kinds() == set()
    assert (played.state.launch.phase, played.state.restarts, played.state.failures_total) == ("training", 0, {})


def test_a_script_s_own_python_lines_are_not_the_training() -> None:
    """`python - <<EOF` in a job's script fails, twice; the script launches all the same."""
    failed_there = KEY_ERROR.replace('"/home/me/pretrain_gpt.py"', '"<stdin>"')
    played = play([(0.0, 2 * failed_there), *((20.0 + at, text) for at, text in cut())])
    assert played.kinds() == set()
    assert (played.state.restarts, played.state.failures_total) == (0, {})


def test_a_file_that_came_with_its_whole_death_in_it_is_news() -> None:
    """A job that begins and dies between two searches of its directory; not an old log that was copied there."""
    for stamp, expected in (("2023-11-14 22:13:19", ["crash"]), ("2023-02-01 08:00:00", [])):
        core = Core(msgspec.structs.replace(default_config(), runs=(Watch(paths=("/l/*",)),)))
        core.handle(Scanned("/l", NOW), NOW)
        text = f"[{stamp},100] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 22513\n" + KEY_ERROR
        core.handle(Opened("/l/a.log", "/l/a.log", None, 0, NOW, False), NOW)
        core.handle(Data("/l/a.log", 0, text.encode(), NOW, NOW, 0), NOW)
        core.handle(CaughtUp("/l/a.log", NOW), NOW)
        told = [item for second in range(60) for item in core.tick(NOW + second)]
        assert [item.incident for item in told] == expected
        assert len(core.snapshot(NOW + 60).runs) == 1


# --- the cause ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warned", [True, False])
def test_out_of_memory_inside_nccl_is_out_of_memory(warned: bool) -> None:
    """The library's error comes first, what it died of on a later line."""
    warning = "n1:2394670:2396491 [1] include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'\n" * warned
    trace = (
        '[rank0]: Traceback (most recent call last):\n[rank0]:   File "pretrain_gpt.py", line 10, in <module>\n'
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:230, unhandled cuda error\n"
        "[rank0]: ncclUnhandledCudaError: Call to CUDA function failed.\n[rank0]: Last error:\n"
        "[rank0]: Cuda failure 2 'out of memory'\n"
    )
    played = starting(warning + trace, after=60.0)
    assert failed(played) == ("cuda_oom", "critical")
    assert played.state.failures_total == {"cuda_oom": 1}


def test_a_better_cause_that_comes_late_is_not_another_crash() -> None:
    """Slurm tells of the memory killer when the step ends, ten minutes after the watchdogs."""
    head = cut()
    at = head[-1][0]
    oom = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
    played = play([*head, (at + 300, WATCHDOG.format(rank=1)), (at + 900, oom)], after=60.0)
    assert [item.status for item in played.of("crash")] == ["firing"]
    assert played.state.launch.failure is not None
    assert played.state.launch.failure.failure == "host_oom"


# --- and the next launch begins -------------------------------------------------------------------------------------


def relaunched(text: str, pause: float) -> Played:
    """A training that dies, and is launched again after a pause."""
    first = cut()
    again = [(at + first[-1][0] + 1 + pause, line) for at, line in cut(80)]
    return play([*first, (first[-1][0] + 1, text), *again])


@pytest.mark.parametrize("pause", [0.1, 60.0, 900.0, 3600.0])
@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (KEY_ERROR, "python_exception"),
        (KEY_ERROR.replace("KeyError: 'text'", "RuntimeError: CUDA error: an illegal memory access"), "cuda_error"),
        (KEY_ERROR.replace("KeyError: 'text'", "torch.OutOfMemoryError: CUDA out of memory."), "cuda_oom"),
        (KEY_ERROR.replace("in <module>", "in train_step"), "python_exception"),
        ("./train.sh: line 12:  4242 Killed                  python pretrain_gpt.py\n", "killed"),
    ],
)
def test_a_crash_is_reported_once_although_the_next_launch_begins(text: str, failure: str, pause: float) -> None:
    """At once, within the settling time, after a quarter of an hour, after an hour."""
    if "train_step" in text and pause >= 60:
        return  # a traceback that may have been caught, then a long silence: that is a hang, and was one
    played = relaunched(text, pause)
    assert [item.status for item in played.of("crash")] == ["firing", "resolved"]
    assert played.of("crash")[0].evidence["failure"] == failure
    assert played.state.restarts == 1
    assert played.state.ends[-1].failure == failure
    assert played.state.failures_total == {failure: 1}


def test_launches_that_die_in_a_loop_are_each_reported() -> None:
    """Three that die before the first iteration, a second apart."""
    launches, at = list[tuple[float, str]](), 0.0
    for _ in range(3):
        launches += [(at + when, text) for when, text in head()]
        at = launches[-1][0] + 1
        launches.append((at, IMPORT_ERROR + "srun: error: n1: task 0: Exited with exit code 1\n"))
        at += 1
    played = play(launches, after=60.0)
    assert sum(item.status == "firing" for item in played.of("crash")) == 3
    assert played.firing("crash_loop").evidence["crashes"] == 3


def test_a_scripts_attempts_are_launches() -> None:
    """Each of its lines says how the last one ended."""
    day = "[Sat May  9 08:{minute:02}:48 PM UTC 2026] SFT attempt #{number} "
    oom = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 362.00 MiB.\n"
    log = list[tuple[float, str]]()
    for number in range(1, 4):
        minute = 2 * number
        log.append((60.0 * minute, day.format(minute=minute, number=number) + "(disk free: 61GB)\n"))
        log.append((60.0 * minute + 30, oom))
        log.append((60.0 * minute + 40, day.format(minute=minute + 1, number=number) + "rc=1 last_step=0\n"))
    log.append((600.0, day.format(minute=8, number=4) + "(disk free: 61GB)\n"))
    log.append((660.0, day.format(minute=9, number=4) + "rc=0 last_step=1200\n"))
    played = play(log, after=60.0)
    assert [item.evidence["failure"] for item in played.of("crash") if item.status == "firing"] == ["cuda_oom"] * 3
    assert (played.state.launch.phase, played.state.restarts) == ("finished", 3)
    assert played.state.failures_total == {"cuda_oom": 3}


# --- ends that are no failures --------------------------------------------------------------------------------------


ENDS = {
    "Ctrl-C": (KEY_ERROR.replace("KeyError: 'text'", "KeyboardInterrupt"), "stopped"),
    "scancel": (CANCELLED.format(why=""), "stopped"),
    "scancel of a step": (CANCELLED.format(why="").replace("JOB 1 ", "STEP 1809579.0 "), "stopped"),
    "time limit": (CANCELLED.format(why=" DUE TO TIME LIMIT"), "time_limit"),
    "requeue": (CANCELLED.format(why=" DUE TO JOB REQUEUE"), "requeued"),
    "preemption": (CANCELLED.format(why=" DUE TO PREEMPTION"), "preempted"),
    "SIGTERM, torchrun": (SIGTERM, "stopped"),
    "SIGTERM, Primus": (SIGTERM + "[NODE-0(g26)] [ERROR] primus launcher exited with code 1\n", "stopped"),
    "SIGTERM, deepspeed": (
        "[2026-03-01 08:00:05,100] [INFO] [launch.py:286:sigkill_handler] Killing subprocess 58800\n"
        "[2026-03-01 08:00:06,100] [INFO] [launch.py:295:sigkill_handler] Main process received SIGTERM, exiting\n",
        "stopped",
    ),
    "PBS": ("=>> PBS: job killed: walltime 3623 exceeded limit 3600\n", "time_limit"),
    "LSF": (
        "TERM_RUNLIMIT: job killed after reaching LSF run time limit.\nExited with exit code 140.\n", "time_limit",
    ),
    "LSF, by its owner": ("TERM_OWNER: job killed by owner.\nExited with exit code 130.\n", "stopped"),
    "the shell": ("./train.sh: line 12:  4242 Terminated              python pretrain_gpt.py\n", "stopped"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "failure"), ENDS.values(), ids=ENDS.keys())
def test_what_a_person_or_the_scheduler_ends_is_no_failure(text: str, failure: str) -> None:
    """Told as information, without a hang; no failure is counted for what a person ended."""
    played = trained(text, after=600.0)
    assert failed(played) == (failure, "info")
    assert played.kinds() == {"crash"}
    assert played.firing("crash").summary.startswith("ended after iteration 60")
    assert played.state.failures_total == ({} if failure == "stopped" else {failure: 1})


@pytest.mark.parametrize(
    "words",
    [
        "[exiting program after consuming all available data at iteration 60] datetime: 2026-03-01 08:01:02.995063 \n",
        "[exiting program at iteration 60] datetime: 2026-03-01 08:01:02 \n",
        "[after training is done] datetime: 2026-03-01 08:01:02 \n",
        "[Sun May 10 01:54:52 AM UTC 2026] SFT attempt #1 rc=0 last_step=60\n",
        "\nSuccessfully completed.\n",
    ],
)
def test_ends_in_other_words(words: str) -> None:
    """Nothing is reported, and the run has finished."""
    played = trained(words, after=1200.0)
    assert played.kinds() == set()
    assert played.state.launch.phase == "finished"


def test_a_job_that_fails_after_the_training_was_done_is_a_warning() -> None:
    """The script that reads the log finds no file: the training's work is whole."""
    text = (
        "[after training is done] datetime: 2026-03-01 08:01:02 \n"
        'Traceback (most recent call last):\n  File "/home/me/mean_log_value.py", line 10, in <module>\n'
        "FileNotFoundError: [Errno 2] No such file or directory: 'tmp.txt'\n"
        "srun: error: n1: task 0: Exited with exit code 1\n"
    )
    played = trained(text)
    told = played.firing("crash")
    assert (told.severity, told.evidence["failure"], played.state.launch.phase) == (
        "warning",
        "python_exception",
        "finished",
    )
    assert "training was done" in told.summary
    assert played.kinds() == {"crash"}


# --- silence --------------------------------------------------------------------------------------------------------


HELPER = (
    'Traceback (most recent call last):\n  File "/home/me/.local/bin/prepare.py", line 5, in <module>\n'
    "    import dataclasses\nModuleNotFoundError: No module named 'dataclasses'\n"
)


@pytest.mark.parametrize(
    "text",
    [
        HELPER,
        HELPER.replace("prepare.py", "wandb"),
        "wandb: ERROR the service exited with code 1\n",
        "preprocessing finished with code 0\n",
        "cleanup.sh: exit code: 0\n",
        "the tokenizer's cache: killed 3 stale locks, exit code 0\n",
        KEY_ERROR.replace("in <module>", "in handler"),
        "Exception ignored in: <function Pool.__del__ at 0x7f>\n" + KEY_ERROR,
        "Killed 3 stale workers\n",
    ],
)
def test_helpers_and_what_is_caught_are_silent(text: str) -> None:
    """At the very start, and between two iterations, while the training goes on."""
    log = cut()
    place = next(place for place, (_, line) in enumerate(log) if " iteration       40/" in line) + 1
    shifted = [(at + 5, line) for at, line in log]
    for timed in (
        [(0.0, text), *shifted],
        [*log[:place], (log[place - 1][0] + 0.1, text), *log[place:]],
    ):
        played = play(timed)
        assert played.kinds() == set()
        assert (played.state.launch.phase, played.state.restarts, played.state.failures_total) == ("training", 0, {})


def test_a_helpers_traceback_alone_is_told_when_nothing_follows() -> None:
    """Its job printed nothing else for half a minute."""
    assert play([(0.0, HELPER)], after=10.0).kinds() == set()
    assert failed(starting(HELPER)) == ("python_exception", "critical")


# --- at exit --------------------------------------------------------------------------------------------------------


def mllog(seconds: float, key: str) -> str:
    """A line of MLPerf's logger."""
    at = round((NOW + seconds) * 1000)
    return f' 0: :::MLLOG {{"namespace": "", "time_ms": {at}, "event_type": "POINT", "key": "{key}", "value": null}}\n'


@pytest.mark.parametrize(("waited", "hung"), [(3.0, False), (600.0, True)])
def test_processes_that_do_not_end_after_the_training_are_a_hang(waited: float, hung: bool) -> None:
    """It says that it is done, and its step stands until its time limit."""
    begun = [(0.0, mllog(0, "run_start")), *((60.0 * n, mllog(60 * n, "tracked_stats")) for n in range(1, 20))]
    end = "slurmstepd: error: *** STEP 364.14 ON w3 CANCELLED AT 2023-11-14T22:13:20 DUE TO TIME LIMIT ***\n"
    tasks = "srun: error: w1: task 9: Terminated\nsrun: Force Terminated StepId=364.14\n"
    log = [*begun, (1200.0, mllog(1200, "run_stop")), (1200.0 + waited, end + tasks)]
    played = play(log, after=60.0)
    assert played.kinds() == ({"hang"} if hung else {"crash"})
    if hung:
        told = played.firing("hang")
        assert (told.severity, told.evidence["phase"]) == ("critical", "exiting")
        assert told.evidence["silence_seconds"] == waited
        assert played.state.launch.phase == "finished"


# --- torchrun --role HOST -------------------------------------------------------------------------------------------


def test_a_tee_prefix_with_the_role_of_a_host() -> None:
    """`[HOST:RANK]:` of torchrun --role is stripped, and names the node."""
    reader = SourceReader()
    (entry,) = reader.feed(b"[ip-26-0-147-189:1]:training ...\n")
    assert (entry.event.kind, entry.event.node) == ("milestone", "ip-26-0-147-189")
    assert list(reader.feed(b"[launch.py:335]: training ...\n")) == []
