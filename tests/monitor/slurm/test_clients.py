"""Slurm that does not answer, answers nonsense, or changes between plan and deed: stand-ins in place of its clients."""

from pathlib import Path

import pytest

from megatron_monitor.slurm import JobQuestion, client
from megatron_monitor.slurm.client import look_up, look_up_all
from megatron_monitor.system.clock import SystemClock
from megatron_monitor.system.process import run
from tests.monitor.slurm.site import clients_in, script, shown
from tests.programs import slack

CLOCK = SystemClock()
ASKED = JobQuestion("r", "1234")


@pytest.fixture(autouse=True)
def _short_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the test's own directory; they have half a second."""
    monkeypatch.setattr(client, "TIMEOUT", 0.5)
    clients_in(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("text", "problem", "gone"),
    [
        # It answers, and has forgotten the job: that is no failure of Slurm.
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", "Slurm knows no job 1234", True),
        ("exec sleep 30", "had not ended after 0.5 s and was killed", False),
        ("setsid sleep 30 & exit 0", "had not ended after 0.5 s and was killed", False),
        ("exec yes", "had not ended after 0.5 s and was killed", False),
        ("echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1", "exit 1: slurm_load_jobs error", False),
        ("echo '<html>'", "Slurm shows no job 1234", False),
        ("printf '\\377\\376\\000'", "Slurm shows no job 1234", False),
        ("exit 0", "Slurm shows no job 1234", False),
        ("kill -9 $$", "exit -9", False),
    ],
)  # fmt: skip
def test_a_client_without_an_answer_is_a_problem_in_words(tmp_path: Path, text: str, problem: str, gone: bool) -> None:
    """Within its time, whatever it prints and whatever it leaves behind; and where there is none."""
    assert look_up(CLOCK, ASKED).problem == "there is no scontrol here"
    script(tmp_path, "scontrol", text)
    began = CLOCK.monotonic()
    answer = look_up(CLOCK, ASKED)
    assert (answer.job, answer.gone) == (None, gone)
    assert problem in answer.problem
    assert CLOCK.monotonic() - began < slack(20.0)


def test_two_runs_of_one_job_ask_once(tmp_path: Path) -> None:
    """And of an array and one of its tasks, which is shown twice; each has its answer."""
    (tmp_path / "jobs").write_text(shown(9, ArrayJobId=8, ArrayTaskId=3))
    script(tmp_path, "scontrol", f"tee -a {tmp_path}/asked | while read _; do cat {tmp_path}/jobs; done")
    questions = [JobQuestion("a", "8_3"), JobQuestion("b", "8_3"), JobQuestion("c", "9")]
    answers = look_up_all(CLOCK, questions)
    assert [one.job.id if one.job else one.problem for one in answers] == ["9", "9", "9"]
    assert (tmp_path / "asked").read_text() == "show job 8_3\nshow job 9\n"


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
