"""May a run's job be touched: each condition by itself; what is unknown forbids it."""

from typing import Any

import pytest
from msgspec.structs import replace

from megatron_monitor.advice import Advice, Neighbour, OpenIncident, Stream
from megatron_monitor.remediator.permission import observed, of_job, proofs
from megatron_monitor.run.records import SlurmJob

SINCE = 1000.0
NOW = 1600.0
FILE = Stream("/l/12.out", pushed=False, owner=1000, written_at=900.0, steps=True)
ADVICE = Advice("r", job="12", streams=[FILE], followed=True, attempt=1)
PROOF = ["/l/12.out"]


def incident(kind: str = "hang", **more: Any) -> OpenIncident:
    """Of the present attempt."""
    fields: dict[str, Any] = {"id": "e", "severity": "critical", "since": SINCE, "attempt": 1}
    return OpenIncident(incident=kind, **{**fields, **more})


def job(state: str = "RUNNING", **more: Any) -> SlurmJob:
    """Job 12 of uid 1000, which began before the trouble."""
    return SlurmJob("12", state, **{"uid": 1000, "started_at": SINCE - 500.0, "output": "/l/12.out", **more})


def test_a_job_of_which_all_is_known_may_be_touched() -> None:
    """In the attempt in which the trouble began; one that failed by itself, too."""
    assert observed(ADVICE, incident()) == ""
    for one, kind in ((job(), "hang"), (job("BOOT_FAIL"), "hang"), (job(started_at=SINCE), "crash")):
        assert of_job(ADVICE, incident(kind), one, PROOF, "", NOW) == ""
    done = job("COMPLETED")  # a batch script that ends with an echo
    assert of_job(ADVICE, incident("crash"), done, PROOF, "", NOW) == ""
    array = replace(ADVICE, job="8_3")
    assert of_job(array, incident(), job(array_id="8_3"), PROOF, "", NOW) == ""


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"followed": False}, "a file of the run is unreadable or not read to its end"),
        ({"job": ""}, "the run's Slurm job is not known"),
        ({"attempt": 2}, "another attempt has begun since"),
        ({"undecided": True}, "the run of other lines of the job is not known yet"),
        ({"second_job": "13"}, "job 13 also writes into this run"),
    ],
)
def test_what_the_observer_does_not_know_forbids_it(facts: dict[str, Any], why: str) -> None:
    """Each by itself."""
    assert observed(replace(ADVICE, **facts), incident()) == why


@pytest.mark.parametrize(
    ("owners", "uid", "said"),
    [((), 1000, "unknown"), ((None,), 1000, "unknown"), ((None, 1000), 1000, "uid 1000, unknown"),
     ((0,), 1000, "uid 0"), ((65534,), 1000, "uid 65534"), ((1000, 1001), 1000, "uid 1000, uid 1001"),
     ((1000, "pushed"), 1000, "uid 1000, unknown"),
     # a file server calls all owners so that it does not know; root's own job is root's
     ((65534,), 65534, "uid 65534"), ((None,), None, "unknown"), ((0,), 0, "")],
)  # fmt: skip
def test_files_of_anybody_else_forbid_it(owners: tuple[int | str | None, ...], uid: int | None, said: str) -> None:
    """All files of the run are the job's user's; a pushed stream has no owner."""
    streams = [replace(FILE, pushed=True) if one == "pushed" else replace(FILE, owner=one) for one in owners]
    why = f"the log's owner ({said}) is not known to be that of job 12 (uid {uid})" if said else ""
    assert of_job(replace(ADVICE, streams=streams), incident(), job(uid=uid), PROOF, "", NOW) == why


@pytest.mark.parametrize(
    ("mate", "free"),
    [
        (Neighbour("o", still=False, progress_at=SINCE - 1.0), False),  # it logs every ten minutes, perhaps
        (Neighbour("o", still=True, progress_at=SINCE - 1.0), True),
        (Neighbour("o", still=True, progress_at=SINCE), True),
        (Neighbour("o", still=True, progress_at=SINCE + 1.0), False),
        (Neighbour("o", still=True, progress_at=None), False),
    ],
)
def test_a_job_in_which_something_else_may_go_on_is_left_alone(mate: Neighbour, free: bool) -> None:
    """`srun a & srun b`: only where the other one hangs too, or is over, and has made no progress since."""
    why = "" if free else "run o is in the same job, and may continue"
    assert observed(replace(ADVICE, neighbours=[mate]), incident()) == why


@pytest.mark.parametrize(
    ("kind", "fields", "why"),
    [
        ("hang", {"output": ""}, "job 12 is not proven: its output is unknown, and slurm.job_from finds no id in the "
                                 "log's path"),
        ("hang", {"id": "13"}, "Slurm shows job 13 in place of 12"),
        ("hang", {"id": "11"}, "Slurm shows job 11 in place of 12"),
        ("hang", {"state": "SUSPENDED"}, "job 12 is SUSPENDED"),
        ("checkpoint_overdue", {"state": "COMPLETED"}, "Slurm reports job 12 as COMPLETED"),
        ("hang", {"array_id": "500_0"}, "Slurm shows job 500_0 in place of 12"),
        ("hang", {"started_at": SINCE + 1.0}, "job 12 was restarted after the incident began"),
        ("hang", {"started_at": None}, "Slurm does not show when job 12 began"),
        ("hang", {"state": "COMPLETING"}, "job 12 is COMPLETING"),
        ("hang", {"state": "PENDING"}, "job 12 is PENDING"),
        ("crash", {"state": "CANCELLED"}, "job 12 was cancelled"),
        ("crash", {"state": "CANCELLED", "cancelled_by": "ada (uid 1000)"}, "job 12 was cancelled by ada (uid 1000)"),
        ("crash_without_exit", {"state": "COMPLETED"}, "Slurm reports job 12 as COMPLETED"),
        ("hang", {"components": True}, "the job is a part of a heterogeneous job"),
    ],
)  # fmt: skip
def test_another_job_or_an_end_that_somebody_wanted_is_left_alone(kind: str, fields: dict[str, Any], why: str) -> None:
    """It is the job in which the trouble began, and runs or failed by itself."""
    known: dict[str, Any] = {"id": "12", "state": "RUNNING", "uid": 1000, "started_at": 500.0, "output": "/l/12.out"}
    one = SlurmJob(**{**known, **fields})
    assert of_job(ADVICE, incident(kind), one, PROOF if one.output else [], "", NOW) == why


@pytest.mark.parametrize(("own", "why"), [("12", "the remediator itself runs in job 12"), ("13", "")])
def test_the_remediators_own_job_is_left_alone(own: str, why: str) -> None:
    """Another one is not."""
    assert of_job(ADVICE, incident(), job(), PROOF, own, NOW) == why


@pytest.mark.parametrize(
    ("streams", "pattern", "proven"),
    [
        ([FILE], None, ["/l/12.out"]),
        ([replace(FILE, path="/l/12.err")], None, ["/l/12.err"]),
        ([replace(FILE, path="/l/13.out")], None, []),
        ([replace(FILE, path="/x/12.log")], r"/(?P<job>\d+)[.]log", ["/x/12.log"]),
        ([replace(FILE, path="/x/13.log")], r"/(?P<job>\d+)[.]log", []),
        ([replace(FILE, path="/x/train.log")], r"/(?P<job>\d+)[.]log", []),  # and job 12 is no task of an array
        ([replace(FILE, pushed=True)], None, []),
        ([replace(FILE, path="/spool/12.log", pushed=True)], r"/(?P<job>\d+)[.]log", []),
        ([replace(FILE, steps=False)], None, ["/l/12.out"]),
        ([replace(FILE, steps=False), replace(FILE, path="/l/x")], None, []),  # another file has the steps
        ([replace(FILE, written_at=450.0), replace(FILE, path="/l/x")], None, []),  # it was written before
        ([replace(FILE, written_at=600.0), replace(FILE, path="/l/x")], None, []),
        ([replace(FILE, written_at=600.5), replace(FILE, path="/l/x")], None, ["/l/12.out"]),
    ],
)
def test_what_proves_a_job(streams: list[Stream], pattern: str | None, proven: list[str]) -> None:
    """Its output by Slurm's word, or the operator's pattern, of a file with steps that was written last."""
    assert proofs(job(errors="/l/12.err"), streams, pattern) == proven


def test_what_proves_a_task_of_an_array() -> None:
    """Its own number or that of the task; a path without any is not its path."""
    task = job(array_id="8_3", output="")
    for name, proven in (("12", True), ("8_3", True), ("8_4", False), ("8", False), ("train", False)):
        file = replace(FILE, path=f"/x/{name}.log")
        assert proofs(task, [file], r"/(?P<job>[\d_]+)[.]log") == ([file.path] if proven else [])


@pytest.mark.parametrize(("ran", "free"), [(600.0, True), (599.0, False), (None, False)])
def test_the_clock_of_slurm_may_differ_from_ours(ran: float | None, free: bool) -> None:
    """By an hour: how long a running job has run shows whether it was started after the incident began."""
    restarted = "job 12 was restarted after the incident began"
    assert of_job(ADVICE, incident(), job(started_at=SINCE + 3600.0, ran=ran), PROOF, "", NOW) == (
        "" if free else restarted
    )
    over = job("FAILED", started_at=SINCE + 3600.0, ran=ran)
    assert of_job(ADVICE, incident("crash"), over, PROOF, "", NOW) == restarted
