"""Slurm that does not answer, answers nonsense, or changes between plan and deed: stand-ins in place of its clients."""

from pathlib import Path

import pytest

from megatron_monitor.slurm import JobQuestion, client
from megatron_monitor.slurm.client import look_up, look_up_all
from megatron_monitor.system.clock import SystemClock
from megatron_monitor.system.process import run
from tests.monitor.slurm.site import clients_in, shown
from tests.programs import slack

CLOCK = SystemClock()
ASKED = JobQuestion("r", "1234")


@pytest.fixture(autouse=True)
def _short_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the test's own directory; they have half a second."""
    monkeypatch.setattr(client, "TIMEOUT", 0.5)
    clients_in(tmp_path, monkeypatch)


def script(directory: Path, name: str, text: str) -> None:
    """A client that is this shell script."""
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("exec sleep 30", "had not ended after 0.5 s and was killed"),
        ("setsid sleep 30 & exit 0", "had not ended after 0.5 s and was killed"),
        ("exec yes", "had not ended after 0.5 s and was killed"),
        ("echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1", "exit 1: slurm_load_jobs error"),
        ("echo '<html>'", "Slurm shows no job 1234"),
        ("printf '\\377\\376\\000'", "Slurm shows no job 1234"),
        ("exit 0", "Slurm shows no job 1234"),
        ("kill -9 $$", "exit -9"),
    ],
)  # fmt: skip
def test_a_client_that_misbehaves_is_a_problem_in_words(tmp_path: Path, text: str, problem: str) -> None:
    """Within its time, whatever it prints and whatever it leaves behind."""
    script(tmp_path, "scontrol", text)
    began = CLOCK.monotonic()
    answer = look_up(CLOCK, ASKED)
    assert answer.job is None
    assert problem in answer.problem
    assert CLOCK.monotonic() - began < slack(20.0)


def test_a_job_that_slurm_has_forgotten_is_gone(tmp_path: Path) -> None:
    """It answers: that is no failure of Slurm."""
    script(tmp_path, "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert look_up(CLOCK, ASKED).gone


def test_two_runs_of_one_job_ask_once(tmp_path: Path) -> None:
    """And of an array and one of its tasks, which is shown twice; each has its answer."""
    (tmp_path / "jobs").write_text(shown(9, ArrayJobId=8, ArrayTaskId=3))
    script(tmp_path, "scontrol", f"tee -a {tmp_path}/asked | while read _; do cat {tmp_path}/jobs; done")
    questions = [JobQuestion("a", "8_3"), JobQuestion("b", "8_3"), JobQuestion("c", "9")]
    answers = look_up_all(CLOCK, questions)
    assert [one.job.id if one.job else one.problem for one in answers] == ["9", "9", "9"]
    assert (tmp_path / "asked").read_text() == "show job 8_3\nshow job 9\n"


def test_without_clients_nothing_is_asked() -> None:
    """Nor done."""
    assert look_up(CLOCK, ASKED).problem == "there is no scontrol here"


def test_arguments_are_no_shells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks like a command is an argument; the daemon's own job is not handed on."""
    monkeypatch.setenv("SLURM_JOB_ID", "99")
    monkeypatch.setenv("SBATCH_PARTITION", "gpu")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    mine = tmp_path / "mine"
    script(tmp_path, "scontrol", 'printf "%s|" "$@"; echo "$SLURM_JOB_ID$SBATCH_PARTITION$SLURM_CONF"')
    done = run([f"{tmp_path}/scontrol", f"$(touch {mine})", "; reboot"], CLOCK, 5.0, 1000)
    assert done.output.decode() == f"$(touch {mine})|; reboot|/etc/slurm.conf\n"
    assert not mine.exists()
