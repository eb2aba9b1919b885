"""Restarts as one transaction, and healthy jobs that are left alone: what is asked, what is said, what a kill costs."""

import pytest

from megatron_monitor.config import Config
from megatron_monitor.slurm import JobAnswered, JobQuestion
from tests.conftest import spread
from tests.lines import line
from tests.monitor.extended import slurm
from tests.monitor.remediator.site import REQUEUE, RESUBMIT, Remediated
from tests.monitor.slurm.site import PATH

CRASH = "{name: p, incidents: [crash], dry_run: false, actions: [{type: requeue}]}"
OTHER = "/l/other.log"


def failed(site: Remediated) -> list[str]:
    """Whether `restart_failed` was said, and that it ended."""
    return [one.status for one in site.reported if one.incident == "restart_failed"]


# --- one transaction --------------------------------------------------------------------------------------------------


def test_what_slurm_would_refuse_is_not_begun() -> None:
    """Another job continues, or there are too few nodes: the job is not even cancelled, and the reason is said."""
    site = Remediated(RESUBMIT)
    site.refuses = "not done: job 1300 waits for its end (afterok:1234)"
    site.wait(170)
    assert len(site.checked) == 1
    assert site.statuses() == ["done", "skipped", "skipped"]
    assert [command.split()[0] for command in site.done] == ["srun"]
    assert "resubmit skipped (not done: job 1300 waits" in site.said[-1].summary
    assert (site.said[-1].incident, failed(site)) == ("hang", [])


def test_slurm_that_does_not_answer_is_asked_again() -> None:
    """Nothing was done yet: the remediation waits, says so, and acts when it knows."""
    site = Remediated()
    site.later = "slurm_load_jobs error"
    site.wait(200)
    assert site.executions == []
    assert site.actions == "p: does nothing: slurm_load_jobs error"
    site.later = ""
    site.wait(30)
    assert site.done == ["scontrol requeue 1234"]


def test_a_chain_continues_by_itself() -> None:
    """The next link waits for this one's end: cancelled, and not submitted a second time."""
    site = Remediated(RESUBMIT)
    site.follower = "1235"
    site.wait(170)
    assert [command.split()[0] for command in site.done] == ["srun", "scancel"]
    assert site.executions[0].steps[2].outcome == "not submitted: job 1235 follows by itself"
    assert set(site.looked) == {"1235"}
    assert failed(site) == []


def test_a_restart_that_failed_stands_until_an_attempt_begins() -> None:
    """Cancelled, and the submission failed: critical until an attempt begins, and said once."""
    site = Remediated(RESUBMIT)
    site.outcomes["resubmit"] = False, "sbatch: exit 1"
    site.wait(230)
    assert failed(site) == ["firing"]
    (message,) = [one for one in site.reported if one.incident == "restart_failed"]
    assert message.severity == "critical"
    assert "no attempt begins: resubmit failed (sbatch: exit 1)" in message.summary
    assert message.evidence["actions"][-1].endswith("sbatch: exit 1")
    assert site.said == []
    site.killed()
    site.restart()
    site.wait(60)
    assert failed(site) == ["firing"]
    site.job_fields = {"JobId": 1240, "StdOut": "/l/slurm-1240.out", "StartTime": int(site.now)}
    site.write("/l/slurm-1240.out", line(6) + line(7))
    site.wait(60)
    assert failed(site) == ["firing", "resolved"]


def test_a_new_job_that_cannot_begin_is_said() -> None:
    """PENDING for a reason that will not go away; resolved when it begins after all."""
    site = Remediated()
    site.stuck = "job 1234 is PENDING for BadConstraints"
    site.outcomes["requeue"] = True, "done"
    site.wait(100)
    site.job_fields = {"state": "PENDING", "Reason": "BadConstraints", "Restarts": 1, "SubmitTime": int(site.now)}
    site.wait(60)
    assert failed(site) == ["firing"]
    site.begun, site.stuck = True, ""
    site.wait(60)
    assert failed(site) == ["firing", "resolved"]
    many = len(site.looked)
    site.wait(60)
    assert len(site.looked) == many > 0


def test_a_job_that_is_still_ending_is_waited_for() -> None:
    """Its epilogue takes a minute; after half an hour it is given up."""
    for patience, status in ((300, "done"), (2000, "failed")):
        site = Remediated(RESUBMIT)
        site.outcomes["resubmit"] = "job 1234 is still COMPLETING"
        site.wait(110 + patience // 10)
        assert site.statuses()[2] == "waiting"
        site.executions[0].planned_at -= patience
        if status == "done":
            site.outcomes = {}
        site.wait(12)
        assert site.statuses()[2] == status


def test_a_crash_is_acted_on_with_the_values_as_shipped() -> None:
    """Slurm says FAILED at the crash, is asked once a minute, and the remediation waits five."""
    site = Remediated(CRASH, "slurm.interval=60s")
    site.job_fields = {"state": "FAILED", "EndTime": int(site.now), "ExitCode": "1:0"}
    site.say("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1275, internal error\n")
    site.say("srun: error: n-01: task 0: Exited with exit code 1\n")
    site.wait(290)
    assert site.done == []
    site.wait(60)
    assert site.done == ["scontrol requeue 1234"]


def test_a_dry_run_is_what_would_be_done_and_hinders_nobody() -> None:
    """It asks what the real one would ask; switched on while the incident stands, the remediation acts."""
    dry = RESUBMIT.replace("dry_run: false", "dry_run: true")
    for refuses, said in (("", "would run scancel 1234"), ("not done: x", "cancel skipped (not done: x)")):
        site = Remediated(dry)
        site.refuses = refuses
        site.wait(120)
        assert len(site.checked) == 1
        assert site.done == []
        assert said in site.said[-1].summary
        site.refuses = ""
        site.settings = tuple(one.replace("dry_run: true", "dry_run: false") for one in site.settings)
        site.restart()
        site.wait(40)
        assert site.done[0].startswith("srun ")
        assert failed(site) == []


@pytest.mark.parametrize("at", range(14))
def test_killed_at_any_instant_nothing_is_done_twice_or_forgotten(at: int) -> None:
    """Before and behind each write of the record and each step; at 0 it is not killed. A job that was cancelled is
    submitted again once, or people are told that it is gone.
    """
    site = Remediated(RESUBMIT)
    site.wait(10)
    site.instants, site.kill_at = 0, at
    site.wait(200)
    done = [command.split()[0] for command in site.done]
    assert done.count("scancel") <= 1
    assert done.count("sbatch") <= 1
    assert len(site.executions) == 1
    if "scancel" in done:
        sure = any("resubmit done" in one.summary for one in site.said)
        assert sure or failed(site) == ["firing"]
    else:
        assert any("skipped" in one.summary for one in site.said) or failed(site) == ["firing"]
    assert site.instants >= at


# --- never a healthy job ----------------------------------------------------------------------------------------------


class Healthy(Remediated):
    """Job 1234 continues in its own log; another file stops."""

    def __init__(self, policy: str = REQUEUE, **job: object) -> None:
        super().__init__(policy, **job)
        self.number = 5

    def goes_on(self, steps: int) -> None:
        """The job's own log grows, a step in ten seconds."""
        for _ in range(steps):
            self.number += 1
            self.say(line(self.number, seconds=10.0))
            self.wait(10)

    def reply(self, number: str) -> None:
        """Whoever asks is told of job 1234, whose output is its own log."""
        if number == "1234":
            super().reply(number)
        else:
            answer = JobAnswered(JobQuestion("r", number), problem="Slurm knows no job", gone=True)
            slurm(self.core).answered(answer, self.now)


SETUP = "SLURM_JOB_ID=1234\n"


@pytest.mark.parametrize(
    ("path", "setup"),
    [
        (OTHER, SETUP),  # a second log of the same job, or another's that prints its id
        ("/l/backup/slurm-1234.out", ""),  # a copy
        ("/l/mallory/slurm-1234.out", SETUP),  # a link that another user made
        ("/l/slurm-1235.out", "SLURM_JOB_ID=1235\n"),  # prints another id amid its steps
        ("/l/plain.log", ""),  # the remediator runs in the job; the log tells nothing
    ],
)
@pytest.mark.parametrize("policy", spread([REQUEUE, RESUBMIT], 2))
def test_a_healthy_job_is_left_alone_whatever_stops_beside_it(path: str, setup: str, policy: str) -> None:
    """The job's own log grows all the time."""
    site = Healthy(policy)
    site.remediator.own_job = "1234" if path == "/l/plain.log" else ""
    site.write(path, setup)
    for number in range(1, 8):
        site.write(path, line(number, seconds=10.0, loss=9.0))
        if number == 6 and "1235" in setup:
            site.write(path, SETUP)
        site.goes_on(1)
    site.goes_on(25)
    assert any(one.incident == "hang" and one.run != "r" for one in site.reported)
    assert (site.done, site.checked) == ([], [])


def test_a_log_that_is_not_the_jobs_output_needs_the_operators_pattern() -> None:
    """A printed id says what to ask about, and is no proof; `job_from` is."""
    for settings, acts in (((), False), ((r"slurm.job_from='/l/job(?P<job>\d+)[.]log'",), True)):
        site = Remediated(REQUEUE, *settings)
        site.path = "/l/job1234.log"
        site.core.sources["/l/slurm-1234.out"].mtime -= 1000.0
        site.say(SETUP)
        for number in range(6, 14):
            site.say(line(number, seconds=10.0))
            site.wait(10)
        site.wait(120)
        assert bool(site.done) is acts, site.actions


@pytest.mark.parametrize("setting", [(), (r"slurm.job_from='/l/slurm-(?P<job>\d+)[.]out'",)])
def test_a_pushed_stream_proves_no_job(monkeypatch: pytest.MonkeyPatch, setting: tuple[str, ...]) -> None:
    """Senders choose its path, and its file is the observer's own."""
    site = Remediated(REQUEUE, *setting)
    monkeypatch.setattr(Config, "is_pushed", lambda _, path: path == PATH)
    site.wait(150)
    assert (site.done, site.checked) == ([], [])
    assert "job 1234 is not proven" in site.actions
