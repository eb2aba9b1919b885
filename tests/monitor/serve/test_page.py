"""The pages as the server writes them: a line an incident, the worst apart, others folded; ends told apart."""

import re
from html import unescape
from typing import Any

from msgspec.structs import replace

from megatron_monitor import __version__
from megatron_monitor.charts.history import History
from megatron_monitor.incidents import Transition
from megatron_monitor.serve.formats import LABELS, figures
from megatron_monitor.serve.page import happened, render_index, render_run, rendered
from megatron_monitor.snapshot import RunSnapshot, Snapshot

NOW = 1_700_000_000.0


def incident(run: str, kind: str = "hang", severity: str = "critical", **more: Any) -> dict[str, Any]:
    """An open incident of 100 s on 64 GPUs."""
    return {
        "run": run, "incident": kind, "severity": severity, "since": NOW - 100, "summary": f"{kind} it is", "gpus": 64,
        "phase": "training", "evidence": {"last_line": "iteration 7/9"}, **more,
    }  # fmt: skip


def page_of(run: str, *incidents: dict[str, Any], state: str = "training", **more: Any) -> dict[str, Any]:
    """A run's data, as far as anything is known."""
    return {"run": run, "state": state, "phase": state, "incidents": list(incidents), **more}


def index(*pages: dict[str, Any]) -> str:
    """The page of all runs."""
    runs = tuple(RunSnapshot(page["run"], {}, page) for page in pages)
    return unescape(
        render_index(Snapshot(NOW, runs, incidents=tuple(one for page in pages for one in page["incidents"])), NOW)
    )


def part(text: str, name: str) -> str:
    """What stands in the element of that id, up to the next one with an id."""
    return re.split(r"<\w+ id=", text.partition(f"id={name}")[2])[0]


def test_five_stand_for_themselves() -> None:
    """Of 40 the five that cost most; the others, and those for information, under a line each that counts them."""
    pages = [page_of(f"r{at}", incident(f"r{at}", since=NOW - 100 - at)) for at in range(40)]
    pages += [page_of(f"i{at}", incident(f"i{at}", "configuration", "info")) for at in range(8)]
    text = index(*pages)
    assert re.findall(r"<h3>.*?>(\w+)</a>", part(text, "incidents")) == ["r39", "r38", "r37", "r36", "r35"]
    assert "35 more: 35 hang" in part(text, "more")
    assert len(re.findall("<article", part(text, "infos"))) == 8
    assert "8 info: 8 configuration" in part(text, "infos")
    few = index(page_of("a", incident("a")))
    assert " hidden" in part(few, "more")[:20]
    assert " hidden" in part(few, "infos")[:20]


def test_the_line_is_the_one_that_shows_it_and_the_command_is_there() -> None:
    """A crash's own line, not the last iteration; without one the last. A command stands where there is one."""
    reported = incident("a", "crash", line="RuntimeError: <b>", advice="cancel it", command="scancel 7")
    text = render_run(RunSnapshot("a", {}, page_of("a", reported)), NOW, "../")
    assert "<pre>RuntimeError: &lt;b&gt;</pre>" in text
    assert "iteration 7/9" not in text
    assert "<p class=command><code>scancel 7</code>" in text
    assert "<details open>" in text
    other = index(page_of("a", incident("a")))
    assert "<pre>iteration 7/9</pre>" in other
    assert "class=command" not in other
    assert "<details open>" not in other


def test_a_bad_end_is_not_green() -> None:
    """Finished with a failure behind the last iteration; a clean end, and a crash, are as ever."""
    for state, failure, reported in (
        ("finished", "nccl: unhandled", ("▲ finished", "nccl", "warn")),
        ("finished", None, ("✔ finished", "", "")),
        ("crashed", "nccl: unhandled", ("✖ crashed", "nccl", "")),
        ("stopped", "stopped: by a person", ("◼ stopped", "", "")),
    ):
        page = page_of("a", state=state, failure=failure)
        assert figures(page, NOW)["state"] == reported
        assert (f"<span class='state {state} warn'" in index(page)) == (reported[2] == "warn")


def test_normal_is_the_pace_of_before() -> None:
    """While a slowdown stands the learned pace is already the slow one."""
    slow = incident("a", "slowdown", "warning")
    page = page_of("a", slow, seconds_per_iteration=2.6, baseline_seconds=2.57, normal_seconds=2.0, slowdown_ratio=1.3)
    shown = figures(page, NOW)
    assert shown["seconds_per_iteration"] == ("2.6", "normal 2", "")
    assert shown["over_normal"] == ("+30.0\u00a0%", "", "warn")
    assert figures(page | {"incidents": []}, NOW)["over_normal"].tone == ""


def test_in_a_row_the_worst_incident_comes_first() -> None:
    """Critical before warning before info; of equal ones the one that costs more."""
    open_ones = [
        incident("a", "configuration", "info"),
        incident("a", "slowdown", "warning"),
        incident("a", "nan_loss"),
    ]
    text = index(page_of("a", *open_ones))
    row = text.partition("<tbody>")[2]
    assert re.findall(r"class='badge (\w+)'>", row) == ["critical", "warning", "info"]


def test_each_figure_is_explained() -> None:
    """By its metric's text: on the heading, on the card, which leads to the help, and in the help."""
    text, unsaved = (
        unescape(rendered("help.html", "")),
        "Training time since the last complete checkpoint, which a crash now would lose",
    )
    rows = re.findall("<tr id=(\\w+)><th scope=row>([^<]+)</th><td>([^<]+)</td><td><code>megatron_", text)
    assert [key for key, _, _ in rows] == list(LABELS)
    assert ("unsaved_progress_seconds", "Unsaved progress", unsaved) in rows
    assert f"title='{unsaved}'>Unsaved progress</a>" in index(page_of("a"))
    card = unescape(render_run(RunSnapshot("a/b", {}, page_of("a/b", unsaved_progress_seconds=5.0)), NOW, "../../"))
    assert f"<dt><a href='../../help#unsaved_progress_seconds' title='{unsaved}'>Unsaved progress</a></dt>" in card
    for shown, root in ((text, ""), (card, "../../")):
        assert f"megatron-monitor {__version__} <a href='{root}help'>Help</a>" in shown


def test_incidents_and_restarts_are_one_story() -> None:
    """Latest first, with the arguments that an attempt changed."""
    history = History(
        restarts=[(5, 7, NOW - 60)], changes=[(5, NOW - 60, [("lr", "1", "2")])],
    )  # fmt: skip
    told = Transition(
        incident="crash", severity="critical", run="a", status="firing", summary="<b>", iteration=7, time=NOW - 70
    )
    run = RunSnapshot(
        "a",
        {},
        page_of("a", state="hung", progress_at=NOW - 30),
        history,
        (replace(told, incident="hang", summary="late"), told),
    )
    text = [(row.text, row.where, row.summary) for row in happened(run)]
    assert text == [
        ("┆ restart", "5", "after iteration 7: 3 computed again; other arguments: lr 1 → 2"),
        ("■ crash critical", "7", "<b>"),  # of two at one time the later one
        ("■ hang critical", "7", "late"),
    ]
    text = render_run(run, NOW, "../")
    assert "<td class='critical'>■ crash critical</td><td>7</td><td>&lt;b&gt;</td>" in text
