"""Remediation, incident, job and record to steps: each condition by itself, at its limit."""

from typing import Any

import pytest

from megatron_monitor.advice import Advice, OpenIncident
from megatron_monitor.advice.choice import matches
from megatron_monitor.advice.record import Execution, Record, Step
from megatron_monitor.config.remediations import Action, Remediation
from megatron_monitor.remediator.plan import (
    RefusedError,
    done_before,
    forbidden,
    plan,
    too_many_drained,
    trials_of,
)
from megatron_monitor.run.records import SlurmJob

DAY = 86400.0
NOW = 10 * DAY
OPENED = NOW - 600.0
REQUEUE = (Action(type="requeue"),)
CANCEL = Action(type="cancel")
DUMP = Action(type="dump_stacks", command=("/opt/d",))
DRAIN = Action(type="drain")


def policy(*actions: Action, **more: Any) -> Remediation:
    """Acts on hangs and crashes at once, really; requeues, if nothing else is said."""
    fields: dict[str, Any] = {"incidents": ("hang", "crash"), "after": 0.0, "dry_run": False}
    return Remediation(**{"name": "p", "actions": actions or REQUEUE, **fields, **more})


def hang(*nodes: str, **more: Any) -> OpenIncident:
    """Ten minutes old."""
    fields: dict[str, Any] = {"id": "e", "incident": "hang", "severity": "critical", "since": OPENED, "attempt": 0}
    return OpenIncident(nodes=list(nodes), **{**fields, **more})


def job(state: str = "RUNNING", **more: Any) -> SlurmJob:
    """Job 12 on four nodes."""
    fields: dict[str, Any] = {"nodes": "n-[01-04]", "batch": True, "requeue": True, "started_at": 5.0, "uid": 1000}
    return SlurmJob(**{"id": "12", "state": state, **fields, **more})


def course(*steps: Step, **more: Any) -> Execution:
    """The remediation has requeued an earlier start of the run, an hour ago."""
    fields: dict[str, Any] = {
        "number": 1, "run": "r", "remediation": "p", "incident": "hang", "incident_id": "before",
        "severity": "critical", "planned_at": NOW - 3600.0, "dry_run": False,
        "steps": list(steps) or [Step("requeue", status="done")], "was": SlurmJob("11", "FAILED"),
    }  # fmt: skip
    return Execution(**{**fields, **more})


def courses(earlier: list[dict[str, Any]], **usual: Any) -> list[Execution]:
    """Several, each unlike the usual in these fields."""
    rows = [{**usual, **more} for more in earlier]
    return [course(*more.pop("steps", ()), number=number, **more) for number, more in enumerate(rows)]


def planned(
    of: Remediation | None = None,
    of_job: SlurmJob | None = None,
    incident: OpenIncident | None = None,
    *earlier: Execution,
) -> Execution:
    """What is to be done. Raises RefusedError."""
    record, advice = Record(0.0, list(earlier)), Advice("r", checkpoint=50)
    return plan(of or policy(), advice, incident or hang(), of_job or job(), record, NOW)


def refused(*given: Any) -> str:
    """Why the record or the plan refuses it; empty: neither does."""
    of, _, incident, *earlier = given
    record = Record(0.0, list(earlier))
    why = forbidden(of or policy(), Advice("r", checkpoint=50), incident or hang(), record, NOW)
    try:
        planned(*given)
    except RefusedError as error:
        return why or str(error)
    return why


def commands(made: Execution) -> list[str]:
    """As typed."""
    return [" ".join(command) for step in made.steps for command in step.commands]


# --- for which incidents a policy is --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "incident", "matched"),
    [
        ({}, {}, True),
        ({"incidents": ("crash",)}, {}, False),
        ({}, {"severity": "warning"}, False),
        ({}, {"incident": "crash", "failure": "nccl"}, True),
        ({"failures": ("nccl",)}, {}, True),
        ({"failures": ("nccl",)}, {"incident": "crash", "failure": "cuda_oom"}, False),
        ({"failures": ("nccl",)}, {"incident": "crash", "failure": "nccl"}, True),
        ({"runs": ("x", "r*")}, {}, True),
        ({"runs": ("x", "y*")}, {}, False),
    ],
)
def test_each_condition_of_a_policy_counts(of: dict[str, Any], incident: dict[str, Any], matched: bool) -> None:
    """Kind, severity, failure of a crash, the run's name."""
    assert matches(policy(**of), "run-7", hang(**incident)) is matched


# --- why nothing is done --------------------------------------------------------------------------------------------


def test_trouble_from_before_the_record_is_left_alone() -> None:
    """Nobody knows what was done about it."""
    for began_at, why_not in ((OPENED + 1.0, True), (OPENED, False)):
        why = forbidden(policy(), Advice("r"), hang(), Record(began_at), NOW)
        assert ("older than the record" in why) is why_not


def test_only_one_policy_is_at_work_on_a_run() -> None:
    """Another waits until the first has done all its steps; what other runs go through is no matter."""
    waits = Step("cancel", status="waiting")
    assert refused(None, None, None, course(waits, remediation="q")) == "another remediation is under way"
    for other in ("other", "z"):
        assert refused(None, None, None, course(waits, remediation="q", run=other)) == ""


@pytest.mark.parametrize(
    ("of", "earlier", "why_not"),
    [
        (policy(), [{}], False),
        (policy(), [{}, {}], True),
        (policy(), [{}, {"planned_at": NOW - DAY + 1.0}], True),
        (policy(), [{}, {"planned_at": NOW - DAY}], False),
        (policy(), [{}, {"planned_at": NOW - 3 * DAY}], False),
        (policy(), [{}, {"remediation": "q"}], True),
        (policy(), [{}, {"remediation": "q", "steps": [Step("dump_stacks", status="done")]}], False),
        (policy(), [{}, {"remediation": "q", "steps": [Step("requeue", status="skipped")]}], False),
        (policy(), [{}, {"steps": [Step("dump_stacks", status="done")]}], True),
        (policy(), [{}, {"run": "other"}], False),
        (policy(), [{}, {"run": "z"}], False),
        (policy(), [{}, {"remediation": "a", "steps": [Step("dump_stacks", status="done")]}], False),
        (policy(), [{}, {"dry_run": True}], False),
        (policy(), [{}, {}, {}], True),
        # what only dumps counts its own: another policy's restarts are no reason to dump no stacks
        (policy(DUMP), [{"remediation": "q"}, {"remediation": "q"}], False),
        # a dry run is said no more often than it would be done
        (policy(dry_run=True), [{"dry_run": True, "steps": [Step("requeue", status="dry_run")]}] * 2, True),
    ],
)
def test_a_policy_acts_so_often_in_a_day(of: Remediation, earlier: list[dict[str, Any]], why_not: bool) -> None:
    """Twice: its own courses on this run in the last 24 hours, and all that ended an attempt of it or began one, of
    whichever policy; real ones for a policy that acts.
    """
    why = refused(of, None, None, *courses(earlier))
    assert why == ("remediations have acted 2 times in 24 hours" if why_not else "")


@pytest.mark.parametrize(
    ("earlier", "why_not"),
    [
        ({}, True),
        ({"dry_run": True}, False),
        ({"was": job(id="11")}, False),
        ({"was": job(restarts=1)}, False),
        ({"steps": [Step("dump_stacks", status="done")]}, False),
        ({"steps": [Step("cancel", status="failed")]}, True),
        ({"steps": [Step("resubmit", status="done")]}, True),
        ({"run": "other"}, False),
    ],
)
def test_a_launch_of_a_job_is_ended_or_followed_by_another_once(earlier: dict[str, Any], why_not: bool) -> None:
    """Whichever policy it was. A dry run, an earlier attempt, a signal and another run's course are no hindrance."""
    fields: dict[str, Any] = {"remediation": "q", "was": job(), **earlier}
    steps = fields.pop("steps", [])
    why = refused(None, None, None, course(*steps, **fields))
    assert (why == "remediation q has already acted on job 12") is why_not


def test_the_same_incident_is_not_planned_again() -> None:
    """The same run, remediation and incident: each tells it from another. A dry run does not count for a real one."""
    same = {"incident_id": "e"}
    others: tuple[dict[str, Any], ...] = (
        {},
        {"run": "x"},
        {"run": "a"},
        {"remediation": "q"},
        {"incident_id": "f"},
        {"dry_run": True},
    )
    for other in others:
        record = Record(0.0, [course(**{**same, **other})])
        assert done_before(policy(), Advice("r"), hang(), record) is (not other)


# --- what is done ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "earlier", "gave_up"),
    [
        (policy(), [{}, {}], False),
        (policy(), [{}, {}, {}], True),
        (policy(), [{}, {}, {}, {}], True),
        (policy(), [{}, {}, {"checkpoint": 100}], False),
        (policy(), [{}, {}, {"run": "other"}], False),
        (policy(), [{}, {}, {"steps": [Step("cancel", status="done")]}], False),
        (policy(), [{}, {}, {"steps": [Step("requeue", status="skipped")]}], False),
        (policy(DUMP), [{}, {}, {}], False),  # it restarts nothing: others' restarts are not its own
        # restarts that were only written down count for a dry run alone: an armed policy has made none of them
        *((policy(attempts=1, dry_run=dry), [{"dry_run": earlier}], dry or not earlier)
          for dry in (True, False) for earlier in (True, False)),
    ],
)  # fmt: skip
def test_after_three_restarts_without_a_new_checkpoint_the_job_is_ended(
    of: Remediation, earlier: list[dict[str, Any]], gave_up: bool
) -> None:
    """Restarts of this run at this checkpoint, that were tried."""
    tried = [Step("requeue", status="failed")]
    made = planned(of, None, None, *courses(earlier, checkpoint=50, planned_at=NOW - 2 * DAY, steps=tried))
    assert made.gave_up is gave_up
    assert [step.action for step in made.steps] == (["cancel"] if gave_up else [one.type for one in of.actions])


def test_a_job_that_is_over_is_not_resubmitted_for_the_fourth_time() -> None:
    """What is left is done; nothing is there to cancel, and only a requeue becomes a cancel."""
    earlier = [course(number=number, planned_at=NOW - 2 * DAY, checkpoint=50) for number in range(3)]
    again = Action(type="resubmit", command=("x.sbatch",))
    assert commands(planned(policy(CANCEL, again), None, None, *earlier)) == ["scancel 12"]
    over = planned(policy(again), job("FAILED"), None, *earlier)
    assert (over.steps, over.gave_up) == ([], True)


@pytest.mark.parametrize("action", [DUMP, CANCEL])
def test_what_needs_a_running_job_is_skipped_behind_its_end(action: Action) -> None:
    """And done on one that runs."""
    (skipped,) = planned(policy(action), job("FAILED")).steps
    assert (skipped.status, skipped.outcome, skipped.commands) == ("skipped", "the job has ended", [])
    (done,) = planned(policy(action)).steps
    assert done.status == "waiting"
    assert done.commands


@pytest.mark.parametrize("fields", [{"batch": False}, {"requeue": False}])
def test_a_job_that_cannot_be_requeued_is_left_alone(fields: dict[str, Any]) -> None:
    """Either is enough."""
    assert "not submitted by sbatch, or it was submitted with --no-requeue" in refused(None, job(**fields), None)


@pytest.mark.parametrize(
    ("fields", "why_not"),
    [({"nodes": "n-[01"}, "node list cannot be parsed"), ({"nodes": ""}, "does not show the job's nodes")],
)
def test_stacks_need_the_nodes(fields: dict[str, Any], why_not: str) -> None:
    """It is said to srun how many there are."""
    assert why_not in refused(policy(DUMP), job(**fields), None)


def test_resubmit_of_a_running_job_needs_a_cancel() -> None:
    """The new job would wait for the end of the old one, which hangs; one that is over is followed at once."""
    again = Action(type="resubmit", command=("x.sbatch",))
    assert "without cancel, resubmit would wait" in refused(policy(again), None, None)
    assert len(commands(planned(policy(CANCEL, again)))) == 2
    assert commands(planned(policy(again), job("FAILED"))) == ["sbatch --parsable --dependency=afterany:12 x.sbatch"]


@pytest.mark.parametrize(
    ("fields", "nodes", "options"),
    [
        ({"directory": "/home/ada"}, (), "--chdir=/home/ada "),
        ({"directory": "home"}, (), ""),
        ({"excluded": "n-09"}, (), "--exclude=n-09 "),
        ({"excluded": "n-09"}, ("n-02",), "--exclude=n-02,n-09 "),
        ({}, ("n-02",), "--exclude=n-02 "),
    ],
)
def test_a_new_job_runs_in_the_directory_and_without_the_nodes(
    fields: dict[str, Any], nodes: tuple[str, ...], options: str
) -> None:
    """What the old one left out stays left out; a directory that is none is not handed on."""
    of = policy(Action(type="resubmit", command=("x.sbatch",)))
    made = planned(of, job("FAILED", **fields), hang(*nodes))
    assert commands(made) == [f"sbatch --parsable --dependency=afterany:12 {options}x.sbatch"]


@pytest.mark.parametrize(
    ("nodes", "fields", "left_out"),
    [
        ((), {}, ""),
        (("n-02",), {}, "n-02"),
        (("n-01", "n-03"), {}, "n-01,n-03"),
        (("n-01", "n-02", "n-03"), {}, ""),  # where everything is blamed, nothing is the cause
        (("n-77",), {}, ""),
        (("n-02.cluster",), {}, "n-02"),
        (("a.x",), {"nodes": "a.x,b.x"}, "a.x"),  # the name as it stands goes first
        (("n-02;reboot",), {}, ""),
        ((), {"excluded": "n-09"}, ""),  # no node is new
        (("n-02",), {"nodes": "n-[01"}, ""),  # lists that are not understood
        (("n-02",), {"excluded": "n-[01"}, ""),
    ],
)
def test_nodes_are_left_out_that_the_log_names_and_the_job_has(
    nodes: tuple[str, ...], fields: dict[str, Any], left_out: str
) -> None:
    """No more than two. Without one the job is requeued as it is."""
    made = commands(planned(None, job(**fields), hang(*nodes)))
    if left_out:
        assert made == ["scontrol requeuehold 12", f"scontrol update JobId=12 ExcNodeList={left_out}",
                        "scontrol release 12"]  # fmt: skip
    else:
        assert made == ["scontrol requeue 12"]


# --- the record -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "number", "restarts", "over"),
    [(job(restarts=2, array_id="8_3"), "8_3", 2, False), (job("FAILED"), "12", 0, True)],
)
def test_an_execution_keeps_which_start_of_the_job_it_was_planned_for(
    of: SlurmJob, number: str, restarts: int, over: bool
) -> None:
    """It is asked right before each step whether it is still that one."""
    made = planned(None, of)
    assert (made.job, made.over, made.was) == (number, over, of)
    assert plan(policy(), Advice("r"), hang(), of, Record(0.0, last=5), NOW).number == 6


def test_a_drain_takes_the_named_nodes_of_the_job_alone() -> None:
    """Whether the job runs or has ended; no more than two nodes, and none that the log made up."""
    for state in ("RUNNING", "FAILED"):
        made = planned(policy(DRAIN), job(state), hang("n-02", "n-09", "-rf", "n-03"))
        assert commands(made) == [
            "scontrol update NodeName=n-02,n-03 State=DRAIN Reason=megatron-monitor: hang of job 12"
        ]
    for none in (hang(), hang("n-09"), hang("n-01", "n-02", "n-03")):
        (step,) = planned(policy(DRAIN), None, none).steps
        assert (step.status, step.outcome, step.commands) == ("skipped", "no node is named", [])


@pytest.mark.parametrize(
    ("earlier", "why_not"),
    [
        ({}, "2 nodes were drained within an hour"),
        ({"dry_run": True}, ""),
        ({"of_dry": True}, ""),
        ({"action": "requeue"}, ""),
        ({"action": "cancel"}, ""),
        ({"status": "unknown"}, "2 nodes were drained within an hour"),
        ({"status": "skipped"}, ""),
        ({"planned_at": NOW - 3600.0}, ""),
        ({"planned_at": NOW - 7200.0}, ""),
        ({"nodes": "n-02"}, ""),
    ],
)
def test_two_nodes_an_hour_are_drained_over_all_runs(earlier: dict[str, Any], why_not: str) -> None:
    """What a log prints may be printed by many: jobs that print it drain no cluster."""
    usual = {"nodes": "n-[08-09]", "action": "drain", "status": "done", "planned_at": NOW - 3599.0}
    of: dict[str, Any] = {**usual, "dry_run": False, "of_dry": False, **earlier}
    command = ["scontrol", "update", f"NodeName={of['nodes']}", "State=DRAIN", "Reason=x"]
    step = Step(of["action"], [command], status=of["status"])
    before = course(step, run="other", dry_run=of["dry_run"], planned_at=of["planned_at"])
    made = planned(policy(DRAIN, dry_run=of["of_dry"]), None, hang("n-02"), before)
    assert too_many_drained(made, Record(0.0, [before]), 0, 1000) == why_not


@pytest.mark.parametrize(
    ("out", "named", "nodes", "may"),
    [(0, 1, 4, True), (1, 1, 4, False), (1, 1, 100, True), (2, 1, 100, False), (0, 2, 99, False), (0, 2, 100, True)],
)
def test_two_percent_of_the_nodes_may_be_drained(out: int, named: int, nodes: int, may: bool) -> None:
    """By remediations, until somebody resumes them; at least one."""
    made = planned(policy(DRAIN), None, hang(*("n-02", "n-03")[:named]))
    assert (too_many_drained(made, Record(0.0), out, nodes) == "") is may


def test_a_job_may_have_to_ask_for_it() -> None:
    """By a word of its comment; a job that Slurm tells no comment of did not."""
    wanted = policy(opt_in=True)
    for comment in ("megatron-monitor", "account 7,megatron-monitor"):
        assert commands(planned(wanted, job(comment=comment))) == ["scontrol requeue 12"]
    for comment in ("", "no-megatron-monitor", "megatron"):
        assert refused(wanted, job(comment=comment), None) == (
            "job 12 has not opted in: sbatch --comment=megatron-monitor"
        )


# --- what a new job is given ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"command": "x.sbatch --size=7b"}, "--time=60 "),  # its own script: what Slurm tells of its options is kept
        ({"command": "y.sbatch x.sbatch"}, ""),
        ({"command": "x.sbatch", "array_id": "8_3"}, "--time=60 --array=3 "),
        ({"command": "again x.sbatch", "array_id": "8_11"}, "--array=11 "),
    ],
)
def test_a_new_job_has_the_options_of_the_old_one(fields: dict[str, Any], kept: str) -> None:
    """Where it is the same script; of an array it is the same task."""
    of = job("FAILED", options=["--time=60"], **fields)
    made = planned(policy(Action(type="resubmit", command=("x.sbatch", "again"))), of)
    assert [" ".join(one) for one in trials_of(made)] == [f"sbatch --test-only {kept}x.sbatch again"]


@pytest.mark.parametrize(("options", "tests"), [(["--nodes=4"], 1), ([], 0)])
def test_a_requeue_without_a_node_is_tried_with_a_job_like_it(options: list[str], tests: int) -> None:
    """Where Slurm tells what it is like."""
    of = job(options=options)
    assert trials_of(planned(None, of)) == []
    made = planned(None, of, hang("n-02"))
    assert [" ".join(one) for one in trials_of(made)] == ["sbatch --test-only --nodes=4 --exclude=n-02 --wrap=:"][
        :tests
    ]
