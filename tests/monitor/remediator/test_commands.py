"""Slurm's clients: each thing that keeps a step from being done, and what is called in which order."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from megatron_monitor.advice.record import Execution, Record, Step
from megatron_monitor.remediator import commands as module
from megatron_monitor.remediator.commands import LaterError, Slurm
from megatron_monitor.run.records import SlurmJob
from megatron_monitor.system.clock import SystemClock
from tests.monitor.slurm.site import NOW, clients_in, read_show, script, shown

HELD = (("scontrol", "requeuehold", "1234"), ("scontrol", "update", "JobId=1234", "ExcNodeList=n-02"),
        ("scontrol", "release", "1234"))  # fmt: skip
SUBMIT = ("sbatch", "--parsable", "--dependency=afterany:1234", "x.sbatch")
USER = os.getuid()
COMMAND = "/home/ada/train.sbatch --size 7b"
WAS = read_show(shown(UserId=f"ada({USER})"), "1234")
ENDED = replace(WAS, state="FAILED")


def row(
    job: int, *, array: object = None, index: object = "N/A", reason: str = "None", depends: str = "(null)",
    start: object = "N/A",
    name: str = "other", directory: str = "/d", command: str = "/c",
) -> str:  # fmt: skip
    """A line of squeue, as it is asked for."""
    return "\t".join(map(str, (job, array or job, index, reason, depends, start, name, directory, command)))


class Stopped(SystemClock):
    """Intervals pass, the time of day does not."""

    def wall(self) -> float:
        """Unix seconds."""
        return float(NOW)


class Site:
    """Slurm's clients as shell scripts, which note how they are called, and what uses them."""

    def __init__(self, below: Path) -> None:
        self.bin = below / "bin"
        self.bin.mkdir()
        self.slurm = Slurm(Stopped(), below / "stacks")
        self.slurm.uid = USER
        self.log = below / "slurm-1234.out"
        self.log.touch()
        self.job()
        self.client("squeue", f"printf '{row(1234, directory='/home/ada', command=COMMAND)}'")
        for name in ("scancel", "srun", "sbatch"):
            self.client(name)

    def client(self, name: str, text: str = "") -> None:
        """What it does."""
        script(self.bin, name, f'echo "{name} $*" >> "{self.bin}/calls"\n{text}')

    def job(self, state: str = "RUNNING", refused: str = "none", how: str = "exit 1", **fields: object) -> None:
        """What scontrol shows; what it refuses, and how."""
        self.job_file(state, **fields)
        case = f'case "$1" in show) cat "{self.bin}/job";; {refused}) {how};; esac'
        self.client("scontrol", case)

    def job_file(self, state: str, **fields: object) -> None:
        """What scontrol shows."""
        reported: dict[str, Any] = {"UserId": f"ada({USER})", "StdOut": self.log, **fields}
        (self.bin / "job").write_text(shown(state=state, **reported))

    def carry_out(self, action: str, *commands: tuple[str, ...], behind: bool = False, **more: Any) -> tuple[bool, str]:
        """A step for job 1234, which is as it was when this was planned; `behind` a cancellation."""
        made = self.execution(action, *commands, **more)
        if behind:
            made.steps.insert(0, Step("cancel", [["scancel", "1234"]], status="done"))
        return self.slurm.carry_out(made, made.steps[-1])

    def execution(self, action: str, *commands: tuple[str, ...], was: SlurmJob = WAS, **more: Any) -> Execution:
        """For job 1234, as it was when this was planned."""
        return Execution(
            number=1, remediation="p", incident="hang", incident_id="e", severity="critical", planned_at=float(NOW),
            dry_run=False, steps=[Step(action, [list(command) for command in commands])], was=was,
            **{"run": "r/1", "proof": [str(self.log)], **more},
        )  # fmt: skip

    def check(self, action: str, *commands: tuple[str, ...], **more: Any) -> tuple[bool, str, str]:
        """What is asked before the first step: whether it may be done, why not, and the job that follows by itself."""
        made = self.execution(action, *commands, was=self.slurm.job("1234"), **more)
        self.slurm.check(made, Record(0.0))
        (step,) = made.steps
        return step.status != "skipped", "" if step.status == "done" else step.outcome, made.new_job

    def called(self, *, questions: bool) -> list[str]:
        """What was asked, or what was done."""
        path = self.bin / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(("scontrol show", "squeue")) is questions]

    calls = property(partial(called, questions=False))
    questions = property(partial(called, questions=True))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Job 1234 runs."""
    site = Site(tmp_path)
    clients_in(site.bin, monkeypatch)
    return site


CANCEL = "cancel", ("scancel", "1234")
COMMANDS = {"cancel": CANCEL[1], "requeue": ("scontrol", "requeue", "1234"), "resubmit": SUBMIT}


# --- the job is still the one that was meant --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "was", "why"),
    [
        # Slurm may start a job anew without counting it
        *(({name: n}, WAS, "job 1234 was started again since")
          for name, n in (("Restarts", 1), ("StartTime", NOW - 10), ("StartTime", NOW - 3700))),
        ({"ArrayJobId": 500, "ArrayTaskId": 0}, WAS, "Slurm shows job 500_0 in place of 1234"),
        ({}, replace(WAS, id="1235", array_id="1234"), "Slurm shows job 1234 in place of 1234"),
        ({"UserId": f"bob({USER + 1})"}, WAS, "job 1234 now belongs to another user: bob"),
    ],
)  # fmt: skip
def test_a_job_that_is_another_by_now_is_left_alone(
    site: Site, fields: dict[str, object], was: SlurmJob, why: str
) -> None:
    """By its count of restarts alone, its start alone, its id, its task, its user: its number was given anew."""
    site.job(**fields)
    assert site.carry_out(*CANCEL, was=was) == (False, f"not done: {why}")
    assert site.calls == []


def test_a_path_that_another_may_choose_proves_no_job(site: Site, tmp_path: Path) -> None:
    """A link to the job's output, a second name of it, a file of or in the directory of somebody else: job 1234 is left
    alone. Another file beside these that proves it is enough.
    """
    link, folder = tmp_path / "slurm-1234", tmp_path / "linked"
    link.symlink_to(site.log)
    folder.symlink_to(tmp_path)
    for paths in ((), (str(link),), (str(folder / "slurm-1234.out"),), (str(tmp_path / "gone"),)):
        assert site.carry_out(*CANCEL, proof=list(paths))[1].startswith("not done: job 1234 is not proven: ")
    assert site.carry_out(*CANCEL, proof=[str(link), str(site.log)]) == (True, "done")
    os.link(site.log, tmp_path / "again")
    assert site.carry_out(*CANCEL)[1] == f"not done: job 1234 is not proven: {site.log} has several names"
    (tmp_path / "again").unlink()
    tmp_path.chmod(0o1777)
    assert site.carry_out(*CANCEL)[0]
    assert len(site.calls) == 2


@pytest.mark.parametrize(
    ("owner", "mode", "own"),
    [(1000, 0o777, True), (1001, 0o755, False), (0, 0o755, True), (0, 0o777, False), (0, 0o1777, True)],
)
def test_whose_directory_it_is(monkeypatch: pytest.MonkeyPatch, owner: int, mode: int, own: bool) -> None:
    """Who may rename the job's output could put another's in its place: the user's own directory, or one of root's in
    which nobody else may.
    """
    file = os.stat_result((0o100644, 1, 1, 1, 1000, 0, 0, 0, 0, 0))
    folder = os.stat_result((0o40000 | mode, 1, 1, 2, owner, 0, 0, 0, 0, 0))
    monkeypatch.setattr(module.os, "lstat", lambda *_, **__: file)
    monkeypatch.setattr(module.os, "stat", lambda *_, **__: folder)
    doubt = module._doubt("/l/12.out", SlurmJob("12", "RUNNING", uid=1000, output="/l/12.out"))
    assert doubt == ("" if own else "/l/12.out is in a directory of another user")


def test_whose_file_it_is(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An output that is itself a link, or a file of another user, proves nothing."""
    link = tmp_path / "output"
    link.symlink_to(site.log)
    site.job(StdOut=link)
    assert site.carry_out(*CANCEL, proof=[str(link)])[1] == f"not done: job 1234 is not proven: {link} is a link"
    link.unlink()
    link.write_text("")
    assert site.carry_out(*CANCEL, proof=[str(link)])[0]
    found = os.lstat(link)
    foreign = os.stat_result((*found[:4], USER + 1, *found[5:]))
    monkeypatch.setattr(module.os, "lstat", lambda *_, **__: foreign)
    why = f"{link} is not the file of the job's user"
    assert site.carry_out(*CANCEL, proof=[str(link)])[1] == f"not done: job 1234 is not proven: {why}"


@pytest.mark.parametrize(
    ("state", "over", "done"),
    [
        ("RUNNING", False, True),
        ("FAILED", True, True),
        ("FAILED", False, False),
        ("RUNNING", True, False),
        ("COMPLETING", False, False),
        ("COMPLETING", True, False),
        ("SUSPENDED", False, False),
    ],
)
def test_a_job_is_as_far_as_it_was_when_this_was_planned(site: Site, state: str, over: bool, done: bool) -> None:
    """It runs, as it did, or it is over, as it was."""
    site.job(state)
    outcome = (True, "done") if done else (False, f"not done: job 1234 is {state} now")
    assert site.carry_out("requeue", ("scontrol", "requeue", "1234"), was=ENDED if over else WAS) == outcome
    assert site.calls == (["scontrol requeue 1234"] if done else [])


def test_what_slurm_does_not_answer_is_not_done(site: Site) -> None:
    """The problem is the outcome."""
    site.job(refused="show", how="true")
    (site.bin / "job").write_text("")
    with pytest.raises(LaterError, match="Slurm shows no job 1234"):
        site.carry_out(*CANCEL)
    assert site.calls == []


def test_after_the_end_of_the_job_slurm_is_not_asked_again(site: Site) -> None:
    """The step before has changed its state."""
    site.job("COMPLETING")
    assert site.carry_out(*CANCEL, behind=True) == (True, "done")
    assert site.questions == []


# --- no second job ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize(
    ("queue", "outcome"),
    [
        (row(1234), "done"),
        ("", "done"),
        (row(1300, name="tr11"), "done"),  # trainings may share a name
        (row(1300, directory="/home/ada"), "done"),
        (row(1300, command=COMMAND), "done"),
        (row(1300, directory="/home/ada", command=f"{COMMAND}x"), "done"),
        (row(1300, directory="/home/ada", command="x.sbatch"), "job 1300 has the same command and directory"),
        (row(1301, directory="/home/ada", command=COMMAND), "job 1301 has the same command and directory"),
        (row(1301, depends="afterany:1234(unfulfilled)"), "job 1301 waits for its end (afterany:1234(unfulfilled))"),
        (row(1301, depends="afterok:1234"), "job 1301 waits for its end (afterok:1234)"),
        (row(1301, depends="afterany:12345(unfulfilled)"), "done"),
        (row(1301, depends="afterany:1000:1234+5"), "job 1301 waits for its end (afterany:1000:1234+5)"),
        (row(1301, depends="singleton(unfulfilled)"), "done"),
        (
            row(1301, depends="singleton(unfulfilled)", name="tr11"),
            "job 1301 waits for its end (singleton(unfulfilled))",
        ),
        (row(1301, start=NOW + 60, directory="/home/ada"), "done"),  # it waited for the nodes
        (f"  {row(1301, directory='/home/ada', command=COMMAND)} ", "job 1301 has the same command and directory"),
        (row(1301, depends="afterok:9,singleton", name="tr11"), "job 1301 waits for its end (afterok:9,singleton)"),
        *(
            (
                row(1301, name=f"a{mark}b", directory="/home/ada", command=COMMAND),
                "job 1301 has the same command and directory",
            )
            for mark in "\t\u2028\f\x85"
        ),
        (
            row(1301, name="a\nb"),
            "squeue shows a job whose name ends a line: '1301\\t1301\\tN/A\\tNone\\t(null)\\tN/A\\ta'",
        ),
    ],
)
def test_a_job_has_one_successor(site: Site, queue: str, outcome: str, behind: bool) -> None:
    """The user's queue is read before a job is submitted, whether or not the old one's end is this course's doing, and
    again while the new one is held.
    """
    site.job("CANCELLED", EndTime=NOW)
    site.client("squeue", f"printf '{queue}\n'")
    site.client("sbatch", "echo '1240;main'")
    submitted = site.carry_out("resubmit", SUBMIT, behind=behind, was=WAS if behind else ENDED)
    if outcome == "done":
        assert submitted == (True, "submitted job 1240")
        assert site.calls == ["sbatch --hold --parsable --dependency=afterany:1234 x.sbatch", "scontrol release 1240"]
        assert [one.split()[0] for one in site.questions] == ["scontrol", "squeue", "squeue"]
    else:
        assert submitted == (False, f"not done: {outcome}")
        assert site.calls == []


def test_of_two_monitors_that_submit_at_once_one_goes_on(site: Site) -> None:
    """Both looked before either submitted: the lower number stays, and is released. A person's job stays, too."""
    site.job("CANCELLED", EndTime=NOW)
    site.client(
        "sbatch", f"echo 1240; echo '{row(1239, reason='JobHeldUser', depends='afterany:1234')}' > {site.bin}/q"
    )
    site.client("squeue", f"cat {site.bin}/q 2>&-; true")
    assert site.carry_out("resubmit", SUBMIT, behind=True) == (True, "job 1239 came first")
    assert site.calls[-1] == "scancel 1240"
    for reason, outcome in (("JobHeldUser", "submitted job 1240"), ("Priority", "job 1241 came first")):
        (site.bin / "q").unlink()
        site.client("sbatch", f"echo 1240; echo '{row(1241, reason=reason, depends='afterany:1234')}' > {site.bin}/q")
        assert site.carry_out("resubmit", SUBMIT, behind=True) == (True, outcome)


def test_a_job_that_could_not_be_told_from_another_stays_held(site: Site) -> None:
    """The queue cannot be read behind the submission, or the release is refused: it is said which job waits."""
    site.job("CANCELLED", refused="release", EndTime=NOW)
    site.client("sbatch", f"echo 1240; touch {site.bin}/broken")
    site.client("squeue", f"[ ! -e {site.bin}/broken ]")
    assert site.carry_out("resubmit", SUBMIT, behind=True) == (
        False,
        "submitted job 1240, which is held: squeue: exit 1",
    )
    (site.bin / "broken").unlink()
    site.client("squeue")
    ok, outcome = site.carry_out("resubmit", SUBMIT, behind=True)
    assert (ok, outcome) == (False, "submitted job 1240, which is held: scontrol release 1240: exit 1")


@pytest.mark.parametrize(
    ("state", "scripts", "said"),
    [
        # It ended by itself while it was cancelled: what has completed is not begun again.
        ("COMPLETED", {}, (True, "not submitted: job 1234 has completed by itself")),
        ("FAILED", {}, (False, "not done: job 1234 is FAILED instead of CANCELLED")),
        # Waited for: an epilogue that takes a minute, a controller that is away, a queue that cannot be read.
        ("COMPLETING", {}, "job 1234 is still COMPLETING"),
        ("CANCELLED", {"sbatch": "echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1"},
         "contact slurm controller"),
        ("CANCELLED", {"squeue": "echo 'slurm_load_jobs error' >&2; exit 1"}, "squeue: exit 1: slurm_load_jobs error"),
        # Only a number counts: the job that may have been submitted stays held.
        ("CANCELLED", {"sbatch": "echo 'see 1240'"},
         (False, "sbatch: no job number was printed; a held job may be in the queue")),
    ],
)  # fmt: skip
def test_what_keeps_a_new_job_from_its_begin(
    site: Site, state: str, scripts: dict[str, str], said: tuple[bool, str] | str
) -> None:
    """Where the queue or the state of the old job says no, nothing is submitted; nothing is ever released."""
    site.job(state, EndTime=NOW)
    for name, text in scripts.items():
        site.client(name, text)
    if isinstance(said, str):
        with pytest.raises(LaterError, match=said):
            site.carry_out("resubmit", SUBMIT, behind=True)
    else:
        assert site.carry_out("resubmit", SUBMIT, behind=True) == said
    assert [call.split()[:2] for call in site.calls] == [["sbatch", "--hold"]] * ("sbatch" in scripts)


@pytest.mark.parametrize("fields", [{"Command": "(null)"}, {"WorkDir": ""}, {"Command": "x Command=y"}])
def test_a_job_whose_command_or_directory_slurm_does_not_tell_has_no_successor(
    site: Site, fields: dict[str, object]
) -> None:
    """Another one in the queue would not be found: two jobs would write one checkpoint."""
    site.job("FAILED", **fields)
    ok, outcome = site.carry_out("resubmit", SUBMIT, was=site.slurm.job("1234"))
    assert (ok, site.calls) == (False, [])
    assert outcome.startswith("not done: ")


def test_another_users_job_is_not_submitted_anew(site: Site) -> None:
    """An operator's account would submit it as itself; it may requeue."""
    site.slurm.uid = USER + 1
    site.job("FAILED")
    why = f"not done: sbatch would submit as uid {USER + 1}, and job 1234 is ada's"
    assert site.carry_out("resubmit", SUBMIT, was=ENDED) == (False, why)
    assert site.check("resubmit", SUBMIT)[1] == why
    assert site.check("requeue", ("scontrol", "requeue", "1234"))[0]


# --- before and afterwards --------------------------------------------------------------------------------------------


def test_what_could_refuse_a_restart_is_asked_before(site: Site) -> None:
    """Nothing is changed by it: only --test-only is called."""
    assert site.check("resubmit", SUBMIT) == (True, "", "")
    assert site.calls == ["sbatch --test-only x.sbatch"]
    site.client("sbatch", "echo 'allocation failure: Requested node configuration is not available' >&2; exit 1")
    ok, outcome, _ = site.check("requeue", *HELD)
    assert not ok
    assert outcome.startswith("not done: sbatch --test-only: exit 1: allocation failure: Requested node")
    (site.bin / "job").write_text("")
    with pytest.raises(LaterError):
        site.check("cancel", CANCEL[1])


@pytest.mark.parametrize(
    ("queue", "over", "action", "said"),
    [
        (row(9, depends="afterany:1234"), False, "resubmit", (True, "", "9")),
        (row(9, depends="afternotok:1234"), False, "resubmit", (True, "", "9")),
        (row(9, depends="afterok:1234"), False, "resubmit",
         (False, "not done: job 9 waits for its end (afterok:1234)", "")),
        (row(9, directory="/home/ada", command=COMMAND), False, "resubmit",
         (False, "not done: job 9 has the same command and directory", "")),
        (row(9, depends="afterany:1234"), True, "resubmit",
         (False, "not done: job 9 waits for its end (afterany:1234)", "")),
        (row(9, depends="afterany:1234"), False, "requeue", (True, "", "")),
        (row(9, directory="/home/ada", command=COMMAND), True, "requeue",
         (False, "not done: job 9 has the same command and directory", "")),
        (row(9, depends="afterok:1234"), False, "cancel", (True, "", "")),
    ],
)  # fmt: skip
def test_a_chain_goes_on_by_itself(
    site: Site, queue: str, over: bool, action: str, said: tuple[bool, str, str]
) -> None:
    """The next link begins when this one is cancelled: nothing is submitted. Where it would not, nothing is done."""
    site.job("FAILED" if over else "RUNNING")
    site.client("squeue", f"printf '{queue}\n'")
    assert site.check(action, COMMANDS[action]) == said


@pytest.mark.parametrize(
    ("start", "directory", "ok"),
    [(NOW, "/home/ada", False), (NOW + 120, "/home/ada", False), (NOW + 121, "/home/ada", True),
     (NOW - 1, "/home/ada", True), ("N/A", "/home/ada", True), (NOW + 60, "/d", True)],
)  # fmt: skip
def test_what_began_as_the_job_ended_is_its_next_link(site: Site, start: object, directory: str, ok: bool) -> None:
    """It failed by itself: Slurm tells no more what waited for that."""
    site.job("FAILED", EndTime=NOW)
    site.client("squeue", f"printf '{row(1301, start=start, directory=directory)}\\n'")
    assert site.check("resubmit", SUBMIT)[0] is ok


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ("sbatch /home/ada/train.sbatch --size 7b", ""),
        ("sbatch --parsable -N 2 --partition=gpu /home/ada/train.sbatch --export=x", ""),
        ("sbatch -N2 --partition gpu -p gpu -d afterok:12 /home/ada/train.sbatch", ""),
        ("sbatch --export=LR=1 /home/ada/train.sbatch", "--export"),
        ("sbatch -N 2 -o x.out /home/ada/train.sbatch", "--o"),
        ("sbatch --gres gpu:8 /home/ada/train.sbatch", "--gres"),
        ("", ""),
    ],
)
def test_an_option_that_would_be_lost_refuses_the_restart(site: Site, line: str, lost: str) -> None:
    """Of the job's own script, where the accounting tells how it was submitted."""
    site.client("sacct", f"echo '{line}'")
    own = (*SUBMIT[:3], "--partition=gpu", "--nodes=2", "/home/ada/train.sbatch", "--size", "7b")
    ok, outcome, _ = site.check("resubmit", own)
    assert ok is not bool(lost)
    if lost:
        assert f"not done: job 1234 was submitted with {lost}, which a new one would not have" in outcome
    assert site.check("resubmit", SUBMIT)[0]  # another script
    (site.bin / "sacct").unlink()
    assert site.check("resubmit", own)[0]


def test_tasks_of_one_array_are_no_successors(site: Site) -> None:
    """They share command and directory; another array's do, too, and are."""
    site.job("CANCELLED", ArrayJobId=1233, ArrayTaskId=1, EndTime=NOW)
    for array, index, ok in (("1233", 2, True), ("1300", 2, True), ("1300", 1, False), ("1300", "0-2", False)):
        queue = row(1235, array=array, index=index, directory="/home/ada", command=COMMAND)
        site.client("squeue", f"printf '{queue}\\n'")
        assert site.check("resubmit", SUBMIT)[0] is ok
    site.client("squeue", f"printf '{row(1240, depends='afterany:1233_*(unfulfilled)')}\n'")
    assert not site.check("resubmit", SUBMIT)[0]


@pytest.mark.parametrize(
    ("fields", "ok", "outcome"),
    [
        ({"state": "PENDING", "Reason": "Priority"}, False, ""),
        ({"state": "PENDING", "Reason": "BadConstraints"}, False, "job 1234 is PENDING for BadConstraints"),
        ({"state": "PENDING", "Reason": "ReqNodeNotAvail,_UnavailableNodes:n-02"}, False,
         "job 1234 is PENDING for ReqNodeNotAvail,_UnavailableNodes:n-02"),
        ({"state": "PENDING", "Reason": "JobHeldUser"}, False, "job 1234 is PENDING for JobHeldUser"),
        ({"state": "RUNNING", "StartTime": NOW}, True, ""),
        ({"state": "RUNNING"}, False, ""),
        ({"state": "FAILED", "StartTime": NOW}, True, ""),
    ],
)  # fmt: skip
def test_the_next_attempt_is_looked_for(site: Site, fields: dict[str, Any], ok: bool, outcome: str) -> None:
    """It has begun, or it cannot without somebody who does something."""
    site.job(**fields)
    made = site.execution("requeue", new_job="1234")
    site.slurm.look(made)
    assert (made.begun, made.stuck) == (ok, outcome)


def test_a_new_job_that_is_gone_never_began(site: Site) -> None:
    """Somebody has cancelled it; of a controller that does not answer nothing is known."""
    site.client("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    made = site.execution("requeue", new_job="1234")
    site.slurm.look(made)
    assert made.stuck == "job 1234 is gone from Slurm"
    site.client("scontrol", "exit 1")
    site.slurm.look(made)
    assert made.stuck == "job 1234 is gone from Slurm"


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refused", "how", "called"),
    [
        ("none", "", ["requeuehold", "update", "release"]),
        ("requeuehold", "exit 1", ["requeuehold"]),
        ("requeuehold", "exec sleep 30", ["requeuehold", "release"]),
        ("update", "exit 1", ["requeuehold", "update", "release"]),
        ("update", "exec sleep 30", ["requeuehold", "update", "release"]),
        ("release", "exit 1", ["requeuehold", "update", "release"]),
    ],
)
def test_a_job_that_may_be_held_is_released(
    site: Site, monkeypatch: pytest.MonkeyPatch, refused: str, how: str, called: list[str]
) -> None:
    """It is held, changed and released. What was refused is not held; what did not end in time may be. The outcome is
    the failure.
    """
    site.job(refused=refused, how=how)
    monkeypatch.setattr(module, "TIMEOUT", 0.3 if "sleep" in how else 20.0)
    ok, outcome = site.carry_out("requeue", *HELD)
    assert (ok, outcome.startswith(f"scontrol {refused}: ")) == (not how, bool(how))
    typed = {command[1]: " ".join(command) for command in HELD}
    assert site.calls == [typed[one] for one in called]


@pytest.mark.parametrize("command", [("rm", "-rf", "/x"), ("scancel", "1234", "x")])
def test_a_program_that_is_none_of_slurms_clients_here_is_not_run(site: Site, command: tuple[str, ...]) -> None:
    """Another's, whatever a saved record holds, or one that is not installed."""
    (site.bin / "scancel").unlink()
    name = command[0]
    assert site.carry_out("cancel", command) == (False, f"{name} {command[1]}: there is no {name} here")


def test_a_command_without_a_time_of_its_own_has_slurms(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed then."""
    monkeypatch.setattr(module, "TIMEOUT", 0.2)
    site.client("scancel", "exec sleep 30")
    assert "after 0.2 s" in site.carry_out(*CANCEL, behind=True)[1]


# --- dumps ------------------------------------------------------------------------------------------------------------

DUMP = "dump_stacks", ("srun", "/opt/dump")


def test_a_dump_goes_below_the_state_directory(site: Site) -> None:
    """The folder is made, and is its owner's alone."""
    site.client("srun", "echo stacks")
    directory = site.slurm.directory
    ok, outcome = site.carry_out(*DUMP)
    path = directory / "r_1-1234-20231114T221320Z.txt"
    assert (ok, outcome) == (True, f"7 bytes in {path}")
    assert path.read_text() == "stacks\n"
    assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("printed", "ok", "outcome"),
    [
        ("", False, "0 bytes in "),
        ("printf x", True, "1 bytes in "),
        ("echo half; exit 3", False, "exit 3: half; 5 bytes in "),
    ],
)
def test_a_dump_of_nothing_or_of_some_ranks_has_failed(site: Site, printed: str, ok: bool, outcome: str) -> None:
    """What some ranks have answered is kept."""
    site.client("srun", printed)
    done = site.carry_out(*DUMP)
    assert (done[0], done[1].startswith(outcome)) == (ok, True)


def test_no_dump_overwrites_another(site: Site) -> None:
    """Of the same second; another job's stands beside it. A folder that cannot be is an outcome, too."""
    site.client("srun", "echo stacks")
    assert site.carry_out(*DUMP)[0]
    assert site.carry_out(*DUMP, was=replace(WAS, id="1235"), behind=True)[0]
    ok, outcome = site.carry_out(*DUMP)
    assert not ok
    assert outcome.endswith(".txt: File exists")
    (site.bin / "file").write_text("")
    site.slurm.directory = site.bin / "file"
    assert site.carry_out(*DUMP)[0] is False


def test_a_runs_name_is_cut_to_a_files(site: Site) -> None:
    """100 characters of it; one from a path leads nowhere else."""
    site.client("srun", "echo stacks")
    for name in ("x" * 300, "r/../../x"):
        assert site.carry_out("dump_stacks", ("srun",), run=name)[0]
    paths = sorted(path.name for path in site.slurm.directory.iterdir())
    assert paths[0].startswith("r_.._.._x-1234-")
    assert paths[1].startswith("x" * 100 + "-1234-")


# --- drains -----------------------------------------------------------------------------------------------------------

NODES = "NodeName=n-01 Arch=x86_64 State=IDLE ThreadsPerCore=1\\nNodeName=n-02 Arch=x86_64 State={} ThreadsPerCore=1{}"
DRAIN = "drain", ("scontrol", "update", "NodeName=n-02", "State=DRAIN", "Reason=megatron-monitor: hang of job 1234")


@pytest.mark.parametrize(
    ("state", "of_job", "more", "why"),
    [
        ("IDLE", "RUNNING", "", "not done: only the log names n-02: Slurm reports it as IDLE"),
        ("ALLOCATED", "FAILED", "", "not done: only the log names n-02: Slurm reports it as ALLOCATED"),
        ("DOWN*", "RUNNING", "", ""),
        ("IDLE+NOT_RESPONDING", "RUNNING", "", ""),
        ("IDLE", "NODE_FAIL", "", ""),
        ("DOWN+DRAIN", "RUNNING", " Reason=megatron-monitor: hang of job 9 [root@2023]",
         "not done: 1 of 2 nodes are already drained, and the limit is 2 %"),
        ("DOWN+DRAIN", "RUNNING", " Reason=broken fan [root@2023]", ""),
    ],
)  # fmt: skip
def test_what_a_log_prints_drains_no_node(site: Site, state: str, of_job: str, more: str, why: str) -> None:
    """Slurm itself must find it ill: it is down, does not answer, or ended the job; only a few are drained."""
    site.client(
        "scontrol", f"case \"$2\" in job) cat {site.bin}/job;; *) printf '{NODES.format(state, more)}\\n';; esac"
    )
    site.job_file(of_job)
    assert site.check(*DRAIN)[1] == why


def test_nodes_that_slurm_does_not_show_are_not_drained(site: Site) -> None:
    """It is asked again later."""
    site.client("scontrol", f'case "$2" in job) cat {site.bin}/job;; *) exit 1;; esac')
    with pytest.raises(LaterError, match="scontrol show node: exit 1"):
        site.check(*DRAIN)
