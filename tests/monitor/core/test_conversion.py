"""What an earlier version saved of a launch's end comes back as evidence of the same end."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from megatron_monitor.core.conversion import from_version_2
from megatron_monitor.run.state import Launch, RunState

FILE = Path(__file__).parents[2] / "golden" / "state" / "0.1.0.state"
OOM = {
    "failure": "cuda_oom",
    "message": "out of memory",
    "at": 90.0,
    "line": "x",
    "fatal": True,
    "rank": 3,
    "after": 40,
}
TRACE = {**OOM, "failure": "python_exception", "message": "KeyError: 'text'"}
KILLED = {**OOM, "failure": "killed", "message": "SIGKILL", "exit_code": -9}


def converted(flags: dict[str, Any], attempt: dict[str, Any]) -> Launch:
    """The launch of a run that version 2 saved, with these fields of the run and of its attempt."""
    saved = msgspec.msgpack.decode(FILE.read_bytes().partition(b"\n")[2], strict=False)
    run = next(iter(saved["runs"].values()))
    run["state"].update(flags)
    run["state"]["attempt"].update({"done_at": None, **attempt})
    plain = next(iter(from_version_2(saved)["runs"].values()))["state"]
    return msgspec.convert(plain, RunState).launch


@pytest.mark.parametrize(
    ("flags", "attempt", "state", "cause", "certain"),
    [
        ({"phase": "training"}, {}, "running", None, False),
        ({"phase": "crashed", "failure": OOM}, {"first_failure_at": 90.0, "doubtful": True}, "crashed", "cuda_oom",
         False),
        ({"phase": "crashed", "failure": OOM}, {"first_failure_at": 90.0}, "crashed", "cuda_oom", True),
        ({"phase": "crashed", "failure": TRACE}, {"first_failure_at": 90.0, "uncaught_after": 40}, "crashed",
         "python_exception", True),
        ({"phase": "crashed", "failure": KILLED}, {"first_failure_at": 90.0, "processes_ended": 1}, "crashed", "killed",
         True),
        ({"phase": "crashed", "failure": None}, {"first_failure_at": 90.0, "processes_ended": 1}, "crashed", "unknown",
         True),
        ({"phase": "finished"}, {"done_at": 80.0}, "finished", None, False),
        ({"phase": "finished", "failure": None}, {"done_at": 80.0, "job_failed_at": 90.0, "processes_ended": 1},
         "finished", "unknown", False),
    ],
)  # fmt: skip
def test_an_end_of_version_2(
    flags: dict[str, Any], attempt: dict[str, Any], state: str, cause: str | None, certain: bool
) -> None:
    """The state, the cause and how sure it is."""
    launch = converted(flags, attempt)
    assert (launch.phase, launch.ending.state, launch.ending.certain) == (flags["phase"], state, certain)
    assert (launch.failure.failure if launch.failure else None) == cause


def test_ranks_whose_watchdogs_gave_up_are_kept() -> None:
    """As many as were saved, and their nodes."""
    nccl = {**OOM, "failure": "nccl", "message": "NCCL watchdog: ALLREDUCE timed out"}
    flags = {"phase": "crashed", "failure": nccl, "watchdog_ranks": [3, 7], "watchdog_nodes": ["n1", "n2"]}
    launch = converted(flags, {"first_failure_at": 90.0})
    assert (launch.watchdog_ranks, launch.watchdog_nodes) == ([3, 7], ["n1", "n2"])
    assert launch.failure is not None
    assert (launch.failure.failure, launch.failure.rank, launch.ending.since) == ("nccl", 3, 90.0)
