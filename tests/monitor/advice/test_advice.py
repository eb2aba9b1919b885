"""What a launcher is told that asks: wait, restart, stop or none, from the judgement and the policies' own plan."""

import json
from typing import Any

import pytest

from megatron_monitor.serve.exchange import Reply, Request
from megatron_monitor.serve.views import view_of
from megatron_monitor.snapshot import RunSnapshot, Snapshot
from tests.commands import command
from tests.lines import line
from tests.monitor.remediator.site import REQUEUE, Remediated
from tests.monitor.serve.conftest import Serve, serve

__all__ = ["serve"]
POLICY = REQUEUE.replace("dry_run: false, ", "")
SRUN = "srun: error: n-02: task 1: "
FAULT = f"{SRUN}Segmentation fault (core dumped)\n"
LIMIT = "slurmstepd: error: *** JOB 1234 ON n-01 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***\n"
SAVED = "  successfully saved checkpoint at iteration {:7d} to /ckpt\n"


def asked(site: Remediated, **parameters: str) -> dict[str, Any]:
    """The API's answer about the only run."""
    query = "&".join(f"{name}={value}" for name, value in {"run": "r", **parameters}.items())
    reply = view_of(Request(path="/api/v1/advice", query=query), site.core.snapshot(site.now), site.now)
    assert isinstance(reply, Reply)
    return dict(json.loads(reply.body))


def crashed(text: str, *, saved: int | None = 5) -> Remediated:
    """A run whose attempt ends with this text."""
    site = Remediated(POLICY.replace("hang, crash", "hang"))
    site.say(SAVED.format(saved) if saved else "")
    site.say(text)
    site.wait(40)
    return site


def restart(site: Remediated, text: str) -> None:
    """The job's next attempt computes the same steps again, and ends so."""
    site.say("using world size: 2, data-parallel-size: 2\n")
    for number in (6, 7):
        site.say(line(number, seconds=10.0))
        site.wait(10)
    site.say(text)
    site.wait(40)


def test_a_run_that_is_well_needs_nothing() -> None:
    """Unless the launcher knows that the attempt is over: then the log will tell yet. Nobody knows another name."""
    site = Remediated(POLICY)
    reported = asked(site)
    assert (reported["advice"], reported["reason"]) == ("none", "nothing is wrong")
    assert asked(site, ended="1")["advice"] == "wait"
    gone = Snapshot(site.now, ended=(RunSnapshot("r", {}, {"state": "finished"}),))
    reply = view_of(Request(path="/api/v1/advice", query="run=r&ended=1"), gone, site.now)
    assert isinstance(reply, Reply)
    assert json.loads(reply.body)["reason"] == "its log is no longer followed"
    assert asked(site, run="other") == {"run": "other", "advice": "none", "reason": "no run of this name is known"}


def test_a_broken_node_is_left_out_and_the_checkpoint_is_told() -> None:
    """A dry run's policy is enough: who asks acts. Without one for crashes it is the usual."""
    site = crashed(FAULT)
    reported = asked(site)
    assert (reported["advice"], reported["exclude"], reported["checkpoint"]) == ("restart", ["n-02"], 5)
    assert reported["same_cause_before"] == 0
    assert reported["since"] == pytest.approx(site.now - 40, abs=2)
    assert reported["evidence"][0] == FAULT.strip()
    assert "iteration        5" in reported["evidence"][-1]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\n    f()\nValueError: x\n"
         "srun: error: n-02: task 1: Exited with exit code 1\n", "stop"),
        (LIMIT, "restart"),
        ("slurmstepd: error: *** JOB 1234 ON n-01 CANCELLED AT 2026-03-01T10:00:00 ***\n", "stop"),
        (FAULT, "restart"),
    ],
)  # fmt: skip
def test_what_a_restart_may_mend_is_restarted(text: str, advice: str) -> None:
    """What the program did wrong, and what a person ended, is not."""
    assert asked(crashed(text))["advice"] == advice


def test_a_cause_is_believed_before_it_is_told() -> None:
    """Right behind the fatal line other ranks' lines may say more."""
    site = Remediated(POLICY)
    site.say(FAULT)
    site.wait(1)
    assert asked(site, ended="1")["advice"] == "wait"
    site.wait(20)
    assert asked(site, ended="1")["advice"] == "restart"


def test_the_same_end_again_and_again_without_a_checkpoint_is_stopped() -> None:
    """The fourth time; with a new checkpoint in between it is restarted as before. Three crashes are a loop."""
    site, advices = crashed(LIMIT), list[str]()
    for number in (1, 2, 3):
        restart(site, LIMIT)
        reported = asked(site)
        assert reported["same_cause_before"] == number
        advices.append(reported["advice"])
    assert advices == ["restart", "restart", "stop"]
    assert reported["reason"].startswith("it occurred 4 times without a new checkpoint: ")
    restart(site, SAVED.format(7) + LIMIT)
    assert (asked(site)["advice"], asked(site)["same_cause_before"]) == ("restart", 4)
    unnamed = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1234.0. Some of the step tasks have been OOM Killed.\n"
    )
    loop = crashed(unnamed)
    for _ in range(2):
        restart(loop, unnamed)
    assert (asked(loop)["advice"], asked(loop)["reason"].split(" (")[0]) == (
        "stop", "3 attempts in a row have crashed",
    )  # fmt: skip


def test_a_hang_is_waited_for_as_long_as_its_policy_says() -> None:
    """Late, then hung, then long enough; while the policy itself is at work nobody else is told to act."""
    site = Remediated(POLICY)
    site.wait(45)
    assert asked(site)["advice"] in ("none", "wait")
    site.wait(30)
    reported = asked(site)
    assert reported["advice"] == "wait"
    assert reported["reason"].startswith("remediation p is due in 5 s: hung in training")
    site.wait(30)
    assert asked(site)["advice"] == "restart"
    unconfigured = Remediated("")
    unconfigured.wait(120)
    assert asked(unconfigured)["reason"].startswith("a restart is advised in 9 min")
    armed = Remediated(REQUEUE)
    armed.outcomes["requeue"] = "no answer"
    armed.wait(110)
    assert asked(armed)["reason"].startswith("remediation p is under way: hung")


def test_a_policy_that_only_cancels_stops() -> None:
    """And what no policy and no restart is for is a person's: NaN goes back to the checkpoint before."""
    site = Remediated("{name: p, incidents: [hang], for: 30s, actions: [{type: cancel}]}")
    site.wait(120)
    assert asked(site)["advice"] == "stop"
    nan = Remediated(POLICY)
    nan.say(SAVED.format(5))
    for number in range(6, 30):
        nan.say(line(number, seconds=10.0, loss=float("nan")))
        nan.wait(10)
    reported = asked(nan)
    assert (reported["advice"], reported["checkpoint"]) == ("stop", 5)


def test_the_command_waits_for_the_answer_and_gives_it_to_a_shell(serve: Serve) -> None:
    """A line a field, nodes as Slurm takes them; JSON without --only; an unknown run is no healthy one; no
    daemon is an error, not an answer.
    """
    answers = iter(["wait", "restart", "restart", "none"])
    requests = []

    def app(request: Request) -> Reply:
        requests.append((request.path, request.query))
        reported = {
            "run": "a b",
            "advice": next(answers),
            "exclude": ["n-01", "n-02"],
            "reason": "x\ny",
            "checkpoint": None,
        }
        if reported["advice"] == "none":
            reported = {"run": "a b", "advice": "none", "reason": "no run of this name is known"}
        return Reply(200, "application/json", json.dumps(reported).encode())

    port = serve(app).address[1]
    only = ["--only", "advice", "--only", "exclude", "--only", "checkpoint", "--only", "reason"]
    asked = ["advise", "a b", "--at", f"127.0.0.1:{port}"]
    done = command(*asked, "--ended", "--wait", "30s", *only)
    assert done.stdout == "restart\nn-01,n-02\n\nx y\n"
    assert requests == [("/api/v1/advice", "run=a%20b&ended=1")] * 2
    assert command(*asked).stdout == "advice: restart\nreason: x y\nexclude: n-01,n-02\n"
    assert json.loads(command(*asked, "--json", code=3).stdout)["advice"] == "none"
    nobody = command("advise", "r", "--at", "127.0.0.1:1", code=1)
    assert nobody.stdout == ""
    assert "no monitor at http://127.0.0.1:1" in nobody.stderr
