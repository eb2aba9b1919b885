"""Policies through the real core: what is planned, in which order it is done, and all that keeps it from being done."""

from pathlib import Path

import pytest

from megatron_monitor.config import ConfigError, load
from megatron_monitor.core import Core
from megatron_monitor.hands.record import ASK, LOOK, Course, Order, StepDone
from megatron_monitor.incidents import Transition
from megatron_monitor.run.records import Job
from megatron_monitor.saving import Saving
from megatron_monitor.slurm import JobAnswered, JobQuestion
from megatron_monitor.slurm.replies import ReplyError
from megatron_monitor.system.clock import SystemClock
from tests.lines import line
from tests.monitor.extended import extended, remediation, slurm
from tests.monitor.slurm.site import PATH, Site, read_show, shown
from tests.plain import decode, encode
from tests.programs import wait

REQUEUE = "{name: p, incidents: [hang, crash], for: 30s, dry_run: false, actions: [{type: requeue}]}"
RESUBMIT = (
    "{name: p, incidents: [hang, crash], for: 30s, dry_run: false, actions: [{type: dump_stacks, command: "
    "[/opt/d]}, {type: cancel}, {type: resubmit, command: [train.sbatch, --size=7b]}]}"
)


class Handy(Site):
    """The same with policies: Slurm answers as `job` says, and every turn of the loop is made."""

    def __init__(self, policy: str = REQUEUE, *settings: str, **job: object) -> None:
        self.job: dict[str, object] | None = job
        self.orders, self.said = list[Order](), list[Transition]()
        self.asked, self.refuses, self.again, self.follows = list[Order](), "", False, ""
        """What is asked before a job is ended; why Slurm refuses it, does not answer, or a chain goes on."""
        self.looked, self.other = list[Order](), dict[str, object]()
        self.account: Job | None = None
        """What the accounting says, and how often it was asked."""
        self.asked_accounts = 0
        self.begun, self.stuck = False, ""
        """Whether the new job has begun, and why it cannot."""
        self.disk = True
        super().__init__(PATH, 1000, 5, f"remediations=[{policy}]", "slurm.interval=20s", *settings)

    def wait(self, seconds: float) -> None:
        """Time passes, and the loop turns."""
        for _ in range(int(seconds)):
            super().wait(1)
            self.turn()

    def turn(self) -> None:
        """As the daemon's loop, with a disk that takes the state at once, or not at all."""
        for question in slurm(self.core).questions(self.now):
            if question.account and self.account is not None:
                self.asked_accounts += 1
                slurm(self.core).answered(JobAnswered(question, self.account), self.now)
            elif question.beside:
                slurm(self.core).answered(JobAnswered(question, read_show(shown(**self.other), question.job)), self.now)  # type: ignore[arg-type]
            elif self.job is not None:
                self.reply(question.job)
        self.said += remediation(self.core).plan(self.now)
        if self.disk:
            remediation(self.core).saved = remediation(self.core).stamp
        for order in remediation(self.core).orders():
            self.carry_out(order)

    def carry_out(self, order: Order) -> None:
        """What is only asked is answered; the rest waits for `done`."""
        done = None
        if order.step == ASK:
            self.asked.append(order)
            ok = not (self.refuses or self.again)
            done = StepDone(order.course, ASK, ok, self.refuses, again=self.again, job=self.follows)
        elif order.step == LOOK:
            self.looked.append(order)
            done = StepDone(order.course, LOOK, self.begun, self.stuck)
        if done is None:
            self.orders.append(order)
        else:
            remediation(self.core).settle(done, self.now)

    def reply(self, number: str) -> None:
        """Slurm's answer."""
        question = JobQuestion("r", number)
        try:
            answer = JobAnswered(question, read_show(shown(**self.job), number))  # type: ignore[arg-type]
        except ReplyError as error:
            answer = JobAnswered(question, problem=str(error))
        slurm(self.core).answered(answer, self.now)

    def done(self, outcome: str = "done", *, ok: bool = True, again: bool = False) -> Order:
        """The only order that waits was carried out."""
        (order,) = self.orders
        self.orders.clear()
        remediation(self.core).settle(StepDone(order.course, order.step, ok, outcome, again), self.now)
        return order

    @property
    def courses(self) -> list[Course]:
        """The record."""
        return remediation(self.core).record.courses

    def blame(self, *nodes: str) -> None:
        """The log says which node it was: a rank failed there."""
        for node in nodes:
            self.say(f"srun: error: {node}: task 1: Segmentation fault\n")


def test_a_hang_that_lasts_is_requeued_once() -> None:
    """After `for`, once, however long it stands; the message that it hangs says what will be done."""
    site = Handy()
    site.wait(75)
    (hang,) = site.fired("hang")
    assert hang.evidence["actions"] == ["p: runs in 30 s: scontrol requeue 1234"]
    assert site.orders == []
    site.wait(30)
    order = site.done()
    assert order.commands == (("scontrol", "requeue", "1234"),)
    assert (order.job, order.job_restarts, order.over, order.check) == ("1234", 0, False, True)
    site.wait(2)
    (message,) = site.said
    assert message.summary == "remediation p, hang, job 1234: requeue done (done)"
    assert message.evidence["actions"] == ["requeue: scontrol requeue 1234: done"]
    site.wait(3600)
    assert site.orders == []
    assert len(site.courses) == 1
    assert "requeue done" in site.page["actions"][-1]
    assert site.page["history"][-1]["summary"] == message.summary


def test_a_dry_run_shows_the_commands_and_does_nothing() -> None:
    """The default: the same plan, said once."""
    site = Handy(REQUEUE.replace("dry_run: false, ", ""))
    site.wait(600)
    assert site.orders == []
    (message,) = site.said
    assert message.summary == "remediation p (dry run), hang, job 1234: would run scontrol requeue 1234"
    assert site.fired("hang")[0].evidence["actions"] == ["p: would run in 30 s: scontrol requeue 1234"]


def test_stacks_cancel_and_a_new_job_without_the_node() -> None:
    """In order, one at a time, each handed out when the one before is done; a dump that fails stops nothing."""
    site = Handy(RESUBMIT)
    site.blame("n-02")
    site.wait(60)
    dump = site.done("exit 1", ok=False)
    assert dump.commands[0] == (
        "srun", "--overlap", "--jobid=1234", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--label", "/opt/d",
    )  # fmt: skip
    site.wait(2)
    assert site.done().commands == (("scancel", "1234"),)
    site.job = {"state": "CANCELLED", "EndTime": int(site.now)}
    site.wait(2)
    order = site.done("submitted job 1240")
    assert order.commands == (
        ("sbatch", "--parsable", "--dependency=afterany:1234", "--chdir=/home/ada", "--exclude=n-02", "train.sbatch",
         "--size=7b"),
    )  # fmt: skip
    assert (dump.check, order.check) == (True, False)
    site.wait(5)
    assert "resubmit done (submitted job 1240)" in site.said[-1].summary


def test_what_recovers_is_left_alone() -> None:
    """The run goes on before the time is over, or while the step waits to be saved."""
    site = Handy()
    site.wait(70)
    for number in range(6, 26):
        site.say(line(number, seconds=10.0))
        site.wait(10)
    assert len(site.fired("hang")) == 1
    assert site.courses == []
    site = Handy(RESUBMIT)
    site.disk = False
    site.wait(100)
    assert len(site.courses) == 1
    assert site.orders == []  # begun, not saved
    site.say(line(6) + line(7))
    site.wait(1)
    site.disk = True
    site.wait(5)
    site.done(ok=False)
    site.wait(5)
    assert site.orders == []
    assert [step.status for step in site.courses[0].steps] == ["failed", "skipped", "skipped"]


def test_a_job_in_which_another_training_computes_is_left_alone() -> None:
    """`srun a & srun b`: a hangs, and a requeue would cost b's work. The page says why nothing is done."""
    site, other = Handy(), "/l/other.log"
    site.write(other, "SLURM_JOB_ID=1234\n")
    for number in range(1, 60):
        site.write(other, line(number, seconds=10.0, loss=7.0))
        if number <= 5:
            site.say(line(5 + number, seconds=10.0))
        site.wait(10)
    assert len(site.fired("hang")) == 1
    assert site.orders == []
    assert any("run r:other is in the same job" in one for one in site.core.runs["r"].actions)


def test_a_daemon_that_was_away_waits_anew() -> None:
    """The loop stood still for an hour, over which the hang has lasted: nothing until it was watched for a minute."""
    site = Handy()
    site.wait(70)
    site.now += 3600.0
    site.wait(50)
    assert site.orders == []
    site.wait(30)
    assert len(site.orders) == 1


def test_nothing_is_done_twice_after_a_crash() -> None:
    """Killed after the step was saved as begun: the next daemon says that it may have been done, and leaves it."""
    site = Handy()
    site.wait(110)
    assert len(site.orders) == 1
    saved = decode(encode(site.core.save(site.now)), type(site.core.save(site.now)))
    settings = ["runs=[{name: r, paths: [/l/*]}]", f"remediations=[{REQUEUE}]", "slurm.interval=20s"]
    core = extended(Core(load("", settings)))
    core.restore(saved)
    again = remediation(core)
    again.saved = 10**9
    messages = []
    for _ in range(300):
        site.now += 1.0
        messages += again.plan(site.now)
        assert again.orders() == []
    assert "requeue unknown" in messages[0].summary
    assert len(again.record.courses) == 1


def test_what_was_not_begun_is_not_done_after_a_restart() -> None:
    """Stacks were dumped, the job was still to be cancelled: somebody may have looked after it since."""
    site = Handy(RESUBMIT)
    site.wait(110)
    site.done()
    saved = decode(encode(site.core.save(site.now)), type(site.core.save(site.now)))
    remediation(site.core).restore(saved.extensions["remediation"])
    site.wait(60)
    assert site.orders == []
    assert [step.status for step in site.courses[0].steps] == ["done", "skipped", "skipped"]
    away = Handy(RESUBMIT)
    away.wait(110)
    away.done()
    away.now += 600.0
    away.wait(120)
    assert [step.status for step in away.courses[0].steps] == ["done", "skipped", "skipped"]


def test_no_step_is_handed_out_that_the_disk_did_not_take(tmp_path: Path) -> None:
    """The state cannot be written: what is begun waits until it can."""
    site = Handy()
    site.disk = False
    saving = Saving(site.core, SystemClock(), lambda: None)
    saving.load(tmp_path)
    (tmp_path / "state.new").mkdir()
    site.wait(110)
    assert site.courses[0].steps[0].status == "begun"

    failures = "megatron_monitor_state_save_failures_total"

    def turn() -> bool:
        saving.turn(site.now)
        return bool(site.core.counts.values.get(failures))

    wait(turn, 5.0, "a failure")
    assert [turn() for _ in range(3)] == [True] * 3  # the next try comes a second later
    assert remediation(site.core).saved == 0
    assert remediation(site.core).orders() == []
    (tmp_path / "state.new").rmdir()
    saving.soon()
    wait(lambda: turn() and remediation(site.core).saved > 0, 5.0, "a save")
    assert len(remediation(site.core).orders()) == 1
    saving.release()


def test_no_more_than_so_often_a_day_and_no_more_without_a_checkpoint() -> None:
    """Hang after hang in job after job: two restarts a day; with ten a day, three, and then the job is cancelled."""
    for policy, expected in (
        (REQUEUE, ["requeue"] * 2),
        (REQUEUE.replace("for", "per_day: 10, for"), ["requeue"] * 3 + ["scancel"] * 3),
    ):
        site = Handy(policy)
        done = []
        for launch in range(6):
            site.wait(150)
            if site.orders:
                done.append(site.done().commands[0][-2])
            site.job = {"Restarts": launch + 1, "SubmitTime": int(site.now), "StartTime": int(site.now)}
            for number in range(5 + 5 * launch, 11 + 5 * launch):  # from the last checkpoint on
                site.say(line(number, seconds=10.0, loss=2.9 - launch / 10))
                site.wait(10)
        assert done == expected
    assert "restarts no more" in site.said[-1].summary


def test_without_a_state_directory_nothing_is_done() -> None:
    """Nobody would remember it."""
    site = Handy()
    remediation(site.core).kept = False
    site.wait(300)
    assert site.orders == []
    assert "no state directory" in " ".join(site.page["actions"])


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ("[{type: requeue}, {type: cancel}]", "requeue ends and restarts the job by itself"),
        ("[{type: resubmit, command: [x]}, {type: cancel}]", "cancel stands behind resubmit"),
        ("[{type: cancel}, {type: dump_stacks, command: [x]}]", "needs the job running"),
        ("[{type: cancel}, {type: cancel}]", "stands there twice"),
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
