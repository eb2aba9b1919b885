"""Slurm that does not answer, answers nonsense, or changes between plan and deed: stand-ins in place of its clients."""

from pathlib import Path

import pytest

from megatron_monitor.config.slurm import SlurmSettings
from megatron_monitor.hands.executor import Executor
from megatron_monitor.hands.record import Order
from megatron_monitor.simulate.slurm import install, read, write
from megatron_monitor.slurm import JobQuestion
from megatron_monitor.slurm.client import look_up
from megatron_monitor.system.clock import SystemClock
from megatron_monitor.system.process import run
from tests.monitor.slurm.site import shown
from tests.programs import slack

CLOCK = SystemClock()
ASKED = JobQuestion("r", "1234")


def script(directory: Path, name: str, text: str) -> SlurmSettings:
    """A client that is this shell script."""
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return SlurmSettings(directory=str(directory), timeout=0.5)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("exec sleep 30", "had not ended after 0.5 s and was killed"),
        ("setsid sleep 30 & exit 0", "had not ended after 0.5 s and was killed"),
        ("exec yes", "had not ended after 0.5 s and was killed"),
        ("echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1", "exit 1: slurm_load_jobs error"),
        ("echo '<html>'", "shows job 1234 0 times"),
        ("printf '\\377\\376\\000'", "shows job 1234 0 times"),
        ("exit 0", "shows job 1234 0 times"),
        ("kill -9 $$", "exit -9"),
    ],
)  # fmt: skip
def test_a_client_that_misbehaves_is_a_problem_in_words(tmp_path: Path, text: str, problem: str) -> None:
    """Within its time, whatever it prints and whatever it leaves behind."""
    settings = script(tmp_path, "scontrol", text)
    began = CLOCK.monotonic()
    answer = look_up(settings, CLOCK, ASKED)
    assert answer.job is None
    assert problem in answer.problem
    assert CLOCK.monotonic() - began < slack(20.0)


def test_a_job_that_slurm_has_forgotten_is_gone(tmp_path: Path) -> None:
    """It answers: that is no failure of Slurm."""
    settings = script(tmp_path, "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert look_up(settings, CLOCK, ASKED).gone


def test_without_clients_nothing_is_asked(tmp_path: Path) -> None:
    """Nor done."""
    assert look_up(SlurmSettings(directory=str(tmp_path)), CLOCK, ASKED).problem == "there is no scontrol here"


def test_arguments_are_no_shells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks like a command is an argument; the daemon's own job is not handed on."""
    monkeypatch.setenv("SLURM_JOB_ID", "99")
    monkeypatch.setenv("SBATCH_PARTITION", "gpu")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    mine = tmp_path / "mine"
    settings = script(tmp_path, "scontrol", 'printf "%s|" "$@"; echo "$SLURM_JOB_ID$SBATCH_PARTITION$SLURM_CONF"')
    done = run([f"{settings.directory}/scontrol", f"$(touch {mine})", "; reboot"], CLOCK, 5.0, 1000)
    assert done.output.decode() == f"$(touch {mine})|; reboot|/etc/slurm.conf\n"
    assert not mine.exists()


def order(action: str, *commands: tuple[str, ...], **more: object) -> Order:
    """For job 1234, which runs."""
    fields: dict[str, object] = {
        "course": 1, "step": 0, "run": "r/../../x", "action": action, "commands": commands, "timeout": None,
        "directory": None, "job": "1234", "job_started_at": 1699996400.0, "job_restarts": 0, "over": False,
        "check": True,
    }  # fmt: skip
    return Order(**{**fields, **more})  # type: ignore[arg-type]


@pytest.fixture
def slurm(tmp_path: Path) -> tuple[Path, Executor]:
    """The simulated Slurm with job 1234, and an executor that uses it."""
    fields = dict(pair.partition("=")[::2] for pair in shown().split() if "=" in pair)
    directory = tmp_path / "bin"
    install(directory, fields)
    executor = Executor(SlurmSettings(directory=str(directory)), CLOCK, lambda: None)
    executor.directory = tmp_path / "stacks"
    return directory, executor


def test_a_step_is_done_on_the_job_that_was_meant(slurm: tuple[Path, Executor]) -> None:
    """Requeued without its node; the second time the job has been started anew, and is left alone."""
    directory, executor = slurm
    requeue = order(
        "requeue", ("scontrol", "requeuehold", "1234"), ("scontrol", "update", "JobId=1234", "ExcNodeList=n-02"),
        ("scontrol", "release", "1234"),
    )  # fmt: skip
    assert executor.carry_out(requeue) == (True, "done")
    job = read(directory)
    assert (job["JobState"], job["Restarts"], job["ExcNodeList"], job["Reason"]) == ("PENDING", 1, "n-02", "BeginTime")
    write(directory, {**job, "JobState": "RUNNING"})
    assert executor.carry_out(requeue) == (False, "not done: job 1234 was started anew since")
    assert read(directory)["Restarts"] == 1
