"""Remediations through the real core and its API: what is planned, in which order it is done, what keeps it from it."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from megatron_monitor.advice.record import Execution, Step, read
from megatron_monitor.commands.remediate import opened
from megatron_monitor.config import ConfigError, load
from megatron_monitor.run.records import SlurmJob
from megatron_monitor.slurm import JobAnswered, JobQuestion
from tests.lines import line
from tests.monitor.extended import advisor, slurm
from tests.monitor.remediator.site import REQUEUE, RESUBMIT, Outcome, Remediated
from tests.monitor.slurm.site import read_show, shown
from tests.programs import wait


def test_a_hang_that_lasts_is_requeued_once() -> None:
    """After `for`, once, however long it stands; the message that it hangs says what will be done, page, metrics and a
    message what was.
    """
    site = Remediated()
    site.wait(75)
    (hang,) = site.fired("hang")
    assert hang.evidence["actions"] == ["p: does requeue after 30 s"]
    assert site.done == []
    assert site.actions == "p: does requeue after 30 s"
    site.wait(35)
    assert site.done == ["scontrol requeue 1234"]
    (one,) = site.executions
    assert (one.job, one.was.restarts, one.over, one.proof) == ("1234", 0, False, ["/l/slurm-1234.out"])
    site.wait(2)
    (message,) = site.said
    assert message.summary == "remediation p, hang, job 1234: requeue done (done)"
    assert message.evidence["actions"] == ["requeue: scontrol requeue 1234: done"]
    site.wait(300)
    assert len(site.done) == len(site.said) == len(site.executions) == 1
    assert site.page["actions"] == [message.summary]
    assert site.page["history"][-1]["summary"] == message.summary
    for counts in (site.core.counts, site.remediator.counts):
        assert counts.values["megatron_monitor_actions_total"] == {("p", "requeue", "done"): 1}


def test_a_dry_run_shows_the_commands_and_does_nothing() -> None:
    """The default: the same plan, said once."""
    site = Remediated(REQUEUE.replace("dry_run: false, ", ""))
    site.wait(200)
    assert site.done == []
    (message,) = site.said
    assert message.summary == "remediation p (dry run), hang, job 1234: would run scontrol requeue 1234"
    assert site.fired("hang")[0].evidence["actions"] == ["p: would do requeue after 30 s"]


def test_stacks_cancel_and_a_new_job_without_the_node() -> None:
    """In order; a dump that fails stops nothing."""
    site = Remediated(RESUBMIT)
    site.outcomes["dump_stacks"] = False, "exit 1"
    site.blame("n-02")
    site.wait(110)
    assert site.done == [
        "srun --overlap --jobid=1234 --nodes=2 --ntasks=2 --ntasks-per-node=1 --label /opt/d",
        "scancel 1234",
        "sbatch --parsable --dependency=afterany:1234 --chdir=/home/ada --exclude=n-02 train.sbatch --size=7b",
    ]
    assert site.statuses() == ["failed", "done", "done"]
    assert "resubmit done (submitted job 1240)" in site.said[-1].summary


def test_what_recovers_is_left_alone() -> None:
    """The run continues before the time is over, or while its stacks are dumped."""
    site = Remediated()
    site.wait(70)
    for number in range(6, 26):
        site.say(line(number, seconds=10.0))
        site.wait(10)
    assert len(site.fired("hang")) == 1
    assert site.executions == []
    site = Remediated(RESUBMIT)
    site.outcomes["dump_stacks"] = "not yet"
    site.wait(110)
    site.say(line(6) + line(7))
    site.wait(10)
    assert site.done == []
    assert [step.outcome for step in site.executions[0].steps] == ["the incident has ended"] * 3


def test_a_job_in_which_another_training_computes_is_left_alone() -> None:
    """`srun a & srun b`: a hangs, and a requeue would cost b's work. The page says why nothing is done."""
    site, other = Remediated(), "/l/other.log"
    site.write(other, "SLURM_JOB_ID=1234\n")
    for number in range(1, 60):
        site.write(other, line(number, seconds=10.0, loss=7.0))
        if number <= 5:
            site.say(line(5 + number, seconds=10.0))
        site.wait(10)
    assert len(site.fired("hang")) == 1
    assert site.done == []
    assert "run r:other is in the same job" in site.actions


def test_while_the_observer_is_away_nothing_is_done() -> None:
    """It says so, and begins to count anew when the observer answers again; an observer that is stuck is away, too."""
    site = Remediated()
    site.wait(60)
    site.away = True
    site.wait(100)
    assert site.remediator.counts.values["megatron_monitor_observer_up"] == {(): 0.0}
    site.away = False
    site.wait(25)
    assert site.done == []
    site.wait(10)
    assert site.done == ["scontrol requeue 1234"]
    assert site.remediator.counts.values["megatron_monitor_observer_up"] == {(): 1.0}


def test_a_job_that_was_ended_is_submitted_again_though_the_observer_is_away() -> None:
    """That depends on Slurm alone; what would end a job waits."""
    site = Remediated(RESUBMIT)
    site.outcomes["resubmit"] = "job 1234 is still COMPLETING"
    site.wait(110)
    assert site.done[-1] == "scancel 1234"
    site.away, site.outcomes = True, {}
    site.wait(10)
    assert site.statuses() == ["done", "done", "done"]


def test_a_remediator_that_was_away_counts_anew() -> None:
    """It stood still for an hour, over which the hang has lasted; what was not begun before is not done then."""
    site = Remediated()
    site.wait(70)
    site.now += 3600.0
    site.wait(25)
    assert site.done == []
    site.wait(10)
    assert len(site.done) == 1
    for gap in ("stopped", "killed"):
        site = Remediated(RESUBMIT)
        site.outcomes["cancel"] = "no answer"
        site.wait(110)
        site.outcomes = {}
        if gap == "stopped":
            site.now += 600.0
        else:
            site.restart()
        site.wait(60)
        assert site.statuses() == ["done", "skipped", "skipped"]
        assert len(site.done) == 1


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("days", [-10, 10])
def test_a_clock_that_is_set_changes_no_decision(days: int, killed: bool) -> None:
    """By days, before the hang: it is requeued like any other, also by a process that was started after that; and the
    remediations of a day are counted by the time that has passed.
    """
    site = Remediated(REQUEUE.replace("for", "per_day: 1, for"))
    site.wait(20)
    site.core.set_clock(86400.0 * days)
    if killed:
        site.restart()
    site.wait(90)
    assert site.done == ["scontrol requeue 1234"]
    site.core.set_clock(site.core.wall_offset + 86400.0 * days)
    site.wait(5)
    site.job_fields = {"Restarts": 1, "SubmitTime": int(site.now), "StartTime": int(site.now)}
    for number in range(5, 9):
        site.say(line(number, seconds=10.0))
        site.wait(10)
    if killed and days < 0:
        site.restart()
    site.wait(330)
    assert site.actions.startswith("p: does nothing: remediations have acted 1 times in 24 hours")
    assert len(site.done) == 1


def test_no_step_is_done_that_the_disk_did_not_take() -> None:
    """The record cannot be written: what is begun waits until it can."""
    site = Remediated()
    site.full = True
    site.wait(120)
    assert site.done == []
    assert site.remediator.counts.values["megatron_monitor_state_save_failures_total"][()] > 0
    site.full = False
    site.wait(2)
    assert site.done == ["scontrol requeue 1234"]


def test_no_more_than_so_often_a_day_and_no_more_without_a_checkpoint() -> None:
    """Hang after hang in job after job: two restarts a day; with ten a day, three, and then the job is cancelled."""
    for policy, expected in (
        (REQUEUE, ["requeue"] * 2),
        (REQUEUE.replace("for", "per_day: 10, for"), ["requeue"] * 3 + ["scancel"] * 3),
    ):
        site = Remediated(policy)
        for attempt in range(6):
            site.wait(150)
            start = {"SubmitTime": int(site.now), "StartTime": int(site.now)}
            site.job_fields = {"Restarts": attempt + 1, **start}
            for number in range(5 + 5 * attempt, 11 + 5 * attempt):  # from the last checkpoint on
                site.say(line(number, seconds=10.0, loss=2.9 - attempt / 10))
                site.wait(10)
        assert [command.split()[-2] for command in site.done] == expected
    assert "no further restart" in site.actions
    assert site.fired("restart_failed")


class Two(Remediated):
    """A second run, of job 1235. The dump of job 1234 lasts until `dumped` is set."""

    OTHER = "/m/slurm-1235.out"

    def __init__(self) -> None:
        self.dumped = threading.Event()
        super().__init__(RESUBMIT, f"runs=[{{name: r, paths: [/l/*]}}, {{name: s, paths: ['{self.OTHER}']}}]")
        self.remediator._threads = ThreadPoolExecutor()

    def job(self, number: str) -> SlurmJob:
        """Each has its own output."""
        path = self.OTHER if number == "1235" else self.path
        return read_show(shown(int(number), StdOut=path, StdErr=path), number)

    def reply(self, number: str) -> None:
        """As `job`."""
        slurm(self.core).answered(
            JobAnswered(JobQuestion({"1234": "r", "1235": "s"}[number], number), self.job(number)), self.now
        )

    def carry_out(self, execution: Execution, step: Step) -> Outcome:
        """The first dump waits."""
        if step is execution.steps[0] and execution.job == "1234":
            assert self.dumped.wait(60.0)
        return super().carry_out(execution, step)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """The remediator turns until then, at one instant of the tests' clock."""
        wait(lambda: condition() or self.turn() is not None, 10.0, lambda: str(self.executions))


def test_a_dump_that_takes_long_delays_no_other_run() -> None:
    """The second job is dumped, cancelled and submitted again meanwhile. A remediator that is told to end waits for the
    dump and records it.
    """
    site = Two()
    for number in range(1, 6):
        site.write(site.OTHER, line(number, seconds=10.0))
        site.wait(10)
    site.wait(110)
    site.wait_for(lambda: "scancel 1235" in site.done)
    site.wait_for(lambda: not any(one.open for one in site.executions if one.run == "s"))
    (first,) = (one for one in site.executions if one.run == "r")
    assert [step.status for step in first.steps] == ["begun", "waiting", "waiting"]
    assert "scancel 1234" not in site.done
    site.dumped.set()
    site.remediator.finish()
    recorded = read(site.path_of_record)
    assert recorded is not None
    assert [step.status for step in recorded.executions[0].steps] == ["done", "waiting", "waiting"]
    site.wait_for(lambda: "scancel 1234" in site.done)


def test_two_remediators_do_not_share_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does one begin where it cannot be remembered what is done, or what was done cannot be read."""
    path = tmp_path / "r" / "record.json"
    store, record = opened(path)
    assert record is None
    path.write_text("{")
    (tmp_path / "file").touch()
    for given, why in (
        (path, "in use by another"), (path, "cannot be read"), (tmp_path / "file" / "record.json", "must be recorded")
    ):  # fmt: skip
        with pytest.raises(SystemExit):
            opened(given)
        assert why in capsys.readouterr().err
        store.release()


def test_an_observer_that_is_restarted_reports_nothing_twice_and_forgets_nothing() -> None:
    """With its state: what was done while it was away is reported once. Without: what is done by now is not."""
    site = Remediated()
    site.outcomes["requeue"] = "no answer"
    site.wait(110)
    site.outcomes = {}
    site.now += 6.0
    site.turn()
    assert site.statuses() == ["done"]
    for reported in (1, 1):
        site.killed()
        site.wait(60)
        assert len(site.said) == reported
    site.core.runs["r"].state.remediated = None
    site.wait(60)
    assert len(site.said) == 1
    assert "requeue done" in site.actions


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ("[{type: requeue}, {type: cancel}]", "requeue ends and restarts the job by itself"),
        ("[{type: resubmit, command: [x]}, {type: cancel}]", "cancel must come before resubmit"),
        ("[{type: cancel}, {type: dump_stacks, command: [x]}]", "needs a running job"),
        ("[{type: cancel}, {type: cancel}]", "is given twice"),
        ("[{type: resubmit}]", "the key command is missing"),
        ("[{type: cancel, command: [x]}]", "command: is for dump_stacks and resubmit"),
        ("[]", "at least one item"),
        ("[{type: reboot}]", "expected one of cancel, drain"),
    ],
)
def test_actions_that_make_no_sense_are_refused(actions: str, message: str) -> None:
    """In the configuration, not at three in the morning."""
    with pytest.raises(ConfigError, match=message):
        load("", [f"remediations=[{{name: p, incidents: [hang], actions: {actions}}}]"])


@pytest.mark.parametrize(
    "forged",
    [
        {"counts": {"a b c d": 1}}, {"counts": {"p cancel done": 10**30}}, {"began_at": 1e308},
        {"executions": [{"planned_at": 1e308}]}, {"executions": [{"attempt": 10**20}]},
        {"executions": [{"ended_at": -1e308}], "wall_offset": -1e308},
    ],
    ids=str,
)  # fmt: skip
def test_a_forged_record_is_not_shown(forged: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """The observer takes over no number that its own state cannot hold, and no metric of other labels."""
    site = Remediated(REQUEUE)
    site.wait(5)
    record = json.loads(site.path_of_record.read_bytes())
    site.restart()
    step = {"action": "cancel", "commands": [["scancel", "1234"]], "status": "done"}
    known = {"number": 1, "run": "r", "remediation": "p", "incident": "hang", "incident_id": "x", "planned_at": 5.0}
    more = {"severity": "critical", "dry_run": False, "steps": [step], "was": {"id": "1234", "state": "RUNNING"}}
    executions = [{**known, **more, **one} for one in forged.get("executions", ())]
    site.path_of_record.write_text(json.dumps(record | forged | {"executions": executions}))
    advisor(site.core).look(site.now + 5.0)
    assert "executions are not shown" in caplog.text
    assert advisor(site.core).act(site.now) == ()
