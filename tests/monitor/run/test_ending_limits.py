"""The ladder at each of its limits: rows of evidence -> all that they come to, in whatever order they stand."""

import itertools
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from megatron_monitor.parsers.events import Failure
from megatron_monitor.run.ending import KINDS, NODE_FAULTS, RUNNING, Evidence, ending


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


def died(cause: int = 0, since: float = 0.0, **more: Any) -> dict[str, Any]:
    """Crashed, for certain since it failed."""
    return {"state": "crashed", "certain": True, "since": since, "certain_at": since, "cause": cause, **more}


def over(cause: int | None = None, **more: Any) -> dict[str, Any]:
    """Finished."""
    return {"state": "finished", "cause": cause, **more}


def came_to(rows: list[Evidence], expected: dict[str, Any], **known: Any) -> None:
    """All of the ending, in every order; `cause` and `hint` are places in the rows, what is not named is as of none."""
    of_rows = {name: rows[expected[name]] for name in ("cause", "hint") if expected.get(name) is not None}
    for order in itertools.permutations(rows):
        assert ending(order, **known) == replace(RUNNING, **{**expected, **of_rows})


DONE, FINISHED, ORDERLY, GONE = row("done", 0.0), row("finished", 0.0), row("orderly", 0.0), row("terminated", 1.0)
WELL, BADLY = row("exit", 1.0, exit_code=0), row("exit", 1.0, exit_code=1)
STEP: dict[str, Any] = {"notice": "step_cancelled"}
AT_0: dict[str, Any] = {"done_at": 0.0}
ONE: dict[str, Any] = {"ended": 1, "gone": True}
DOUBT: dict[str, Any] = {"state": "crashed", "since": 0.0, "cause": 0}
LADDER: dict[str, tuple[list[Evidence], dict[str, Any]]] = {
    "nothing": ([], {}),
    # hung at exit
    "done, its time over 10 s later": (
        [DONE, failed("time_limit", 10.0, **STEP)], {"state": "exiting", "cause": 1, "cut_at": 10.0, **AT_0},
    ),
    "then silence": ([DONE, failed("time_limit", 60.0, **STEP), row("silence", 99.0)], over(1, cut_at=60.0, **AT_0)),
    "sooner it is a teardown": ([DONE, failed("time_limit", 9.9, **STEP)], died(1, 9.9, **AT_0)),
    "soon after": ([row("done", 5.0), failed("time_limit", 10.0, **STEP)], died(1, 10.0, done_at=5.0)),
    "the job's time": ([DONE, failed("time_limit", 60.0, notice="job_cancelled")], died(1, 60.0, **AT_0)),
    "somebody ends the step": ([DONE, failed("stopped", 60.0, **STEP)], died(1, 60.0, **AT_0)),
    "not done": ([failed("time_limit", **STEP)], died()),
    # the program says that it is over
    "over": ([FINISHED], over(**AT_0)),
    "what failed 5 s before is of the same end": ([failed("nccl", -5.0), FINISHED], over(0, **AT_0)),
    "what failed before that is not": ([failed("nccl", -5.1), FINISHED], died(0, -5.1, **AT_0)),
    "what may have been caught was": ([failed("cuda_oom", -60.0), FINISHED], over(0, **AT_0)),
    "who lost a peer names no cause": ([failed("nccl", -60.0, consequence=True), FINISHED], over(0, **AT_0)),
    "a process ends badly behind it": ([FINISHED, BADLY], over(1, job_failed_at=1.0, **ONE, **AT_0)),
    "its code is not told": ([FINISHED, row("exit", 1.0)], over(1, **ONE, **AT_0)),
    "it segfaults behind it": ([FINISHED, failed("segfault", 1.0), BADLY], over(1, job_failed_at=1.0, **ONE, **AT_0)),
    "after a silence": ([FINISHED, row("silence", -600.0), failed("nccl", -300.0)], died(2, -300.0, **AT_0)),
    # the loop is done
    "done": ([DONE], {"state": "exiting", **AT_0}),
    "done and silent": ([DONE, row("silence", 600.0)], over(**AT_0)),
    "done, the job ends badly": ([DONE, BADLY], over(1, job_failed_at=1.0, **ONE, **AT_0)),
    "done, twice": ([DONE, BADLY, row("exit", 2.0)], over(1, job_failed_at=1.0, ended=2, gone=True, **AT_0)),
    "done, it fails and ends badly": ([DONE, failed("nccl", 1.0), BADLY], died(1, 1.0, **ONE, **AT_0)),
    "done, a helper raises": ([DONE, raised(1.0, helper=True)], {"state": "exiting", "cause": 1, "gone": True, **AT_0}),
    "one ended well, a helper raises": ([WELL, raised(2.0, helper=True)], over(1, **ONE)),
    "silence, then an end": ([row("silence", 0.0), BADLY], over(1, **ONE)),
    "an end, then silence": ([row("silence", 1.0), BADLY], died(1, 1.0, **ONE)),
    # died
    "a failure": ([failed("nccl")], died()),
    "a watchdog": ([row("watchdog", 0.0, "nccl")], died()),
    "a hint": ([failed("nccl", fatal=False)], {"cause": 0, "hint": 0}),
    "a hint, the others are ended": ([failed("nccl", fatal=False), GONE], died(0, 1.0, gone=True)),
    "the others are ended": ([GONE], {"gone": True}),
    "they were ended before": ([failed("nccl", 2.0), GONE], died(0, 2.0, gone=True)),
    "what is fatal tells since when": (
        [failed("nccl", fatal=False), failed("nccl", 3.0), row("terminated", 4.0)], died(1, 3.0, gone=True),
    ),
    "in a function": ([raised(fatal=False)], {"cause": 0, "hint": 0}),
    "uncaught": ([raised()], died(gone=True)),
    "of a rank, others write on": ([raised(rank=3)], died()),
    "of a node, others write on": ([raised(node="n1")], died()),
    "of a helper": ([raised(helper=True)], {**DOUBT, "gone": True}),
    "of an import": ([raised(optional=True)], {**DOUBT, "gone": True}),
    "of a helper, an end": ([raised(helper=True), BADLY], died(certain_at=1.0, **ONE)),
    "it may be caught": ([failed("cuda_oom")], DOUBT),
    "its code is known": ([failed("cuda_oom", exit_code=1)], died()),
    "its code is 0": ([failed("nccl", exit_code=0)], died()),
    "in a site's words": ([failed("cuda_oom", pattern=True)], died()),
    "another had ended": ([failed("cuda_oom", consequence=True)], died()),
    "nothing goes on": ([failed("cuda_oom"), row("silence", 60.0)], died(certain_at=None)),
    "an end": ([BADLY], died(0, 1.0, **ONE)),
    "an end without a code": ([row("exit", 1.0)], died(0, 1.0, **ONE)),
    # asked to end
    "asked": ([ORDERLY], over()),
    "somebody cancels it": ([ORDERLY, failed("stopped", 1.0)], over(1)),
    "its time is over": ([ORDERLY, failed("time_limit", 1.0)], over(1)),
    "it is preempted": ([ORDERLY, failed("preempted", 1.0)], over(1)),
    "asked, an end": ([ORDERLY, BADLY], over(1, **ONE)),
    "asked, it fails": ([ORDERLY, failed("nccl", 1.0)], died(1, 1.0)),
    "asked, it is killed": ([ORDERLY, failed("killed", 1.0)], died(1, 1.0)),
    "asked, a helper raises": ([ORDERLY, raised(1.0, helper=True)], over(1, gone=True)),
    "asked, it raised": ([ORDERLY, raised(1.0, fatal=False), GONE], died(1, 1.0, gone=True)),
    # a step came behind it
    "it was caught": ([failed("cuda_oom", passed_at=1.0)], {"hint": 0}),
    "it is in doubt": ([failed("ecc", passed_at=1.0)], {**DOUBT, "passed_at": 1.0}),
    "the last step counts": (
        [failed("ecc", passed_at=1.0), failed("nccl", 0.5, passed_at=2.0)], {**DOUBT, "passed_at": 2.0},
    ),
    "one behind the step": ([failed("ecc", passed_at=1.0), failed("nccl", 2.0)], died(certain_at=2.0, passed_at=1.0)),
    "caught, then an end": ([failed("cuda_oom", passed_at=0.5), BADLY], died(0, 1.0, **ONE)),
    "done with a part": ([replace(DONE, passed_at=1.0)], {}),
    "one ended well": ([replace(WELL, passed_at=2.0)], {}),
    "over all the same": ([replace(FINISHED, passed_at=1.0)], over(**AT_0)),
    "asked all the same": ([replace(ORDERLY, passed_at=1.0)], over()),
    "others were ended all the same": ([replace(GONE, passed_at=2.0)], {"gone": True}),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "expected"), LADDER.values(), ids=LADDER.keys())
def test_rows_to_ending(rows: list[Evidence], expected: dict[str, Any]) -> None:
    """Every field."""
    came_to(rows, expected)


@pytest.mark.parametrize(
    ("ends", "processes", "state"),
    [
        ([{"count": 4}], None, "finished"),
        ([{"count": 3}], 4, "exiting"),
        ([{"count": 4}], 4, "finished"),
        ([{"count": 5}], 4, "finished"),
        ([{"count": 3}, {"node": "n1"}], 4, "finished"),
        ([{"count": 1, "launch": True}], 4, "finished"),
    ],
)
def test_processes_that_ended_well(ends: list[dict[str, Any]], processes: int | None, state: str) -> None:
    """All of them, or the whole launch."""
    rows = [row("exit", 0.0, exit_code=0, **end) for end in ends]
    came_to(rows, {"state": state, "ended": sum(one.count for one in rows), "gone": True}, processes=processes)


def test_where_all_is_done_a_helper_may_raise() -> None:
    """Iterations that were asked for are an end of the loop as its own words are."""
    rows = [row("traceback", 0.0, "python_exception", fatal=True, helper=True)]
    came_to(rows, {"cause": 0, "gone": True, "hint": 0}, all_done=True)


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
