"""Orders to Slurm's clients: each thing that keeps one from being done, and what is called in which order."""

import threading
from pathlib import Path
from typing import Any

import pytest

from monitor.hands import executor as rules
from monitor.hands.executor import Executor
from monitor.hands.record import Order, StepDone
from monitor.slurm.settings import SlurmSettings
from monitor.system.clock import SystemClock
from tests.monitor.slurm.site import NOW, shown
from tests.programs import wait

HELD = (("scontrol", "requeuehold", "1234"), ("scontrol", "update", "JobId=1234", "ExcNodeList=n-02"),
        ("scontrol", "release", "1234"))  # fmt: skip
SUBMIT = ("sbatch", "--parsable", "x.sbatch")


class Stopped(SystemClock):
    """Intervals pass, the time of day does not."""

    def wall(self) -> float:
        """Unix seconds."""
        return float(NOW)


class Site:
    """Slurm's clients as shell scripts, which note how they are called, and an executor that uses them."""

    def __init__(self, below: Path) -> None:
        self.bin, self.wakes = below / "bin", threading.Semaphore(0)
        self.bin.mkdir()
        self.executor = Executor(SlurmSettings(directory=str(self.bin), timeout=10.0), Stopped(), self.wakes.release)
        self.executor.directory = below / "stacks"
        self.job()
        self.client("squeue", "echo '1234|tr11'")
        for name in ("scancel", "srun", "sbatch"):
            self.client(name)

    def client(self, name: str, text: str = "") -> None:
        """What it does."""
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> "{self.bin}/calls"\n{text}\n')
        path.chmod(0o755)

    def job(self, state: str = "RUNNING", refused: str = "none", how: str = "exit 1", **fields: object) -> None:
        """What scontrol shows; what it refuses, and how."""
        (self.bin / "job").write_text(shown(state=state, **fields))  # type: ignore[arg-type]
        case = f'case "$1" in show) cat "{self.bin}/job";; {refused}) {how};; esac'
        self.client("scontrol", case)

    def carry_out(self, action: str, *commands: tuple[str, ...], **more: Any) -> tuple[bool, str]:
        """An order for job 1234, as it was when this was planned."""
        fields: dict[str, Any] = {
            "timeout": None, "directory": None, "job": "1234", "job_started_at": NOW - 3600.0, "job_restarts": 0,
            "over": False, "check": True, **more,
        }  # fmt: skip
        order = Order(course=1, step=0, run="r/1", action=action, commands=commands, **fields)
        return self.executor.carry_out(order)

    @property
    def calls(self) -> list[str]:
        """What was done; questions left out."""
        path = self.bin / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if not line.startswith(("scontrol show", "squeue"))]

    @property
    def questions(self) -> list[str]:
        """What was asked."""
        path = self.bin / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(("scontrol show", "squeue"))]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Job 1234 runs."""
    return Site(tmp_path)


CANCEL = "cancel", ("scancel", "1234")


# --- the job is still the one that was meant --------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"Restarts": 1}, {"StartTime": NOW - 10}, {"StartTime": NOW - 3700}])
def test_a_job_that_was_started_anew_is_left_alone(site: Site, fields: dict[str, object]) -> None:
    """By its count of restarts alone, and by its start alone: Slurm may start a job anew without counting it."""
    site.job(**fields)
    assert site.carry_out(*CANCEL) == (False, "not done: job 1234 was started anew since")
    assert site.calls == []


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
    assert site.carry_out("requeue", ("scontrol", "requeue", "1234"), over=over) == outcome
    assert site.calls == (["scontrol requeue 1234"] if done else [])


def test_what_slurm_does_not_answer_is_not_done(site: Site) -> None:
    """The problem is the outcome."""
    site.job(refused="show", how="true")
    (site.bin / "job").write_text("")
    ok, outcome = site.carry_out(*CANCEL)
    assert (ok, site.calls) == (False, [])
    assert "not done: scontrol shows job 1234 0 times" in outcome


def test_after_the_end_of_the_job_slurm_is_not_asked_again(site: Site) -> None:
    """The step before has changed its state."""
    site.job("COMPLETING")
    assert site.carry_out(*CANCEL, check=False) == (True, "done")
    assert site.questions == []


# --- no second job ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("queue", "outcome"),
    [
        ("1234|tr11", "done"),
        ("", "done"),
        ("1300|other", "done"),
        ("1300|tr11x", "done"),
        ("1234|tr11\\n1301|tr11", "job 1301"),
        ("  1301|tr11 ", "job 1301"),
        ("1301| tr11", "job 1301"),
    ],
)
def test_one_job_of_a_name_is_in_the_queue(site: Site, queue: str, outcome: str, check: bool) -> None:
    """The user's queue is read before a job is submitted, whether or not the old one's end is this course's doing."""
    site.client("squeue", f"printf '{queue}\\n'")
    site.client("sbatch", "echo '1240;main'")
    submitted = site.carry_out("resubmit", SUBMIT, check=check)
    assert site.questions == ["scontrol show job -o 1234", "squeue -h -u 1000 -o %A|%j"]
    if outcome == "done":
        assert submitted == (True, "submitted job 1240")
    else:
        assert submitted == (False, f"not done: {outcome} of the same name is in the queue")
        assert site.calls == []


@pytest.mark.parametrize("fields", [{"JobName": ""}, {"JobName": "x JobName=tr11"}, {"UserId": "(null)"}])
def test_a_job_whose_name_or_user_slurm_does_not_tell_has_no_successor(site: Site, fields: dict[str, object]) -> None:
    """Another one in the queue would not be found: two jobs would write one checkpoint."""
    site.job("FAILED", **fields)
    ok, outcome = site.carry_out("resubmit", SUBMIT, over=True)
    assert (ok, site.calls) == (False, [])
    assert outcome.startswith("not done: ")


def test_a_queue_that_cannot_be_read_may_hold_a_job(site: Site) -> None:
    """Nothing is submitted."""
    site.client("squeue", "echo 'slurm_load_jobs error' >&2; exit 1")
    assert site.carry_out("resubmit", SUBMIT) == (False, "not done: squeue: exit 1: slurm_load_jobs error")


def test_only_a_resubmission_looks_into_the_queue(site: Site) -> None:
    """A job is requeued though its user has another of its name."""
    site.client("squeue", "echo '1301|tr11'")
    assert site.carry_out("requeue", ("scontrol", "requeue", "1234")) == (True, "done")
    assert site.questions == ["scontrol show job -o 1234"]


@pytest.mark.parametrize(
    ("action", "printed", "outcome"),
    [
        ("resubmit", "1240", "submitted job 1240"),
        ("resubmit", "1240;main", "submitted job 1240"),
        ("resubmit", "see 1240", "done"),
        ("signal", "1240", "done"),
    ],
)
def test_the_new_jobs_number_is_the_outcome(site: Site, action: str, printed: str, outcome: str) -> None:
    """What sbatch prints, and only a number."""
    site.client("sbatch", f"echo '{printed}'")
    assert site.carry_out(action, SUBMIT) == (True, outcome)


# --- commands ---------------------------------------------------------------------------------------------------------


def test_a_job_that_is_held_is_changed_and_released(site: Site) -> None:
    """In this order."""
    assert site.carry_out("requeue", *HELD) == (True, "done")
    assert site.calls == ["scontrol requeuehold 1234", "scontrol update JobId=1234 ExcNodeList=n-02",
                          "scontrol release 1234"]  # fmt: skip


@pytest.mark.parametrize(
    ("refused", "how", "called"),
    [
        ("requeuehold", "exit 1", ["requeuehold"]),
        ("requeuehold", "exec sleep 30", ["requeuehold", "release"]),
        ("update", "exit 1", ["requeuehold", "update", "release"]),
        ("update", "exec sleep 30", ["requeuehold", "update", "release"]),
        ("release", "exit 1", ["requeuehold", "update", "release"]),
    ],
)
def test_a_job_that_may_be_held_is_released(site: Site, refused: str, how: str, called: list[str]) -> None:
    """What was refused is not held; what did not end in time may be. The outcome is the failure."""
    site.job(refused=refused, how=how)
    ok, outcome = site.carry_out("requeue", *HELD, timeout=0.3 if "sleep" in how else None)
    assert not ok
    assert outcome.startswith(f"scontrol {refused}: ")
    assert [call.split()[1] for call in site.calls] == called


def test_a_command_that_fails_is_called_once(site: Site) -> None:
    """There is nothing to release."""
    site.client("scancel", "exec sleep 30")
    ok, outcome = site.carry_out(*CANCEL, timeout=0.2)
    assert not ok
    assert outcome == f"scancel 1234: {site.bin}/scancel had not ended after 0.2 s and was killed"
    assert site.calls == ["scancel 1234"]


@pytest.mark.parametrize("command", [("rm", "-rf", "/x"), ("scancel", "1234", "x")])
def test_a_program_that_is_none_of_slurms_clients_here_is_not_run(site: Site, command: tuple[str, ...]) -> None:
    """Another's, whatever a saved record holds, or one that is not installed."""
    (site.bin / "scancel").unlink()
    name = command[0]
    assert site.carry_out("cancel", command) == (False, f"{name} {command[1]}: there is no {name} here")


def test_a_command_without_a_time_of_its_own_has_slurms(site: Site) -> None:
    """`slurm.timeout`, as it is configured now."""
    site.executor.settings = SlurmSettings(directory=str(site.bin), timeout=0.2)
    site.client("scancel", "exec sleep 30")
    assert "after 0.2 s" in site.carry_out(*CANCEL, check=False)[1]


# --- dumps ------------------------------------------------------------------------------------------------------------

DUMP = "dump_stacks", ("srun", "/opt/dump")


@pytest.mark.parametrize("own", [True, False])
def test_a_dump_goes_where_its_action_says(site: Site, own: bool, tmp_path: Path) -> None:
    """Else below the state directory; the folder is made, and is its owner's alone."""
    site.client("srun", "echo stacks")
    directory = tmp_path / "a" / "own" if own else site.executor.directory
    ok, outcome = site.carry_out(*DUMP, directory=str(directory) if own else None)
    path = directory / "r_1-1234-20231114T221320Z.txt"
    assert (ok, outcome) == (True, f"7 bytes in {path}")
    assert path.read_text() == "stacks\n"
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_dump_of_nothing_has_failed(site: Site) -> None:
    """One byte has not."""
    ok, outcome = site.carry_out(*DUMP)
    assert not ok
    assert outcome.startswith("0 bytes in ")
    site.client("srun", "printf x")
    assert site.carry_out(*DUMP, job="1234", directory=str(site.bin / "other"))[0]


def test_a_dump_that_fails_says_so_and_is_kept(site: Site) -> None:
    """Some ranks may have answered."""
    site.client("srun", "echo half; exit 3")
    ok, outcome = site.carry_out(*DUMP)
    assert not ok
    assert outcome.startswith("exit 3: half; 5 bytes in ")


def test_no_dump_overwrites_another(site: Site) -> None:
    """Of the same second; another job's stands beside it. A folder that cannot be is an outcome, too."""
    site.client("srun", "echo stacks")
    assert site.carry_out(*DUMP)[0]
    assert site.carry_out(*DUMP, job="1235", check=False)[0]
    ok, outcome = site.carry_out(*DUMP)
    assert not ok
    assert outcome.endswith(".txt: File exists")
    (site.bin / "file").write_text("")
    assert site.carry_out(*DUMP, directory=str(site.bin / "file"))[0] is False


def test_a_dump_is_kept_up_to_a_limit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 MiB: what ranks print may not fill the disk."""
    assert rules._MOST == 16 * 1024 * 1024
    monkeypatch.setattr(rules, "_MOST", 10)
    site.client("srun", "echo 0123456789abc")
    assert site.carry_out(*DUMP)[1].startswith("10 bytes in ")


def test_a_runs_name_is_cut_to_a_files(site: Site) -> None:
    """100 characters of it; one from a path leads nowhere else."""
    site.client("srun", "echo stacks")
    for name in ("x" * 300, "r/../../x"):
        order = Order(1, 0, name, "dump_stacks", (("srun",),), None, None, "1234", None, 0, False, check=False)
        assert site.executor.carry_out(order)[0]
    paths = sorted(path.name for path in site.executor.directory.iterdir())
    assert paths[0].startswith("r_.._.._x-1234-")
    assert paths[1].startswith("x" * 100 + "-1234-")


# --- the thread -------------------------------------------------------------------------------------------------------


def order(number: int, action: str = "cancel") -> Order:
    """Cancels job 1234 unasked."""
    return Order(number, 0, "r", action, (("scancel", str(number)),), None, None, "1234", None, 0, False, check=False)


def test_orders_are_carried_out_in_order_and_reported(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop is woken for each; a bug of the executor is an outcome, too, and it goes on."""
    carry_out = Executor.carry_out

    def broken(self: Executor, one: Order) -> tuple[bool, str]:
        if one.course == 2:
            raise ZeroDivisionError
        return carry_out(self, one)

    monkeypatch.setattr(Executor, "carry_out", broken)
    site.client("scancel", '[ "$1" != 3 ]')
    for number in (1, 2, 3):
        site.executor.ask(order(number))
    for _ in range(3):
        assert site.wakes.acquire(timeout=10.0)
    assert site.executor.answers() == [
        StepDone(1, 0, True, "done"),
        StepDone(2, 0, False, "ZeroDivisionError in the executor"),
        StepDone(3, 0, False, "scancel 3: exit 1"),
    ]
    assert site.executor.answers() == []
    site.executor.stop()
    levels = [record.levelname for record in caplog.records if "ok=" in record.getMessage()]
    assert levels == ["WARNING", "ERROR", "ERROR"]


def test_nothing_more_is_begun_after_the_stop(site: Site) -> None:
    """A command that runs ends by itself, on a thread that holds up no end of the process."""
    begun = site.bin / "begun"
    site.client("scancel", f'touch "{begun}"; while [ -e "{begun}" ]; do sleep 0.02; done')
    before = set(threading.enumerate())
    site.executor.ask(order(1))
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    site.executor.ask(order(2))
    wait(begun.exists, 10.0, "the first command")
    site.executor.stop()
    begun.unlink()
    thread.join(10.0)
    assert not thread.is_alive()
    assert site.calls == ["scancel 1"]
