"""How an attempt ended: lines of a log -> state, cause, certainty; the same in whatever order they came."""

import itertools
import random
from typing import get_args

import pytest

from megatron_monitor.parsers.events import Failure, LogEvent
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.run.ending import KINDS, NODE_FAULTS
from megatron_monitor.run.fold import fold
from megatron_monitor.run.state import Attempt, RunState

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
WATCHDOG = (
    "[rank{rank}]:[E301 08:12:19.123456789 ProcessGroupNCCL.cpp:694] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=8058, OpType=BROADCAST, Timeout(ms)=600000) ran for 600062 milliseconds before "
    "timing out.\n"
)
CANCELLED = "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-03-01T08:13:19{why} ***\n"
HELPER = (
    'Traceback (most recent call last):\n  File "/home/me/.local/bin/prepare.py", line 5, in <module>\n'
    "    import dataclasses\nModuleNotFoundError: No module named 'dataclasses'\n"
)
STEP = (
    " iteration {number:8d}/     500 | consumed samples: {number} | elapsed time per iteration (ms): 2000.0 | learning "
    "rate: 1.0E-04 | global batch size:    64 | lm loss: 3.0E+00 | grad norm: 1.0 | number of skipped iterations:   0 "
    "| number of nan iterations:   0 |\n"
)
IN_A_FUNCTION = KEY_ERROR.replace("in <module>", "in train_step")
OF_RANK_3 = "".join(f"[rank3]: {line}\n" for line in KEY_ERROR.splitlines())
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
ECC = "[rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
SRUN = "srun: error: n1: task 3: Exited with exit code 1\n"
KILLED = "srun: error: n1: task 3: Killed\n"
SEGFAULT = "srun: error: n1: task 3: Segmentation fault (core dumped)\n"
NODE = "srun: error: Node failure on n7\n"
DISK = "OSError: [Errno 28] No space left on device\n"
CGROUP = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
CLOSING = "W1120 11:03:03 [api.py:900] Sending process 291888 closing signal SIGTERM\n"
REMOTE = "[rank1]: torch.distributed.DistBackendError: NCCL error in: ncclRemoteError: remote process exited\n"
LOST = KEY_ERROR.replace("KeyError: 'text'", "RuntimeError: [pair.cc:598] Connection closed by peer [10.0.0.1]:1234")
XID = "kernel: NVRM: Xid (PCI:0000:10:1c): 79, pid=1896, GPU has fallen off the bus.\n"
DONE = "[after training is done] datetime: 2026-03-01 08:01:02 \n"
EXITED = "[exiting program at iteration 60] datetime: 2026-03-01 08:01:02 \n"
ASKED = "[exiting program after receiving SIGTERM] datetime: 2026-03-01 08:01:02 \n"
WELL = "[2026-03-01 08:00:05,100] [INFO] [launch.py:347:main] Process 77 exits successfully.\n"
STEP_CANCELLED = CANCELLED.format(why="").replace("JOB 1 ", "STEP 1.0 ")
LATE = "slurmstepd: error: *** STEP 364.14 ON w3 CANCELLED AT 2026-03-01T08:13:20 DUE TO TIME LIMIT ***\n"
HYDRA_APP = (
    "Error executing job with overrides: ['trainer.nnodes=2']\n"
    + IN_A_FUNCTION
    + "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"
)
RAYS = HYDRA_APP.replace("KeyError:", "ray.exceptions.RayTaskError(KeyError): ray::fit()\nKeyError:")
HBM = KEY_ERROR.replace(
    "KeyError: 'text'",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in "
    "memory space hbm. Used 17.31G of 15.75G hbm.",
)
QUOTA = KEY_ERROR.replace("KeyError: 'text'", "RuntimeError: RESOURCE_EXHAUSTED: Quota exceeded for requests a minute")
OF_XLA = "W0301 08:00:05.100000 42 gemm.cc:12] RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.\n"
NPU = KEY_ERROR.replace("KeyError: 'text'", "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0)")
PADDLE = "Out of memory error on GPU 0. Cannot allocate 1.507812GB memory on GPU 0.\n"
SUMMARY = "{'train_runtime': 120.0, 'train_samples_per_second': 32.0, 'train_steps_per_second': 0.5, 'epoch': 1.0}\n"
WANDB = "wandb: Find logs at: ./wandb/run-20250302_115218-wntzruuo/logs\n"
MISSED = (
    "[rank1]:[W301 08:01:14.546911398 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=63, addr=[n1]:454, "
    "remote=[n0]:8888): Failed to recv, got 0 bytes. Connection was likely closed.\n"
)
DOGS = WATCHDOG.format(rank=1) + WATCHDOG.format(rank=5)

TABLE = {
    # name: lines behind iteration 60, state, cause, certain
    "nothing": ("", "running", None, False),
    "an exception in a function": (IN_A_FUNCTION, "running", "python_exception", False),
    "one that nobody caught": (KEY_ERROR, "crashed", "python_exception", True),
    "one of a helper": (HELPER, "crashed", "python_exception", False),
    "one, then its launcher": (IN_A_FUNCTION + TORCHRUN, "crashed", "python_exception", True),
    "one, then srun": (IN_A_FUNCTION + SRUN, "crashed", "python_exception", True),
    "srun alone": (SRUN, "crashed", "unknown", True),
    "out of memory": (OOM, "crashed", "cuda_oom", False),
    "out of memory, then srun": (OOM + SRUN, "crashed", "cuda_oom", True),
    "out of memory, the others are ended": (OOM + CLOSING, "crashed", "cuda_oom", True),
    "a full disk": (DISK, "crashed", "disk_full", False),
    "a CUDA error": (ECC, "crashed", "ecc", True),
    "an Xid": (XID, "running", "node_failure", False),
    "an Xid, then srun": (XID + SRUN, "crashed", "node_failure", True),
    "the others are ended": (CLOSING, "running", None, False),
    "watchdogs": (DOGS, "crashed", "nccl", True),
    "watchdogs, then a node": (DOGS + NODE, "crashed", "node_failure", True),
    "watchdogs, then the memory killer": (DOGS + CGROUP, "crashed", "host_oom", True),
    "an exception, then the watchdogs": (OF_RANK_3 + DOGS, "crashed", "python_exception", True),
    "an NCCL error, then a node": (REMOTE + NODE + SRUN, "crashed", "node_failure", True),
    "an exception, then the memory killer": (KEY_ERROR + CGROUP, "crashed", "host_oom", True),
    "lost a peer, which raised": (LOST + KEY_ERROR, "crashed", "python_exception", True),
    "killed, and lost it": (KILLED + LOST, "crashed", "killed", True),
    "killed, and the step is cancelled": (KILLED + STEP_CANCELLED, "crashed", "killed", True),
    "the job is cancelled, tasks are killed": (
        CANCELLED.format(why="") + KILLED, "crashed", "stopped", True,
    ),
    "a time limit": (LATE + KILLED, "crashed", "time_limit", True),
    "a segfault": (SEGFAULT, "crashed", "segfault", True),
    "torchrun is told to end": (SIGTERM, "crashed", "stopped", True),
    "an exception, then torchrun is told to end": (KEY_ERROR + SIGTERM, "crashed", "python_exception", True),
    "the loop is done": (DONE, "exiting", None, False),
    "the program is done": (EXITED, "finished", None, False),
    "done, then the job fails": (DONE + SRUN, "finished", "unknown", False),
    "the program is done, then the job fails": (EXITED + SRUN, "finished", "unknown", False),
    "done, then a helper fails": (DONE + HELPER + SRUN, "finished", "python_exception", False),
    "the program is done, then a worker segfaults": (EXITED + SEGFAULT, "finished", "segfault", False),
    "done, then an exception": (DONE + KEY_ERROR + SRUN, "crashed", "python_exception", True),
    "done, a rank leaves, and another misses it": (DONE + WANDB + MISSED, "exiting", "nccl", False),
    "a rank leaves, and another misses it": (WANDB + MISSED, "crashed", "nccl", True),
    "asked to end": (ASKED, "finished", None, False),
    "asked to end by the scheduler": (ASKED + LATE, "finished", "time_limit", False),
    "one failed, the others are asked to end": (OF_RANK_3 + ASKED + SRUN, "crashed", "python_exception", True),
    "an exception that comes out of hydra": (HYDRA_APP, "crashed", "python_exception", True),
    "one that Ray brings": (RAYS, "crashed", "python_exception", True),
    "one that hydra names, and goes on": (HYDRA_APP[: HYDRA_APP.find("\nSet ")], "running", "python_exception", False),
    "a TPU's memory": (HBM, "crashed", "cuda_oom", True),
    "a server's quota": (QUOTA, "crashed", "python_exception", True),
    "a try of XLA's": (OF_XLA, "running", None, False),
    "an NPU's memory": (NPU, "crashed", "cuda_oom", True),
    "memory under Paddle": (PADDLE, "crashed", "cuda_oom", False),
    "the training is done, then an exception": (SUMMARY + KEY_ERROR + SRUN, "finished", "python_exception", False),
    "it takes its leave": (WANDB, "exiting", None, False),
    "an exception in a function, then it takes its leave": (
        IN_A_FUNCTION + WANDB, "crashed", "python_exception", True
    ),
    "the training is done, then it takes its leave": (SUMMARY + WANDB, "finished", None, False),
    "a process ends well": (WELL, "finished", None, False),
    "a process ends well, another does not": (WELL + SRUN, "crashed", "unknown", True),
}  # fmt: skip


def events(text: str) -> list[LogEvent]:
    """What the lines tell."""
    reader = SourceReader()
    return [*reader.feed(text.encode()), *reader.flush()]


def attempt(reported: list[LogEvent], *, apart: float = 0.01, iterations: int = 60) -> Attempt:
    """An attempt of 2 s an iteration, and what is told behind its last."""
    state = RunState("run")
    steps = events("".join(STEP.format(number=number) for number in range(1, iterations + 1)))
    for place, entry in enumerate(steps):
        fold(state, entry, "log", 2.0 * place, True)
    for place, entry in enumerate(reported):
        fold(state, entry, "log", 2.0 * iterations + apart * place, True)
    return state.attempt


def verdict(found: Attempt) -> tuple[str, str | None, bool]:
    """State, cause, certainty."""
    return found.ending.state, found.failure.failure if found.failure else None, found.ending.certain


@pytest.mark.parametrize(("text", "state", "cause", "certain"), TABLE.values(), ids=TABLE.keys())
def test_lines_to_ending(text: str, state: str, cause: str | None, certain: bool) -> None:
    """The table."""
    assert verdict(attempt(events(text))) == (state, cause, certain)


ORDERS = {
    **{name: row[0] for name, row in TABLE.items()},
    "import, then Open MPI": IMPORT_ERROR + OPEN_MPI,
}


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("text", ORDERS.values(), ids=ORDERS.keys())
def test_the_order_of_arrival_changes_no_verdict(text: str, begun: bool) -> None:
    """All orders of up to five events, sixty of more: files of ranks, standard error beside standard output."""
    reported, iterations = events(text), 60 if begun else 0
    expected = verdict(attempt(reported, iterations=iterations))
    orders = list(itertools.permutations(reported)) if len(reported) <= 5 else []
    rng = random.Random(1)
    orders += [tuple(rng.sample(reported, len(reported))) for _ in range(60 if not orders else 0)]
    assert {verdict(attempt(list(order), iterations=iterations)) for order in orders} == {expected}


OF_LLAMA_FACTORY = KEY_ERROR.replace("/home/me/pretrain_gpt.py", "/app/src/llamafactory/launcher.py")


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (KEY_ERROR, True),
        (HELPER, True),
        (OF_LLAMA_FACTORY + TORCHRUN, True),
        (SRUN, True),
        (IN_A_FUNCTION, False),
        ("", False),
    ],
)
def test_what_fails_behind_the_end_is_told(text: str, reported: bool) -> None:
    """It cost no iteration, but a model may not have been written."""
    assert (attempt(events(SUMMARY + text)).ending.job_failed_at is not None) is reported


# --- a step behind it ----------------------------------------------------------------------------------------------


def behind(text: str, *steps: float, rest: str = "", stream: str = "log") -> Attempt:
    """The text half a second behind iteration 60, in that stream, steps at these seconds behind it, and the rest."""
    state = RunState("run")
    lines = [(2.0 * number, STEP.format(number=number)) for number in range(1, 61)]
    lines.append((120.5, text))
    lines += [(120.5 + after, STEP.format(number=61 + place)) for place, after in enumerate(steps)]
    lines.append((120.5 + (steps[-1] if steps else 0.0) + 0.1, rest))
    for at, line in lines:
        for entry in events(line):
            fold(state, entry, stream if line == text else "log", at, True)
    return state.attempt


@pytest.mark.parametrize("text", [ECC, KEY_ERROR, SRUN, SUMMARY])
def test_which_of_two_files_was_written_first_is_not_known(text: str) -> None:
    """The last steps before an end are read behind it, where they stand in another file; not those of three seconds."""
    assert verdict(behind(text, 0.1, 0.2, 0.3, stream="err"))[:2] == verdict(behind(text))[:2]
    assert verdict(behind(text, 0.1, 3.1, stream="err")) == ("running", None, False)


@pytest.mark.parametrize("steps", [(3.2,), (1.5, 3.5), (0.1, 0.2)])
@pytest.mark.parametrize("text", [ECC, KEY_ERROR, OOM, IN_A_FUNCTION, SRUN, WELL, DONE, DOGS])
def test_what_the_loop_goes_on_from_is_forgotten(text: str, steps: tuple[float, ...]) -> None:
    """A step that comes later than usual, or two: nothing of it is the cause of what comes later."""
    found = behind(text, *steps)
    assert (found.phase, verdict(found), found.evidence, found.watchdog_ranks) == (
        "training", ("running", None, False), [], [],
    )  # fmt: skip
    assert verdict(behind(text, *steps, rest=SRUN)) == ("crashed", "unknown", True)


# --- how much is kept -----------------------------------------------------------------------------------------------


def test_each_failure_that_a_parser_may_name_is_judged() -> None:
    """And it is known who is to be left out of the next attempt."""
    assert set(KINDS) == set(get_args(Failure))
    assert {"ecc", "host_oom", "node_failure", "cuda_error", "bus_error", "nccl", "segfault"} == NODE_FAULTS
