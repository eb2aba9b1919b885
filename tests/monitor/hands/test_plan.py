"""Remediation, incident, job and record to a plan: each condition by itself, at its limit."""

from typing import Any

import pytest

from megatron_monitor.config.remediations import Action, Remediation
from megatron_monitor.hands.permission import Facts
from megatron_monitor.hands.plan import Plan, course_of, describe, matches, plan
from megatron_monitor.hands.record import Course, Record, Step
from megatron_monitor.incidents import Incident
from megatron_monitor.run.records import Job
from megatron_monitor.run.state import RunState

DAY = 86400.0
NOW = 10 * DAY
OPENED = NOW - 600.0
REQUEUE = (Action(type="requeue"),)
CANCEL = Action(type="cancel")
DUMP = Action(type="dump_stacks", command=("/opt/d",))
DRAIN = Action(type="drain")
KNOWN = Facts(proof=("/l/12.out",), owners=frozenset({1000}))


def policy(*actions: Action, **more: Any) -> Remediation:
    """Acts on hangs and crashes at once, really; requeues, if nothing else is said."""
    fields: dict[str, Any] = {"incidents": ("hang", "crash"), "after": 0.0, "dry_run": False}
    return Remediation(**{"name": "p", "actions": actions or REQUEUE, **fields, **more})


def hang(**more: Any) -> Incident:
    """Ten minutes old, in training."""
    fields: dict[str, Any] = {
        "incident": "hang", "severity": "critical", "since": OPENED, "summary": "", "onset_iteration": None,
        "phase": "training", "notified_at": OPENED, "opened_at": OPENED,
    }  # fmt: skip
    return Incident(**{**fields, **more})


def run(state: str = "RUNNING", **more: Any) -> RunState:
    """A run that is job 12 on four nodes."""
    fields: dict[str, Any] = {
        "nodes": "n-[01-04]", "batch": True, "requeue": True, "started_at": 5.0, "asked_at": NOW, "uid": 1000,
    }  # fmt: skip
    made = RunState("r")
    made.job = Job("12", state, **{**fields, **more})
    return made


def course(*steps: Step, **more: Any) -> Course:
    """The policy has requeued an earlier launch of the run, an hour ago."""
    fields: dict[str, Any] = {
        "number": 1, "run": "r", "remediation": "p", "incident": "hang", "severity": "critical",
        "opened_at": NOW - 4000.0, "planned_at": NOW - 3600.0, "dry_run": False,
        "steps": list(steps) or [Step("requeue", status="done")],
        "job": "11",
    }  # fmt: skip
    return Course(**{**fields, **more})


def planned(
    of: Remediation | None = None,
    state: RunState | None = None,
    incident: Incident | None = None,
    *courses: Course,
    began_at: float | None = 0.0,
    since: float = OPENED,
    watched: float = 0.0,
    facts: Facts = KNOWN,
) -> Plan:
    """What is to be done; there is something."""
    record = Record(list(courses), began_at)
    made = plan(of or policy(), state or run(), incident or hang(), facts, record, since, watched, NOW)
    assert made is not None
    return made


def commands(made: Plan) -> list[str]:
    """As typed."""
    assert made.why_not == ""
    return [" ".join(command) for step in made.steps for command in step.commands]


# --- for which incidents a policy is --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "incident", "matched"),
    [
        ({}, {}, True),
        ({"incidents": ("crash",)}, {}, False),
        ({}, {"severity": "warning"}, False),
        ({}, {"quiet": True}, False),
        ({}, {"incident": "crash", "evidence": {"failure": "nccl"}}, True),
        ({"failures": ("nccl",)}, {}, True),
        ({"failures": ("nccl",)}, {"incident": "crash", "evidence": {"failure": "cuda_oom"}}, False),
        ({"failures": ("nccl",)}, {"incident": "crash", "evidence": {"failure": "nccl"}}, True),
        ({"runs": ("x", "r*")}, {}, True),
        ({"runs": ("x", "y*")}, {}, False),
    ],
)
def test_each_condition_of_a_policy_counts(of: dict[str, Any], incident: dict[str, Any], matched: bool) -> None:
    """Kind, severity, failure of a crash, the run's name; what its verdict keeps quiet is for none."""
    assert matches(policy(**of), "run-7", hang(**incident)) is matched


# --- when it is due -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "since", "watched", "at"),
    [
        (300.0, OPENED + 5.0, 0.0, OPENED + 305.0),
        (0.0, OPENED, 0.0, OPENED),
        (0.0, OPENED, OPENED, OPENED),
        (0.0, OPENED, OPENED + 1.0, OPENED + 61.0),
        (300.0, OPENED, OPENED + 1.0, OPENED + 301.0),
    ],
)
def test_a_plan_is_due_when_the_trouble_was_watched_for_so_long(
    after: float, since: float, watched: float, at: float
) -> None:
    """A daemon that came back into it watches for a minute at least; one that saw it begin does not."""
    assert planned(policy(after=after), since=since, watched=watched).at == at


# --- why nothing is done --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("began_at", "why_not"),
    [(None, True), (OPENED + 1.0, True), (OPENED, False)],
)
def test_trouble_from_before_the_record_is_left_alone(began_at: float | None, why_not: bool) -> None:
    """Nobody knows what was done about it."""
    assert ("older than the record" in planned(began_at=began_at).why_not) is why_not


@pytest.mark.parametrize("trouble", [{"lost": True}, {"unreadable": {"/l/a": "Input/output error"}}])
def test_a_run_of_which_a_file_cannot_be_read_is_left_alone(trouble: dict[str, Any]) -> None:
    """It may go on unseen: either word is enough."""
    state = run()
    for name, value in trouble.items():
        setattr(state, name, value)
    assert planned(None, state).why_not == "a file of the run cannot be read"


def test_only_one_policy_is_at_work_on_a_run() -> None:
    """Another waits until the first has done all its steps; what other runs go through is no matter."""
    waits = Step("cancel", status="waiting")
    assert planned(None, None, None, course(waits, remediation="q")).why_not == "another remediation is at work"
    assert planned(None, None, None, course(waits, remediation="q", run="other")).why_not == ""


@pytest.mark.parametrize(
    ("earlier", "why_not"),
    [
        ([{}], False),
        ([{}, {}], True),
        ([{}, {"planned_at": NOW - DAY + 1.0}], True),
        ([{}, {"planned_at": NOW - DAY}], False),
        ([{}, {"remediation": "q"}], True),
        ([{}, {"remediation": "q", "steps": [Step("dump_stacks", status="done")]}], False),
        ([{}, {"remediation": "q", "steps": [Step("requeue", status="skipped")]}], False),
        ([{}, {"steps": [Step("dump_stacks", status="done")]}], True),
        ([{}, {"run": "other"}], False),
        ([{}, {"dry_run": True}], False),
        ([{}, {}, {}], True),
    ],
)
def test_a_policy_acts_so_often_in_a_day(earlier: list[dict[str, Any]], why_not: bool) -> None:
    """Twice: its own courses on this run in the last 24 hours, and all that ended a launch of it or began one, of
    whichever policy; real ones for a policy that acts.
    """
    courses = [
        course(*more.get("steps", ()), number=number, opened_at=0.0, **{k: v for k, v in more.items() if k != "steps"})
        for number, more in enumerate(earlier)
    ]
    assert (planned(None, None, None, *courses).why_not == "remediations have acted 2 times in 24 hours") is why_not


def test_what_only_dumps_counts_its_own() -> None:
    """Another policy's restarts are no reason to dump no stacks."""
    earlier = [course(number=number, remediation="q") for number in range(2)]
    assert planned(policy(DUMP), None, None, *earlier).why_not == ""


def test_a_dry_run_counts_the_dry_runs() -> None:
    """It is said no more often than it would be done."""
    courses = [course(Step("requeue", status="dry_run"), number=one, dry_run=True) for one in range(2)]
    assert "2 times in 24 hours" in planned(policy(dry_run=True), None, None, *courses).why_not


@pytest.mark.parametrize(
    ("earlier", "why_not"),
    [
        ({}, True),
        ({"dry_run": True}, False),
        ({"job": "11"}, False),
        ({"job_restarts": 1}, False),
        ({"steps": [Step("dump_stacks", status="done")]}, False),
        ({"steps": [Step("cancel", status="failed")]}, True),
        ({"steps": [Step("resubmit", status="done")]}, True),
        ({"run": "other"}, False),
    ],
)
def test_a_launch_of_a_job_is_ended_or_followed_by_another_once(earlier: dict[str, Any], why_not: bool) -> None:
    """Whichever policy it was. A dry run, an earlier launch, a signal and another run's course are no hindrance."""
    fields: dict[str, Any] = {"remediation": "q", "job": "12", "job_restarts": 0, **earlier}
    steps = fields.pop("steps", [])
    made = planned(None, None, None, course(*steps, **fields))
    assert (made.why_not == "remediation q has dealt with job 12") is why_not


def test_a_course_of_the_same_incident_is_not_planned_again() -> None:
    """The same run, policy, kind and opening: each of the four tells it from another. A dry run is none."""
    same = {"opened_at": OPENED, "job": "other"}
    record = Record([course(**same)], 0.0)
    assert plan(policy(), run(), hang(), KNOWN, record, OPENED, 0.0, NOW) is None
    others = ({"run": "x"}, {"remediation": "q"}, {"incident": "crash"}, {"opened_at": OPENED - 1.0}, {"dry_run": True})
    for other in others:
        record = Record([course(**{**same, **other})], 0.0)
        assert plan(policy(), run(), hang(), KNOWN, record, OPENED, 0.0, NOW) is not None


# --- what is done ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("earlier", "gave_up"),
    [
        ([{}, {}], False),
        ([{}, {}, {}], True),
        ([{}, {}, {}, {}], True),
        ([{}, {}, {"checkpoint": 100}], False),
        ([{}, {}, {"run": "other"}], False),
        ([{}, {}, {"steps": [Step("cancel", status="done")]}], False),
        ([{}, {}, {"steps": [Step("requeue", status="skipped")]}], False),
    ],
)
def test_after_three_restarts_without_a_new_checkpoint_the_job_is_ended(
    earlier: list[dict[str, Any]], gave_up: bool
) -> None:
    """Restarts of this run at this checkpoint, that were tried."""
    courses = []
    for number, more in enumerate(earlier):
        steps = more.pop("steps", [Step("requeue", status="failed")])
        courses.append(course(*steps, number=number, **{"checkpoint": 50, "planned_at": NOW - 2 * DAY, **more}))
    state = run()
    state.past.checkpoints.last_iteration = 50
    made = planned(None, state, None, *courses)
    assert made.gave_up is gave_up
    assert commands(made) == (["scancel 12"] if gave_up else ["scontrol requeue 12"])


def test_a_policy_that_restarts_nothing_gives_nothing_up() -> None:
    """Others' restarts are not its own."""
    earlier = [course(number=number, planned_at=NOW - 2 * DAY) for number in range(3)]
    made = planned(policy(DUMP), None, None, *earlier)
    assert not made.gave_up
    assert [step.action for step in made.steps] == ["dump_stacks"]


def test_a_job_that_is_over_is_not_resubmitted_for_the_fourth_time() -> None:
    """What is left is done; nothing is there to cancel, and only a requeue becomes a cancel."""
    earlier = [course(number=number, planned_at=NOW - 2 * DAY) for number in range(3)]
    again = Action(type="resubmit", command=("x.sbatch",))
    assert commands(planned(policy(CANCEL, again), None, None, *earlier)) == ["scancel 12"]
    over = planned(policy(again), run("FAILED"), None, *earlier)
    assert (over.steps, over.gave_up) == ((), True)


@pytest.mark.parametrize("action", [DUMP, CANCEL])
def test_what_needs_a_running_job_is_skipped_behind_its_end(action: Action) -> None:
    """And done on one that runs."""
    (skipped,) = planned(policy(action), run("FAILED")).steps
    assert (skipped.status, skipped.outcome, skipped.commands) == ("skipped", "the job has ended", [])
    (done,) = planned(policy(action)).steps
    assert done.status == "waiting"
    assert done.commands


@pytest.mark.parametrize("job", [{"batch": False}, {"requeue": False}])
def test_a_job_that_cannot_be_requeued_is_left_alone(job: dict[str, Any]) -> None:
    """Either is enough."""
    assert "not submitted by sbatch, or with --no-requeue" in planned(state=run(**job)).why_not


@pytest.mark.parametrize(
    ("job", "why_not"),
    [({"nodes": "n-[01"}, "node list is not understood"), ({"nodes": ""}, "does not tell the job's nodes")],
)
def test_stacks_need_the_nodes(job: dict[str, Any], why_not: str) -> None:
    """It is said to srun how many there are."""
    assert why_not in planned(policy(DUMP), run(**job)).why_not


def test_resubmit_of_a_running_job_needs_a_cancel() -> None:
    """The new job would wait for the end of the old one, which hangs; one that is over is followed at once."""
    again = Action(type="resubmit", command=("x.sbatch",))
    assert "without cancel, resubmit would wait" in planned(policy(again)).why_not
    assert len(commands(planned(policy(CANCEL, again)))) == 2
    assert commands(planned(policy(again), run("FAILED"))) == ["sbatch --parsable --dependency=afterany:12 x.sbatch"]


@pytest.mark.parametrize(
    ("job", "evidence", "options"),
    [
        ({"directory": "/home/ada"}, {}, "--chdir=/home/ada "),
        ({"directory": "home"}, {}, ""),
        ({"excluded": "n-09"}, {}, "--exclude=n-09 "),
        ({"excluded": "n-09"}, {"node": "n-02"}, "--exclude=n-[02,09] "),
        ({}, {"node": "n-02"}, "--exclude=n-02 "),
    ],
)
def test_a_new_job_runs_in_the_directory_and_without_the_nodes(
    job: dict[str, Any], evidence: dict[str, Any], options: str
) -> None:
    """What the old one left out stays left out; a directory that is none is not handed on."""
    of = policy(Action(type="resubmit", command=("x.sbatch",)))
    made = planned(of, run("FAILED", **job), hang(evidence=evidence))
    assert commands(made) == [f"sbatch --parsable --dependency=afterany:12 {options}x.sbatch"]


@pytest.mark.parametrize(
    ("evidence", "job", "left_out"),
    [
        ({}, {}, ""),
        ({"node": "n-02"}, {}, "n-02"),
        ({"nodes": ["n-01", "n-03"]}, {}, "n-[01,03]"),
        ({"nodes": ["n-01"], "node": "n-03"}, {}, "n-[01,03]"),
        ({"nodes": "n-01"}, {}, ""),
        ({"nodes": ["n-01", "n-02", "n-03"]}, {}, ""),  # where everything is blamed, nothing is the cause
        ({"node": "n-77"}, {}, ""),
        ({"node": "n-02.cluster"}, {}, "n-02"),
        ({"node": "a.x"}, {"nodes": "a.x,b.x"}, "a.x"),  # the name as it stands goes first
        ({"node": 2}, {}, ""),
        ({"node": "n-02;reboot"}, {}, ""),
        ({}, {"excluded": "n-09"}, ""),  # no node is new
        ({"node": "n-02"}, {"nodes": "n-[01"}, ""),  # lists that are not understood
        ({"node": "n-02"}, {"excluded": "n-[01"}, ""),
    ],
)
def test_nodes_are_left_out_that_the_evidence_names_and_the_job_has(
    evidence: dict[str, Any], job: dict[str, Any], left_out: str
) -> None:
    """No more than two. Without one the job is requeued as it is."""
    made = commands(planned(None, run(**job), hang(evidence=evidence)))
    if left_out:
        assert made == ["scontrol requeuehold 12", f"scontrol update JobId=12 ExcNodeList={left_out}",
                        "scontrol release 12"]  # fmt: skip
    else:
        assert made == ["scontrol requeue 12"]


# --- the record and what is said ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dry_run", "status"), [(True, "dry_run"), (False, "waiting")])
def test_a_dry_run_enters_the_record_as_one(dry_run: bool, status: str) -> None:
    """None of its steps waits."""
    of = policy(dry_run=dry_run)
    made = course_of(planned(of), run(), 7, NOW)
    assert [step.status for step in made.steps] == [status]
    assert (made.open, made.dry_run) == (not dry_run, dry_run)


@pytest.mark.parametrize(
    ("state", "job", "started_at", "restarts", "over"),
    [
        (run(restarts=2, array_id="8_3"), "8_3", 5.0, 2, False),
        (run("FAILED"), "12", 5.0, 0, True),
        (RunState("r"), "", None, 0, False),
    ],
)
def test_a_course_keeps_which_launch_it_was_planned_for(
    state: RunState, job: str, started_at: float | None, restarts: int, over: bool
) -> None:
    """The executor asks whether it is still that one."""
    made = course_of(Plan(policy(), hang(), NOW), state, 7, NOW)
    assert (made.job, made.job_started_at, made.job_restarts, made.over) == (job, started_at, restarts, over)


@pytest.mark.parametrize(
    ("of", "made", "said"),
    [
        ({}, {"at": NOW + 30.0}, "p: runs in 30 s: scancel 12"),
        ({}, {"at": NOW + 1.0}, "p: runs in 1 s: scancel 12"),
        ({}, {"at": NOW}, "p: runs now: scancel 12"),
        ({}, {"at": NOW - 5.0}, "p: runs now: scancel 12"),
        ({"dry_run": True}, {}, "p: would run now: scancel 12"),
        ({}, {"gave_up": True}, "p: runs now, no restart after 3 without a new checkpoint: scancel 12"),
        ({}, {"why_not": "it rains"}, "p: does nothing: it rains"),
        ({}, {"steps": (Step("cancel", status="skipped"),)}, "p: runs now: nothing"),
    ],
)
def test_a_plan_is_said_in_a_line(of: dict[str, Any], made: dict[str, Any], said: str) -> None:
    """When, the exact commands, or why not."""
    fields: dict[str, Any] = {"at": NOW, "steps": (Step("cancel", [["scancel", "12"]]),), **made}
    assert describe(Plan(policy(**of), hang(), **fields), NOW) == said


def test_a_drain_takes_the_named_nodes_of_the_job_alone() -> None:
    """Whether the job runs or has ended; no more than two nodes, and none that the log made up."""
    named = hang(evidence={"nodes": ["n-02", "n-09", "-rf", "n-03"]})
    for state in ("RUNNING", "FAILED"):
        made = planned(policy(DRAIN), run(state), named)
        assert commands(made) == [
            "scontrol update NodeName=n-[02-03] State=DRAIN Reason=megatron-monitor: hang of job 12"
        ]
    for none in (hang(), hang(evidence={"node": "n-09"}), hang(evidence={"nodes": ["n-01", "n-02", "n-03"]})):
        (step,) = planned(policy(DRAIN), run(), none).steps
        assert (step.status, step.outcome, step.commands) == ("skipped", "no node is named", [])


@pytest.mark.parametrize(
    ("earlier", "why_not"),
    [
        ({"run": "other"}, "2 nodes were drained within an hour"),
        ({"run": "other", "dry_run": True}, ""),
        ({"run": "other", "planned_at": NOW - 3600.0}, ""),
        ({"run": "other", "nodes": "n-02"}, ""),
    ],
)
def test_two_nodes_an_hour_are_drained_over_all_runs(earlier: dict[str, Any], why_not: str) -> None:
    """What a log prints may be printed by many: jobs that print it drain no cluster."""
    nodes = earlier.pop("nodes", "n-[08-09]")
    drain = Step("drain", [["scontrol", "update", f"NodeName={nodes}", "State=DRAIN", "Reason=x"]], status="done")
    before = course(drain, **{"planned_at": NOW - 3599.0, **earlier})
    made = planned(policy(DRAIN), None, hang(evidence={"nodes": ["n-02"]}), before)
    assert made.why_not == why_not


def test_a_job_may_have_to_ask_for_it() -> None:
    """By a word of its comment; a job that Slurm tells no comment of did not."""
    wanted = policy(opt_in=True)
    for comment in ("megatron-monitor", "account 7,megatron-monitor"):
        assert commands(planned(wanted, run(comment=comment))) == ["scontrol requeue 12"]
    for comment in ("", "no-megatron-monitor", "megatron"):
        assert planned(wanted, run(comment=comment)).why_not == (
            "the comment of job 12 does not ask for it: sbatch --comment=megatron-monitor"
        )


# --- what a new job is given ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "kept"),
    [
        ({"command": "x.sbatch --size=7b"}, "--time=60 "),  # its own script: what Slurm tells of its options is kept
        ({"command": "y.sbatch x.sbatch"}, ""),
        ({"command": "x.sbatch", "array_id": "8_3"}, "--time=60 --array=3 "),
        ({"command": "again x.sbatch", "array_id": "8_11"}, "--array=11 "),
    ],
)
def test_a_new_job_has_the_options_of_the_old_one(job: dict[str, Any], kept: str) -> None:
    """Where it is the same script; of an array it is the same task."""
    made = planned(
        policy(Action(type="resubmit", command=("x.sbatch", "again"))), run("FAILED", options=["--time=60"], **job)
    )
    assert [" ".join(one) for one in made.steps[0].tests] == [f"sbatch --test-only {kept}x.sbatch again"]


@pytest.mark.parametrize(("options", "tests"), [(["--nodes=4"], 1), ([], 0)])
def test_a_requeue_without_a_node_is_tried_with_a_job_like_it(options: list[str], tests: int) -> None:
    """Where Slurm tells what it is like."""
    made = planned(None, run(options=options), hang(evidence={"node": "n-02"}))
    assert [" ".join(one) for one in made.steps[0].tests] == ["sbatch --test-only --nodes=4 --exclude=n-02 --wrap=:"][
        :tests
    ]


@pytest.mark.parametrize(("dry_run", "earlier_dry", "gave_up"), [
    (True, True, True), (True, False, True), (False, False, True), (False, True, False),
])  # fmt: skip
def test_restarts_that_were_only_written_down_count_for_a_dry_run_alone(
    dry_run: bool, earlier_dry: bool, gave_up: bool
) -> None:
    """An armed policy has made none of them."""
    earlier = course(dry_run=earlier_dry)
    made = planned(policy(attempts=1, dry_run=dry_run), None, None, earlier)
    assert made.gave_up is gave_up
