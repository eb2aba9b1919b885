"""Restarts as one transaction, and healthy jobs that are left alone: what is asked, what is told, what a kill costs."""

from pathlib import Path

import pytest

from megatron_monitor.config import Config
from megatron_monitor.hands.record import ASK, Order, StepDone
from megatron_monitor.slurm import JobAnswered, JobQuestion
from megatron_monitor.slurm.client import look_up_all
from megatron_monitor.system.clock import SystemClock
from tests.conftest import spread
from tests.lines import line
from tests.monitor.core.test_hands import REQUEUE, RESUBMIT, Handy
from tests.monitor.extended import remediation, slurm
from tests.monitor.slurm.site import NOW, PATH, clients_in, read_account, read_show, shown

CRASH = "{name: p, incidents: [crash], dry_run: false, actions: [{type: requeue}]}"
OTHER = "/l/other.log"
ACCOUNT = f"77|77|CANCELLED by 0|0:15|{NOW - 3700}|{NOW - 3600}|{NOW + 50}|1000|ada|n-[01-02]|1440|main|tr11"


def failed(site: Handy) -> list[str]:
    """Whether `restart_failed` was told, and that it ended."""
    return [one.status for one in site.told if one.incident == "restart_failed"]


# --- one transaction --------------------------------------------------------------------------------------------------


def test_what_slurm_would_refuse_is_not_begun() -> None:
    """Another job goes on, or there are too few nodes: the job is not even cancelled, and the reason is told."""
    site = Handy(RESUBMIT)
    site.refuses = "not done: job 1300 waits for its end (afterok:1234)"
    site.wait(110)
    site.done()  # the stacks
    site.wait(60)
    (asked,) = site.asked
    assert (asked.action, asked.step) == ("resubmit", ASK)
    assert asked.commands == (("sbatch", "--test-only", "--chdir=/home/ada", "train.sbatch", "--size=7b"),)
    assert site.orders == []
    assert [step.status for step in site.courses[0].steps] == ["done", "skipped", "skipped"]
    assert "resubmit skipped (not done: job 1300 waits" in site.said[-1].summary
    assert (site.said[-1].incident, failed(site)) == ("hang", [])


def test_slurm_that_does_not_answer_is_asked_again() -> None:
    """Nothing was done yet: the policy waits, and acts when it knows."""
    site = Handy()
    again, site.again = 3, True
    for _ in range(again):
        site.wait(110)
    assert len(site.asked) > again
    assert site.orders == []
    site.again = False
    site.wait(30)
    assert len(site.orders) == 1


def test_a_chain_goes_on_by_itself() -> None:
    """B: the next link waits for this one's end: cancelled, and not submitted a second time."""
    site = Handy(RESUBMIT)
    site.follows = "1235"
    site.wait(110)
    site.done()
    site.wait(5)
    assert site.done().action == "cancel"
    site.job = {"state": "CANCELLED", "EndTime": int(site.now)}
    site.wait(30)
    assert site.orders == []
    assert site.courses[0].steps[2].outcome == "not submitted: job 1235 follows by itself"
    assert [one.job for one in site.looked] == ["1235"] * len(site.looked) != []
    assert failed(site) == []


def test_a_restart_that_failed_stands_until_a_launch_begins() -> None:
    """A: cancelled, and the submission failed: critical until a launch begins, and told once: the policy is silent."""
    site = Handy(RESUBMIT)
    site.wait(110)
    site.done()
    site.wait(5)
    site.done()
    site.job = {"state": "CANCELLED", "EndTime": int(site.now)}
    site.wait(5)
    site.done("sbatch: exit 1", ok=False)
    site.wait(120)
    assert failed(site) == ["firing"]
    (told,) = [one for one in site.told if one.incident == "restart_failed"]
    assert told.severity == "critical"
    assert "no launch begins: resubmit failed (sbatch: exit 1)" in told.summary
    assert told.evidence["actions"][-1].endswith("sbatch: exit 1")
    assert [one.incident for one in site.said if "remediation" in one.summary] == []
    site.killed()
    site.wait(60)
    assert failed(site) == ["firing"]
    site.job = {"JobId": 1240, "StdOut": "/l/slurm-1240.out", "StartTime": int(site.now)}
    site.write("/l/slurm-1240.out", line(6) + line(7))
    site.wait(90)
    assert failed(site) == ["firing", "resolved"]


def test_a_new_job_that_cannot_begin_is_told() -> None:
    """A4: PENDING for a reason that will not go away; resolved when it begins after all."""
    site = Handy()
    site.wait(100)
    site.done()
    site.job = {"state": "PENDING", "Reason": "BadConstraints", "Restarts": 1, "SubmitTime": int(site.now)}
    site.stuck = "job 1234 is PENDING for BadConstraints"
    site.wait(60)
    assert failed(site) == ["firing"]
    site.begun, site.stuck = True, ""
    site.wait(60)
    assert failed(site) == ["firing", "resolved"]
    assert site.looked
    many = len(site.looked)
    site.wait(60)
    assert len(site.looked) == many


def test_a_job_that_is_still_ending_is_waited_for() -> None:
    """Its epilogue takes a minute; after half an hour it is given up."""
    site = Handy(RESUBMIT)
    site.wait(110)
    site.done()
    site.wait(5)
    site.done()
    site.job = {"state": "COMPLETING"}
    for _ in range(30):
        site.wait(6)
        site.done("job 1234 is COMPLETING still", ok=False, again=True)
    site.job = {"state": "CANCELLED", "EndTime": int(site.now)}
    site.wait(6)
    site.done("submitted job 1240")
    site.wait(5)
    assert "resubmit done (submitted job 1240)" in site.said[-1].summary
    assert site.courses[0].new_job == "1240"


def test_a_crash_is_acted_on_with_the_values_as_shipped() -> None:
    """E: Slurm says FAILED at the crash, is asked once a minute, and the policy waits five: it acts all the same."""
    site = Handy(CRASH, "slurm.interval=60s")
    site.job = {"state": "FAILED", "EndTime": int(site.now), "ExitCode": "1:0"}
    site.say("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1275, internal error\n")
    site.say("srun: error: n-01: task 0: Exited with exit code 1\n")
    site.wait(300)
    assert site.orders == []
    site.wait(150)
    assert site.done().commands == (("scontrol", "requeue", "1234"),)


def test_a_dry_run_is_what_would_be_done_and_hinders_nobody() -> None:
    """It asks what the real one would ask; switched on while the incident stands, the policy acts."""
    dry = RESUBMIT.replace("dry_run: false", "dry_run: true")
    for refuses, told in (("", "would run scancel 1234"), ("not done: x", "cancel skipped (not done: x)")):
        site = Handy(dry)
        site.refuses = refuses
        site.wait(120)
        assert len(site.asked) == 1
        assert site.orders == []
        assert told in site.said[-1].summary
        site.refuses = ""
        site.settings = tuple(one.replace("dry_run: true", "dry_run: false") for one in site.settings)
        site.killed()
        site.wait(200)
        assert [order.action for order in site.orders] == ["dump_stacks"]
        assert failed(site) == []


def test_the_page_says_for_what_a_policy_waits() -> None:
    """Due, and Slurm has not told of the job since: `runs now` would be wrong."""
    site = Handy(REQUEUE)
    site.wait(50)
    site.job = None
    site.wait(200)
    assert site.orders == []
    assert "p: runs once Slurm has told of the job: scontrol requeue 1234" in site.page["actions"]


class Killed(Handy):
    """Slurm in a few lines, and a daemon that is killed at the n-th instant at which that may matter."""

    def __init__(self, at: int) -> None:
        self.at, self.instants, self.done_to_job = at, 0, list[str]()
        super().__init__(RESUBMIT)

    def instant(self) -> bool:
        """Is it killed here?"""
        self.instants += 1
        if self.instants == self.at:
            self.killed()
        return self.instants == self.at

    def carry_out(self, order: Order) -> None:
        """Each order: begun, done, told."""
        if order.action == "look" or self.instant():
            return
        if order.step != ASK:
            self.done_to_job.append(order.action)
        if order.action == "cancel":
            self.job = {"state": "CANCELLED", "EndTime": int(self.now)}
        outcome = "submitted job 1240" if order.action == "resubmit" else ""
        if not self.instant():
            remediation(self.core).settle(StepDone(order.course, order.step, True, outcome), self.now)
            self.instant()


@pytest.mark.parametrize("at", range(14))
def test_killed_at_any_instant_nothing_is_done_twice_or_forgotten(at: int) -> None:
    """At 0 it is not killed. A job that was cancelled is submitted again once, or people are told that it is gone."""
    site = Killed(at)
    site.wait(110)
    site.wait(200)
    assert site.done_to_job.count("cancel") <= 1
    assert site.done_to_job.count("resubmit") <= 1
    if "cancel" in site.done_to_job:
        sure = any("resubmit done" in one.summary for one in site.said)
        assert sure or failed(site) == ["firing"]
    else:  # nothing was done: the policy acts when it has watched anew, or says what it was at
        said = any("skipped" in one.summary for one in site.said)
        assert said or failed(site) == ["firing"] or site.at in (3, 4)
    assert site.instants >= min(at, 9)


# --- never a healthy job ----------------------------------------------------------------------------------------------


class Healthy(Handy):
    """Job 1234 goes on in its own log; another file stops."""

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
        ("/l/plain.log", ""),  # the monitor runs in the job; the log tells nothing
    ],
)
@pytest.mark.parametrize("policy", spread([REQUEUE, RESUBMIT], 2))
def test_a_healthy_job_is_left_alone_whatever_stops_beside_it(path: str, setup: str, policy: str) -> None:
    """D1: the job's own log grows all the time."""
    site = Healthy(policy)
    remediation(site.core).own_job = "1234" if path == "/l/plain.log" else ""
    site.write(path, setup)
    for number in range(1, 8):
        site.write(path, line(number, seconds=10.0, loss=9.0))
        if number == 6 and "1235" in setup:
            site.write(path, SETUP)
        site.goes_on(1)
    site.goes_on(40)
    assert any(one.incident == "hang" and one.run != "r" for one in site.told)
    assert (site.orders, site.asked) == ([], [])


def test_a_log_that_is_not_the_jobs_output_needs_the_operators_pattern() -> None:
    """A printed id says what to ask about, and is no proof; `job_from` is."""
    for settings, acts in (((), False), ((r"slurm.job_from='/l/job(?P<job>\d+)[.]log'",), True)):
        site = Handy(REQUEUE, *settings)
        site.path = "/l/job1234.log"
        site.core.sources["/l/slurm-1234.out"].mtime -= 1000.0
        site.say(SETUP)
        for number in range(6, 40):
            site.say(line(number, seconds=10.0))
            site.wait(10)
        site.wait(120)
        assert bool(site.orders) is acts, site.page["actions"]


@pytest.mark.parametrize("setting", [(), (r"slurm.job_from='/l/slurm-(?P<job>\d+)[.]out'",)])
def test_a_pushed_stream_proves_no_job(monkeypatch: pytest.MonkeyPatch, setting: tuple[str, ...]) -> None:
    """Senders choose its path, and its file is the monitor's own."""
    site = Handy(REQUEUE, *setting)
    monkeypatch.setattr(Config, "is_pushed", lambda _, path: path == PATH)
    site.wait(300)
    assert (site.orders, site.asked) == ([], [])
    assert "job 1234 is not proven" in str(site.page["actions"])


# --- the truth of jobs ------------------------------------------------------------------------------------------------


def test_a_slow_answer_about_the_job_before_is_dropped() -> None:
    """J: scontrol took 20 s, in which the next launch has begun in the same log."""
    site = Handy()
    site.wait(25)
    question = next(iter(slurm(site.core).questions(site.now + 30.0)))
    site.say("SLURM_JOB_ID=1234\n" + line(3) + line(4))
    site.wait(2)
    assert site.core.runs["r"].state.launch.number > (question.launch or 0)
    job = read_show(shown(state="CANCELLED", EndTime=NOW + 70), "1234")
    slurm(site.core).answered(JobAnswered(question, job), site.now)
    site.wait(60)
    assert site.fired("crash") == []


def test_two_running_jobs_that_write_one_log_are_told() -> None:
    """Both append to it: one of them may hang unseen, and no policy acts. A chain's link that is over is no other."""
    for state, told in (("RUNNING", 1), ("CANCELLED", 0), ("PENDING", 0)):
        site = Handy("{name: p, incidents: [hang], for: 30s, actions: [{type: cancel}]}")
        site.other = {"job": 1300, "state": state, "EndTime": int(site.now) + 50, "StartTime": NOW, "Restarts": 0}
        for job, first in ((1300, 3), (1234, 4)):
            site.say(f"SLURM_JOB_ID={job}\n")
            for number in range(first, first + 9):
                site.say(line(number, seconds=10.0, loss=job / 1000))
                site.wait(10)
        assert len(site.fired("mixed_log")) == told, state
        assert site.core.runs["r"].state.beside == ("1300" if told else "")


def test_many_jobs_are_asked_about_in_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads its commands; what it does not know of some says nothing of the others."""
    replies = {str(job): shown(job).strip() for job in range(1000, 1600)}
    for number in ("1003", "1004"):
        del replies[number]
    (tmp_path / "jobs").write_text("".join(f"scontrol: {reply}\n" for reply in replies.values()))
    script = f"cat > {tmp_path}/asked.$$; cat {tmp_path}/jobs; echo 'error: Invalid job id specified' >&2; exit 1"
    for name, text in (("scontrol", script), ("sacct", f"echo '{ACCOUNT}'")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    clients_in(tmp_path, monkeypatch)
    questions = [JobQuestion(f"r{job}", str(job)) for job in range(1000, 1600)] + [JobQuestion("a", "77", account=True)]
    answers = look_up_all(SystemClock(), questions)
    assert len(list(tmp_path.glob("asked.*"))) == 3
    assert sorted(one.question.job for one in answers if one.gone) == ["1003", "1004"]
    known = {one.question.job: one.job.id for one in answers if one.job is not None}
    assert known == {**{job: job for job in replies}, "77": "77"}
    assert answers[-1].job is not None
    assert answers[-1].job.cancelled_by == "root (uid 0)"


def test_who_cancelled_is_told_with_the_end() -> None:
    """The accounting is asked at once, and again where it is behind; its answer is in the crash's summary."""
    for behind in (False, True):
        site = Handy()
        site.job = {"state": "CANCELLED", "EndTime": int(site.now)}
        row = ACCOUNT.replace("77", "1234")
        site.account = read_account(row.replace("CANCELLED by 0", "RUNNING") if behind else row, "1234")
        while not site.asked_accounts:
            site.wait(1)
        site.account = read_account(row, "1234")
        site.wait(60)
        assert site.asked_accounts == 1 + behind
        assert ("CANCELLED by uid 0" in site.page["failure"]) is not behind
        (crash,) = [one for one in site.page["incidents"] if one["incident"] == "crash"]
        assert crash["summary"].endswith("cancelled by uid 0: no failure")
