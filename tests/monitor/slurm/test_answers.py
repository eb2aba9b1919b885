"""What Slurm says of jobs is taken for what it is: late answers, two jobs in one log, many jobs in one call."""

from pathlib import Path

import pytest

from megatron_monitor.slurm import JobAnswered, JobQuestion
from megatron_monitor.slurm.client import look_up_all
from megatron_monitor.system.clock import SystemClock
from tests.lines import line
from tests.monitor.extended import slurm
from tests.monitor.remediator.site import Remediated
from tests.monitor.slurm.site import NOW, clients_in, read_account, read_show, script, shown

ACCOUNT = f"77|77|CANCELLED by 0|0:15|{NOW - 3700}|{NOW - 3600}|{NOW + 50}|1000|ada|n-[01-02]|1440|main|tr11"


def account(directory: Path, rows: str) -> str:
    """A script that prints the rows with the delimiter that it is given."""
    (directory / "rows").write_text(rows)
    given = "for word; do case $word in --delimiter=*) by=${word#*=};; esac; done"
    return f'{given}; sed "s/|/$by/g" {directory}/rows'


def test_a_slow_answer_about_the_job_before_is_dropped() -> None:
    """J: scontrol took 20 s, in which the next attempt has begun in the same log."""
    site = Remediated()
    site.wait(25)
    question = next(iter(slurm(site.core).questions(site.now + 30.0)))
    site.say("SLURM_JOB_ID=1234\n" + line(3) + line(4))
    site.wait(2)
    assert site.core.runs["r"].state.attempt.number > (question.attempt or 0)
    job = read_show(shown(state="CANCELLED", EndTime=NOW + 70), "1234")
    slurm(site.core).answered(JobAnswered(question, job), site.now)
    site.wait(60)
    assert site.fired("crash") == []


def test_two_running_jobs_that_write_one_log_are_told() -> None:
    """Both append to it: one of them may hang unseen, and no policy acts. A chain's link that is over is no other."""
    for state, reported in (("RUNNING", 1), ("CANCELLED", 0), ("PENDING", 0)):
        site = Remediated("{name: p, incidents: [hang], for: 30s, actions: [{type: cancel}]}")
        site.other = {"job": 1300, "state": state, "EndTime": int(site.now) + 50, "StartTime": NOW, "Restarts": 0}
        for job, first in ((1300, 3), (1234, 4)):
            site.say(f"SLURM_JOB_ID={job}\n")
            for number in range(first, first + 9):
                site.say(line(number, seconds=10.0, loss=job / 1000))
                site.wait(10)
        assert len(site.fired("mixed_log")) == reported, state
        assert site.core.runs["r"].state.second_job == ("1300" if reported else "")


def test_many_jobs_are_asked_about_in_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads its commands; what it does not know of some says nothing of the others."""
    replies = {str(job): shown(job).strip() for job in range(1000, 1600)}
    for number in ("1003", "1004"):
        del replies[number]
    (tmp_path / "jobs").write_text("".join(f"scontrol: {reply}\n" for reply in replies.values()))
    unknown = "echo 'error: Invalid job id specified' >&2; exit 1"
    script(tmp_path, "scontrol", f"cat > {tmp_path}/asked.$$; cat {tmp_path}/jobs; {unknown}")
    script(tmp_path, "sacct", account(tmp_path, ACCOUNT))
    clients_in(tmp_path, monkeypatch)
    questions = [JobQuestion(f"r{job}", str(job)) for job in range(1000, 1600)] + [JobQuestion("a", "77", account=True)]
    answers = look_up_all(SystemClock(), questions)
    assert len(list(tmp_path.glob("asked.*"))) == 3
    assert sorted(one.question.job for one in answers if one.gone) == ["1003", "1004"]
    known = {one.question.job: one.job.id for one in answers if one.job is not None}
    assert known == {**{job: job for job in replies}, "77": "77"}
    assert answers[-1].job is not None
    assert answers[-1].job.cancelled_by == "root (uid 0)"


def test_a_name_that_holds_the_line_of_another_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its line ends are printed: in an answer about many jobs the other one is shown twice, and is asked about alone.
    No name holds the delimiter of the accounting.
    """
    (tmp_path / "1700").write_text(shown(1700))
    (tmp_path / "1701").write_text(shown(1701, JobName="x\n" + shown(1700, "COMPLETED") + "\nJobId=1702 JobName=y"))
    row = ACCOUNT.replace("77|77", "{0}|{0}").replace("CANCELLED by 0", "{1}").format
    rows = [row(1700, "FAILED"), row(1701, "RUNNING"), row(1700, "COMPLETED").replace("|", "^")]
    script(tmp_path, "sacct", account(tmp_path, "\n".join(rows)) + " | tr ^ '|'")
    script(tmp_path, "scontrol", f"cd {tmp_path}; if [ $1 = show ]; then cat $4; else cat 1700 1701; fi")
    clients_in(tmp_path, monkeypatch)
    questions = [JobQuestion("", job, account=of) for of in (False, True) for job in ("1700", "1701")]
    states = [one.job and one.job.state for one in look_up_all(SystemClock(), questions)]
    assert states[:1] + states[2:] == ["RUNNING", "FAILED", "RUNNING"]


def test_who_cancelled_is_told_with_the_end() -> None:
    """The accounting is asked at once, and again where it is behind; its answer is in the crash's summary."""
    for behind in (False, True):
        site = Remediated()
        site.job_fields = {"state": "CANCELLED", "EndTime": int(site.now)}
        row = ACCOUNT.replace("77", "1234")
        site.account = read_account(row.replace("CANCELLED by 0", "RUNNING") if behind else row, "1234")
        while not site.asked_accounts:
            site.wait(1)
        site.account = read_account(row, "1234")
        site.wait(60)
        assert site.asked_accounts == 1 + behind
        assert ("CANCELLED by uid 0" in site.page["failure"]) is not behind
        (crash,) = [one for one in site.page["incidents"] if one["incident"] == "crash"]
        assert crash["summary"].endswith("cancelled by uid 0: not a failure")
