"""A run that is a Slurm job: what Slurm is asked, what is believed, and what it decides that the log cannot."""

import pytest

from megatron_monitor.slurm import JobAnswered
from tests.lines import dump, line
from tests.monitor.extended import slurm
from tests.monitor.slurm.site import NOW, PATH, Site, read_account, read_show, shown
from tests.plain import decode, encode


def test_a_job_is_asked_about_once_a_minute() -> None:
    """However often the loop turns, and never twice at once; its answer is on the page and in the info metric."""
    site = Site()
    asked = site.ask()
    assert asked.job == "1234"
    site.wait(300)
    assert slurm(site.core).questions(site.now) == []  # the first has no answer yet
    slurm(site.core).answered(JobAnswered(asked, read_show(shown(), "1234")), site.now)
    site.wait(2)
    questions = 1
    for _ in range(300):
        site.wait(1)
        for question in slurm(site.core).questions(site.now):
            questions += 1
            slurm(site.core).answered(JobAnswered(question, read_show(shown(), "1234")), site.now)
    assert questions in (6, 7)
    assert site.page["job"]["state"] == "RUNNING"
    assert site.page["identity"]["job"]["why"] == "Slurm says that this file is its output"
    (run,) = site.core.snapshot(site.now).runs
    (sample,) = run.samples["megatron_job_info"]  # type: ignore[misc]
    assert sample.labels == ("1234", "RUNNING", "", "", "n-[01-02]", "0", "86400")  # type: ignore[union-attr]


def test_what_a_log_cannot_say() -> None:
    """Silence, and Slurm tells why: one planned or unplanned end each, and no hang."""
    for state, failure, severity in (
        ("CANCELLED", "stopped", "info"),
        ("TIMEOUT", "time_limit", "info"),
        ("PREEMPTED", "preempted", "info"),
        ("NODE_FAIL", "node_failure", "critical"),
        ("OUT_OF_MEMORY", "host_oom", "critical"),
        ("FAILED", "unknown", "critical"),
    ):
        site = Site()
        site.answer(shown(state=state, EndTime=int(site.now), ExitCode="1:0"))
        site.wait(300)
        (crash,) = site.fired("crash")
        assert (crash.evidence["failure"], crash.severity) == (failure, severity), state
        assert site.fired("hang") == [], state
        assert f"job 1234 is {state}" in crash.summary or failure == "unknown"
    site = Site()
    site.answer(shown(state="COMPLETED", EndTime=int(site.now)))
    site.wait(300)
    assert site.page["state"] == "finished"
    assert site.reported == []


@pytest.mark.parametrize(("ran", "known"), [("00:50:00", True), ("00:00:10", False), ("INVALID", False)])
def test_the_clock_of_slurm_is_ahead_of_ours(ran: str, known: bool) -> None:
    """By two hours: how long the job has run shows that it began before the log's last line."""
    site = Site()
    site.core.set_clock(-7200.0)
    site.wait(150)
    site.answer(shown(RunTime=ran))
    site.wait(1)
    assert (site.core.runs["r"].state.job is not None) is known


def test_the_log_has_the_first_word() -> None:
    """The log names the cause: Slurm's FAILED adds nothing. It says that it was stopped: Slurm knows that it was the
    time limit.
    """
    site = Site()
    site.say("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    site.say("srun: error: n-01: task 0: Exited with exit code 1\n")
    site.answer(shown(state="FAILED", EndTime=int(site.now), ExitCode="1:0"))
    site.wait(120)
    assert [one.evidence["failure"] for one in site.fired("crash")] == ["cuda_oom"]
    site = Site()
    site.say("slurmstepd: error: *** STEP 1234.0 ON n-01 CANCELLED AT 2023-11-14T22:13:20 ***\n")
    site.answer(shown(state="NODE_FAIL", EndTime=int(site.now)))
    site.wait(120)
    assert site.page["failure"].startswith("node_failure")


def test_a_job_that_waits_in_the_queue_again_is_no_hang() -> None:
    """Requeued without a word in the log; when it runs again it is judged again."""
    site = Site(PATH, 1000, 5, "slurm.interval=30s")
    site.answer(shown())
    site.wait(35)
    site.answer(shown(state="PENDING", Reason="BeginTime", Restarts=1, SubmitTime=int(site.now), NodeList=""))
    site.wait(400)
    assert site.fired("hang") == []
    assert "requeued 1 time" in site.fired("crash")[0].summary


ENDS = "1234|1234|{state}|0:0|{began}|{began}|{at}|1000|ada|{nodes}|1440|main|tr11\n"
WAITS = "1234|1234|PENDING|0:0|{at}|Unknown|Unknown|1000|ada|None assigned|1440|main|tr11\n"


@pytest.mark.parametrize(
    ("state", "nodes", "failure", "severity"),
    [
        ("NODE_FAIL", "n-01", "node_failure", "critical"),
        ("NODE_FAIL", "n-[01-02]", "node_failure", "critical"),
        ("PREEMPTED", "n-01", "preempted", "info"),
        ("REQUEUED", "n-01", "requeued", "info"),
        ("", "", "requeued", "info"),  # there is no accounting
    ],
)
def test_why_a_job_waits_in_the_queue_again(state: str, nodes: str, failure: str, severity: str) -> None:
    """The node died, and the log says nothing: scontrol shows a job that waits, the accounting how it ended."""
    site = Site(PATH, 1000, 5, "slurm.interval=30s")
    site.answer(shown())
    site.wait(35)
    waits = shown(state="PENDING", Reason="BeginTime", Restarts=1, SubmitTime=int(site.now), NodeList="")
    site.answer(waits)
    site.wait(6)
    question = site.ask()
    assert question.account
    began, at = int(site.now) - 3600, int(site.now)
    text = (ENDS.format(state=state, nodes=nodes, began=began, at=at) if state else "") + WAITS.format(at=at)
    slurm(site.core).answered(JobAnswered(question, read_account(text, "1234")), site.now)
    site.wait(31)
    site.answer(waits)  # what the accounting told is known on
    site.wait(300)
    (crash,) = site.fired("crash")
    assert (crash.evidence["failure"], crash.severity) == (failure, severity)
    assert crash.evidence.get("node") == (nodes if state == "NODE_FAIL" and "[" not in nodes else None)
    assert (f"after {state}" if state else "no accounting") in crash.evidence["slurm"]


def test_what_slurm_said_of_an_attempt_does_not_end_the_next() -> None:
    """The job runs again before the end of its last attempt was folded: it ended once."""
    site = Site(PATH, 1000, 5, "slurm.interval=30s")
    site.answer(shown())
    site.wait(35)
    site.say("slurmstepd: error: *** JOB 1234 ON n-01 CANCELLED AT 2023-11-14T22:13:20 DUE TO JOB REQUEUE ***\n")
    site.answer(shown(state="PENDING", Reason="BeginTime", Restarts=1, SubmitTime=int(site.now), NodeList=""))
    site.wait(10)
    site.say(dump(num_layers=32, hidden_size=4096, world_size=16))
    for number in range(4, 10):
        site.say(line(number, seconds=10.0))
        site.wait(10)
    assert len(site.fired("crash")) <= 1
    assert site.page["state"] == "training"
    assert site.page["restarts"] == 1


def test_a_requeue_that_is_not_counted_yet_is_no_other_job() -> None:
    """Slurm tells the new submission at once, and the restart some moments later."""
    for state in ("COMPLETING", "PENDING", "REQUEUED"):
        site = Site()
        site.answer(shown())
        site.wait(61)
        site.answer(shown(state=state, SubmitTime=int(site.now)))
        assert site.page["job"]["state"] == state


def test_a_suspended_job_is_no_hang() -> None:
    """Slurm stops its processes for an hour: silence counts from where it lets them go on."""
    site = Site()
    site.answer(shown(state="SUSPENDED", SuspendTime=int(site.now)))
    site.wait(3600)
    site.answer(shown(SuspendTime=int(site.now)))
    site.wait(20)
    assert site.reported == []
    site.wait(100)
    (hang,) = site.fired("hang")
    assert hang.evidence["slurm"] == "Slurm: job 1234 is RUNNING"  # running and silent


def test_another_job_of_the_same_id_is_not_believed() -> None:
    """Begun after the log's last line, ended before it, of another user, renamed: nothing is shown, nothing ends."""
    for fields in (
        {"StartTime": NOW + 200, "SubmitTime": NOW + 190, "RunTime": "00:00:10"},
        {"state": "CANCELLED", "EndTime": NOW - 3000},
        {"state": "CANCELLED", "UserId": "bob(1001)", "EndTime": NOW + 50},
        {"state": "CANCELLED", "EndTime": "2023-11-14T22:13:20"},
    ):
        site = Site()
        site.wait(160)
        site.answer(shown(**fields))
        assert site.page["job"] == {}, fields
        site.wait(120)
        assert site.fired("hang"), fields
        assert site.fired("crash") == [], fields
    site = Site()
    site.answer(shown())
    site.wait(60)
    site.answer(shown(state="CANCELLED", EndTime=int(site.now), SubmitTime=NOW))
    assert site.page["job"] == {}


@pytest.mark.parametrize(
    ("path", "owner", "answer", "known"),
    [
        ("/l/run-2024.log", None, shown(2024), None),
        ("/l/run-2024.log", None, shown(2024, StdOut="/l/run-2024.log"), "2024"),
        ("/l/backup/slurm-1234.out", 1000, shown(), None),  # a copy: Slurm names another file
        ("/l/tr11/train-1234.log", 1000, shown(), None),
    ],
)
def test_a_number_in_a_name_needs_a_witness(path: str, owner: int | None, answer: str, known: str | None) -> None:
    """`run-2024.log`: job 2024 is somebody's; only one whose output or name has to do with the log is this run's."""
    site = Site(path, owner)
    site.answer(answer)
    assert site.page["job"].get("id") == known


def test_who_cancelled_is_asked_of_the_accounting_once() -> None:
    """A minute after it is known to be cancelled; then nobody is asked any more."""
    site = Site()
    site.answer(shown(state="CANCELLED", EndTime=int(site.now)))
    site.wait(61)
    question = site.ask()
    assert question.account
    row = (
        f"1234|1234|CANCELLED by 1001|0:15|{NOW - 3700}|{NOW - 3600}|{int(site.now)}|1000|ada|n-[01-02]|1440|main|tr11"
    )
    slurm(site.core).answered(JobAnswered(question, read_account(row, "1234")), site.now)
    site.wait(600)
    assert site.page["job"]["cancelled_by"] == "uid 1001"
    assert slurm(site.core).questions(site.now) == []


def test_slurm_that_does_not_answer_costs_nothing() -> None:
    """Said once in a streak; the log is judged as ever, and the job is asked about again later."""
    site = Site()
    site.fail("scontrol had not ended after 20 s and was killed")
    site.wait(120)
    assert len(site.fired("hang")) == 1
    assert "slurm" not in site.fired("hang")[0].evidence
    site.fail("Slurm knows no job 1234", gone=True)
    site.wait(61)
    assert site.ask().account


def test_the_accounting_is_asked_of_the_job_that_was_cancelled_alone() -> None:
    """The next attempt writes into another file: its job is asked about like any other."""
    site = Site()
    site.answer(shown(state="CANCELLED", EndTime=int(site.now)))
    site.wait(30)
    site.write("/l/slurm-1235.out", line(6))
    site.wait(31)
    question = site.ask()
    assert (question.job, question.account) == ("1235", False)


def test_what_is_known_of_the_job_survives_a_restart() -> None:
    """The state file holds it; the first question comes at once."""
    site = Site()
    site.answer(shown())
    saved = decode(encode(site.core.save(site.now)), type(site.core.save(site.now)))
    assert saved.runs["r"].state.job == site.core.runs["r"].state.job
