"""May a run's job be touched: each condition by itself; what is unknown forbids it."""

from typing import Any

import pytest
from msgspec.structs import replace

from megatron_monitor.config.inputs import SlurmSettings
from megatron_monitor.hands.permission import Facts, is_fresh, may_act
from megatron_monitor.incidents import Incident
from megatron_monitor.run.records import Job
from megatron_monitor.run.state import RunState

SINCE = 1000.0
KNOWN = Facts(proof=("/l/12.out",), owners=frozenset({1000}))


def incident(kind: str = "hang", **more: Any) -> Incident:
    """Of the first launch."""
    fields: dict[str, Any] = {"severity": "critical", "since": SINCE, "summary": "", "onset_iteration": None,
                              "phase": "training", "notified_at": SINCE}  # fmt: skip
    return Incident(kind, **{**fields, **more})


def run(state: str = "RUNNING", **more: Any) -> RunState:
    """Job 12 of uid 1000, which began before the trouble."""
    made = RunState("r")
    made.job = Job("12", state, **{"uid": 1000, "started_at": SINCE - 500.0, "output": "/l/12.out", **more})
    return made


def other(phase: str = "training", *, progress: float | None = SINCE - 1.0, hung: bool = False) -> RunState:
    """Another run of the same job."""
    made = RunState("o", progress_at=progress)
    made.launch.phase, made.launch.hung = phase, hung  # type: ignore[assignment]
    return made


def test_a_job_of_which_all_is_known_may_be_touched() -> None:
    """In the launch in which the trouble began; one that failed by itself, too."""
    assert may_act(run(), incident(), KNOWN) == ""
    assert may_act(run("FAILED"), incident("crash"), KNOWN) == ""
    assert may_act(run(started_at=SINCE), incident(), KNOWN) == ""


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"proof": ()}, "job 12 is not proven: its output is /l/12.out, and slurm.job_from finds no id"),
        ({"owners": frozenset()}, "the log's owner (unknown)"),
        ({"owners": frozenset({None})}, "the log's owner (unknown)"),
        ({"owners": frozenset({None, 1000})}, "the log's owner (uid 1000, unknown)"),
        ({"owners": frozenset({0})}, "the log's owner (uid 0) is not known to be that of job 12 (uid 1000)"),
        ({"owners": frozenset({65534})}, "the log's owner (uid 65534)"),
        ({"owners": frozenset({1000, 1001})}, "the log's owner (uid 1000, uid 1001)"),
        ({"undecided": True}, "it is not known yet which run other lines of the job are of"),
        ({"beside": "13"}, "job 13 writes into this run, too"),
        ({"own_job": "12"}, "the monitor itself runs in job 12"),
    ],
)
def test_what_is_not_known_of_the_job_forbids_it(facts: dict[str, Any], why: str) -> None:
    """Whose it is, and which."""
    assert may_act(run(), incident(), replace(KNOWN, **facts)).startswith(why)


def test_nobodys_jobs_are_left_alone() -> None:
    """A file server calls all owners so that it does not know; root's own job is root's."""
    assert "owner" in may_act(run(uid=65534), incident(), replace(KNOWN, owners=frozenset({65534})))
    assert may_act(run(uid=0), incident(), replace(KNOWN, owners=frozenset({0}))) == ""


@pytest.mark.parametrize(
    ("mate", "free"),
    [
        (other(), False),  # it logs every ten minutes, perhaps
        (other(progress=SINCE + 1.0), False),
        (other(hung=True), True),
        (other(hung=True, progress=SINCE + 1.0), False),
        (other(hung=True, progress=SINCE), True),
        (other("crashed"), True),
        (other("finished"), True),
        (other("finished", progress=None), False),
        (other("crashed", progress=SINCE + 1.0), False),
    ],
)
def test_a_job_in_which_something_else_may_go_on_is_left_alone(mate: RunState, free: bool) -> None:
    """`srun a & srun b`: only where the other one hangs too, or is over, and has made no progress since."""
    assert (may_act(run(), incident(), replace(KNOWN, others=[mate])) == "") is free
    mate.lost = True
    assert "run o is in the same job" in may_act(run(), incident(), replace(KNOWN, others=[mate]))


@pytest.mark.parametrize(
    ("state", "trouble", "why"),
    [
        (run(started_at=SINCE + 1.0), incident(), "job 12 was started anew since the trouble began"),
        (run(started_at=None), incident(), "Slurm does not tell when job 12 began"),
        (run(), incident(attempt=1), "another launch has begun since"),
        (run(), incident("crash", evidence={"attempt": 3}), "another launch has begun since"),
        (run("COMPLETING"), incident(), "job 12 is COMPLETING"),
        (run("PENDING"), incident(), "job 12 is PENDING"),
        (run("CANCELLED"), incident("crash"), "job 12 was cancelled"),
        (run("CANCELLED", cancelled_by="ada (uid 1000)"), incident("crash"), "job 12 was cancelled by ada (uid 1000)"),
        (run("COMPLETED"), incident("crash_without_exit"), "Slurm says that job 12 has completed"),
        (run("COMPLETED"), incident("crash"), ""),  # a batch script that ends with an echo
        (run(array_id="8_3", started_at=None), incident(), "Slurm does not tell when job 8_3 began"),
        (run(components=True), incident(), "the job is one of several that run as one"),
        (RunState("r"), incident(), "the run's Slurm job is not known"),
    ],
)
def test_another_launch_or_an_end_that_somebody_wanted_is_left_alone(
    state: RunState, trouble: Incident, why: str
) -> None:
    """The incident is of the launch that runs, or that failed."""
    assert may_act(state, trouble, KNOWN) == why


def test_what_cannot_be_read_or_is_not_told_forbids_it() -> None:
    """A file of the run or of the other one, the job's output, its user; and nothing is proven unless it is said."""
    lost, unreadable = run(), run()
    lost.lost, unreadable.unreadable = True, {"/l/12.err": "EACCES"}
    assert [may_act(one, incident(), KNOWN) for one in (lost, unreadable)] == ["a file of the run cannot be read"] * 2
    assert "its output is not told" in may_act(run(output=""), incident(), Facts(owners=frozenset({1000})))
    assert "(uid None)" in may_act(run(uid=None), incident(), replace(KNOWN, owners=frozenset({None})))
    mate = other(hung=True)
    mate.unreadable = {"/l/o.err": "EACCES"}
    assert "run o" in may_act(run(), incident(), replace(KNOWN, others=[mate]))


def test_instants_of_the_log_are_compared_with_slurms_by_the_wall_clock() -> None:
    """Which was set by ten minutes since the run was first seen."""
    moved = run(started_at=SINCE + 600.0)
    moved.wall_offset = 600.0
    assert may_act(moved, incident(), KNOWN) == ""
    moved.wall_offset = 599.0
    assert "started anew" in may_act(moved, incident(), KNOWN)


@pytest.mark.parametrize(
    ("asked_at", "now", "fresh"),
    [(100.0, 180.0, True), (100.0, 180.1, False), (99.9, 120.0, False), (130.0, 130.0, True)],
)
def test_an_answer_is_fresh_for_two_intervals_and_a_call(asked_at: float, now: float, fresh: bool) -> None:
    """Of 30 s and 20 s, and never from before the trouble."""
    settings = SlurmSettings(interval=30.0)
    assert is_fresh(run(asked_at=asked_at), 100.0, now, settings) is fresh
    assert not is_fresh(RunState("r"), 100.0, now, settings)
