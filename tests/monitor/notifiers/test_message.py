"""The object that is sent, and its words."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from megatron_monitor.breakdown.messages import advice_for
from megatron_monitor.notifiers import payload
from megatron_monitor.notifiers.message import message_id
from megatron_monitor.notifiers.texts import body, title
from tests.monitor.notifiers.receiver import HANG


def test_payload() -> None:
    """The object is that of `replay --json`, a version, an id that stays the same for each try, and what people want
    to know first.
    """
    words = {
        "title": "[critical] tr11-176B: hang",
        "advice": advice_for("hang"),
        "line": "iteration 4100/ 115311",
    }
    assert payload(HANG) == {"version": "1", "id": message_id(HANG), **HANG.to_json(), **words}
    assert len({message_id(HANG), message_id(replace(HANG, occurrence=(0, 4100, 2)))}) == 2
    assert {"run", "incident", "status", "severity", "time", "summary", "evidence"} <= payload(HANG).keys()


CRASH = replace(
    HANG,
    incident="crash",
    since=HANG.time - 720.0,
    gpus=384,
    evidence={"failure": "ecc", "rank": 96, "node": "n12", "lost_seconds": 3600.0, "line": "CUDA error: ECC"},
    links={"page": "http://login-1:9843/runs/tr11-176B", "runbook": "https://wiki/runbook.md#crash"},
)


def test_what_a_person_on_call_wants_to_know() -> None:
    """Which run, what, since when as a clock, where, what it costs, what to do, the line, where to look."""
    found = payload(CRASH)
    assert found["title"] == "[critical] tr11-176B: crash since 22:01 UTC, ecc, n12, training"
    assert found["cost_gpu_hours"] == 460.8  # 12 minutes idle and an hour lost, of 384
    assert (found["rank"], found["node"], found["since"]) == ("96", "n12", "2023-11-14T22:01:20+00:00")
    assert found["advice"] == advice_for("crash", "ecc")
    assert body(CRASH, found["evidence"]).splitlines()[:12] == [
        "hung in training after iteration 4100", "", "since: 2023-11-14 22:01 UTC, 12 min ago", "phase: training",
        "cause: ecc", "rank: 96", "node: n12", "GPUs: 384", "cost so far: 460.8 GPU-hours",
        f"do: {advice_for('crash', 'ecc')}",
        "last line: CUDA error: ECC", "page: http://login-1:9843/runs/tr11-176B",
    ]  # fmt: skip


def test_what_to_do_is_a_command_where_the_job_is_known() -> None:
    """With the job's id, the nodes in evidence, the checkpoint; a name that is no node's is not in it."""
    job = replace(CRASH, job="4711", checkpoint=4000, evidence={**CRASH.evidence, "nodes": ["n12", "$(x)"]})
    found = payload(job)
    assert found["command"] == (
        "scontrol requeuehold 4711; scontrol update JobId=4711 ExcNodeList=n12; scontrol release 4711"
    )
    assert (found["slurm_job"], found["checkpoint_iteration"], found["gpus"]) == ("4711", 4000, 384)
    assert "Slurm job: 4711\ncost so far: 460.8 GPU-hours\nlast checkpoint: 4000\n" in body(job, found["evidence"])
    hang = payload(replace(HANG, job="4711_3"))
    assert hang["command"] == "srun --jobid=4711_3 --overlap --ntasks-per-node=1 dump-stacks.sh; scancel 4711_3"
    nan = {"rollback_iteration": 120, "samples_from": 74752, "samples_to": 75264}
    found = payload(replace(HANG, incident="nan_loss", job="4711", checkpoint=140, evidence=nan))
    assert (found["checkpoint_iteration"], found["samples"], found["command"]) == (
        120,
        "74752 to 75264",
        "scancel 4711",
    )
    # out of memory again, a slow run, a run that no Slurm knows: nothing to paste
    oom = replace(job, evidence={"failure": "cuda_oom"})
    for other in (oom, replace(HANG, incident="slowdown", job="4711"), CRASH):
        assert "command" not in payload(other)


def test_a_title_says_how_much() -> None:
    """By how much iterations are longer, and which part of them."""
    slow = {"ratio": 1.305, "cause": "data_loader"}
    reported = replace(HANG, incident="slowdown", since=HANG.time, evidence=slow)
    assert title(reported) == "[critical] tr11-176B: slowdown since 22:13 UTC, +30.5 %, data loader, training"


def test_a_log_line_calls_nobody() -> None:
    """What Slack, Discord and their like take for a mention or a link, marks that turn the text round or move a cursor;
    the page's own address stays one.
    """
    line = "<!channel> @everyone @here \u202eabc mail@here.org \x9b2J\x1b[2J <http://e.vil|x> [x](https://e.vil)"
    reported = replace(HANG, run="<!here>", links={"page": "http://login-1/runs"}, evidence={"last_line": line})
    text = body(reported, {"also": line})
    shown = "< !channel> @ everyone @ here  abc mail@here.org  2J [2J < http: //e.vil|x> [x] (https: //e.vil)"
    assert f"last line: {shown}" in text
    assert f"also: {shown}" in text
    assert "page: http://login-1/runs" in text
    assert title(reported).startswith("[critical] < !here>: hang")


def test_an_end_says_how_long_it_lasted() -> None:
    """In the title; what to do is over."""
    over = replace(CRASH, status="resolved", evidence={**CRASH.evidence, "lasted_seconds": 7800.0})
    assert title(over) == "[resolved] tr11-176B: crash ended after 2.2 h"
    assert "advice" not in payload(over)


def test_a_title_fits_a_lock_screen() -> None:
    """However long names are; both ends of the run's name are kept."""
    long = replace(
        CRASH, run="a" * 40 + "-lr3e-4-seed17", evidence={"node": "node-with-a-very-long-name" * 4, "failure": "ecc"}
    )
    assert len(title(long)) <= 110
    assert title(long).startswith("[critical] aaaaaaaaaaaaaaaaaaaaaa...aaaaaaaa-lr3e-4-seed17: crash since 22:01 UTC")


def test_payload_leaves_absent_values_out() -> None:
    """What is not known is absent, never 0 or null."""
    assert "iteration" not in payload(replace(HANG, iteration=None))


def test_payload_holds_what_json_cannot() -> None:
    """NaN, infinity, halves of characters and endless lines of a log do not make an object that readers refuse."""
    odd = {"loss": float("nan"), "scale": float("inf"), "line": "a\udcffb", "long": "x" * 70_000, "pair": (1, None)}
    evidence = payload(replace(HANG, evidence=odd))["evidence"]
    assert (evidence["loss"], evidence["scale"], evidence["line"]) == ("NaN", "+Inf", "a?b")
    assert len(evidence["long"]) == 4000
    assert evidence["pair"] == [1, None]


@given(st.dictionaries(st.text(), st.recursive(st.none() | st.floats() | st.text(), st.lists), max_size=3))
def test_any_evidence_is_sound_json(evidence: dict[str, Any]) -> None:
    """Whatever the evidence holds, the object is JSON in the strict sense."""
    assert json.dumps(payload(replace(HANG, evidence=evidence)), allow_nan=False).encode()
