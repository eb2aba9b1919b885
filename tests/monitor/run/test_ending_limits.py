"""The cause of an end at each limit: rows of evidence, in whatever order they stand."""

import itertools
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from megatron_monitor.parsers.events import Failure
from megatron_monitor.run.ending import KINDS, NODE_FAULTS, Evidence, ending


def row(sort: str, at: float, failure: str = "", **more: Any) -> Evidence:
    """One fact; a failure is fatal where nothing else is said, a process's end has no cause."""
    fatal, failure = sort in ("failure", "watchdog"), failure or ("unknown" if sort == "exit" else "")
    return Evidence(sort, at, failure, **{"fatal": fatal, **more})  # type: ignore[arg-type]


def failed(failure: str, at: float = 0.0, **more: Any) -> Evidence:
    """A line that names a failure."""
    return row("failure", at, failure, **more)


def raised(at: float = 0.0, **more: Any) -> Evidence:
    """An exception that nobody caught."""
    return row("traceback", at, "python_exception", **{"fatal": True, **more})


# --- the cause ------------------------------------------------------------------------------------------------------


def cause(*rows: Evidence) -> Evidence:
    """What they come to, in every order."""
    found = [ending(order).cause for order in itertools.permutations(rows)]
    assert found[0] is not None
    assert all(one == found[0] for one in found)
    return found[0]


SAYS = [
    ["ecc", "disk_full", "host_oom", "cuda_oom", "node_failure"],
    ["cuda_error", "bus_error"],
    ["time_limit", "preempted", "requeued", "python_exception", "nccl", "segfault", "killed", "stopped"],
    ["unknown"],
]
BEHIND = {"time_limit", "preempted", "requeued", "segfault"}
"""What says most, then what leads to the others; what may stand behind a process that was killed or stopped."""


@pytest.mark.parametrize(("more", "less"), list(itertools.combinations(itertools.chain(*SAYS), 2)))
def test_which_of_two_failures_is_the_cause(more: str, less: str) -> None:
    """What says more; of those that say as much, what leads to the other within a moment, and else what came first."""
    alike = any({more, less} <= set(kinds) for kinds in SAYS)
    for apart in (5.0, 5.1):
        late = alike and apart > 5.0 and not (more in BEHIND and less in ("killed", "stopped"))
        assert cause(failed(less), failed(more, apart)).failure == (less if late else more)
        assert cause(failed(more), failed(less, apart)).failure == (
            less if less in BEHIND and more in ("killed", "stopped") and apart > 5.0 else more
        )


WORDS = [
    row("exit", 0.0, exit_code=1), failed("killed", consequence=True), failed("python_exception", exit_code=1),
    failed("nccl", consequence=True), failed("nccl", fatal=False), raised(fatal=False), failed("unknown"),
    failed("python_exception"), failed("python_exception", exit_code=1, raised=True), failed("cuda_error"),
    failed("ecc", pattern=True),
]  # fmt: skip
"""From what says least to what says most."""
ALIKE = [
    (failed("unknown", by="srun", exit_code=1), 1), (failed("unknown", consequence=True), 1),
    (failed("unknown", by="srun"), 3), (raised(fatal=False, consequence=True), 3), (row("traceback", 0.0, "nccl"), 5),
    (row("traceback", 0.0, "ecc", fatal=True, helper=True), 5), (failed("unknown", exit_code=1), 6),
    (row("traceback", 0.0, "nccl", fatal=True), 7), (failed("nccl", exit_code=1), 7),
    (failed("unknown", pattern=True), 8), (failed("python_exception", pattern=True, exit_code=1), 8),
]  # fmt: skip
"""And what says as much as a row of these."""


def test_what_a_line_says_of_the_cause() -> None:
    """A minute apart, one against the other: what says more is the cause, of the same weight what came first."""
    ended = row("terminated", 120.0)
    placed = [*((one, place) for place, one in enumerate(WORDS)), *ALIKE]
    for (one, first), (other, then) in itertools.product(placed, placed):
        if one is not other:
            expected = one if first >= then else replace(other, at=60.0)
            found = cause(one, replace(other, at=60.0), ended)
            assert found == replace(expected, exit_code=found.exit_code)


@pytest.mark.parametrize(
    ("first", "leads"),
    [
        # of one moment: a site's words, a rank's own line, a failure's line before its exception
        (failed("python_exception", exit_code=1, raised=True), failed("nccl", 1.0, pattern=True)),
        (failed("nccl"), failed("nccl", 1.0, rank=3)),
        (row("traceback", 0.0, "nccl", fatal=True), failed("nccl", 1.0)),
        (row("traceback", 0.0, "nccl", fatal=True), row("watchdog", 1.0, "nccl")),
        # a job that somebody cancelled was ended before its processes were
        (failed("killed"), failed("stopped", 1.0, notice="job_cancelled")),
        (failed("python_exception"), failed("stopped", 1.0, by="pbs")),
        (failed("python_exception"), failed("stopped", 1.0, by="lsf")),
        (failed("stopped", by="lsf"), failed("time_limit", 1.0)),
        (failed("stopped", by="lsf"), failed("preempted", 1.0)),
        (failed("stopped", notice="step_cancelled"), failed("killed", 1.0)),
        (failed("stopped", by="srun"), failed("killed", 1.0)),
        (failed("nccl", notice="job_cancelled"), failed("python_exception", 1.0)),
    ],
)
def test_which_of_one_moment_leads(first: Evidence, leads: Evidence) -> None:
    """Though its line came later."""
    assert cause(first, leads) == leads


NODE = failed("node_failure")


@pytest.mark.parametrize(
    ("told", "other", "node", "code"),
    [
        (NODE, failed("node_failure", 1.0, node="n7", fatal=True), "n7", None),
        (NODE, failed("node_failure", 9.0, node="n7"), "n7", None),
        (replace(NODE, node="n1"), failed("node_failure", 9.0, node="n7"), "n1", None),
        (failed("node_failure", 1.0, node="n1", rank=3), failed("node_failure", node="n7"), "n1", None),
        (replace(NODE, failure="ecc"), failed("ecc", 9.0, node="n7"), None, None),
        (NODE, failed("nccl", 1.0, node="n7"), None, None),
        (failed("python_exception"), failed("python_exception", 1.0, exit_code=1), None, None),
        (raised(), failed("python_exception", 1.0, exit_code=1), None, 1),
        (raised(exit_code=3), failed("python_exception", 1.0, exit_code=1), None, 3),
        (raised(), failed("nccl", 1.0, exit_code=6, consequence=True), None, None),
        (raised(), row("exit", 1.0, exit_code=1), None, None),
    ],
)
def test_what_others_know_of_the_cause(told: Evidence, other: Evidence, node: str | None, code: int | None) -> None:
    """The node that the scheduler names, the code that a launcher saw."""
    found = cause(told, other)
    assert (found.failure, found.node, found.exit_code) == (told.failure, node, code)


def test_which_kinds_speak_of_their_node() -> None:
    """Who is to be left out; and each failure that a parser may name is judged."""
    assert {"ecc", "host_oom", "node_failure", "cuda_error", "bus_error", "nccl", "segfault"} == NODE_FAULTS
    assert set(KINDS) == {*itertools.chain(*SAYS)} == set(get_args(Failure))
