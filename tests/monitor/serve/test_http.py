"""The WSGI application: routes, escaping, health, and one bad family that costs nothing."""

from __future__ import annotations

import json
from typing import Any

from monitor.clock import ManualClock
from monitor.metrics import RunSnapshot, Sample, Snapshot
from monitor.serve.http import App

HOSTILE = "<script>alert(1)</script>\x1b[31m\"'&\u2028"


def page(**values: Any) -> dict[str, Any]:
    """What a run shows."""
    return {
        "run": HOSTILE, "state": "hung", "incidents": [], "history": [], "iteration": 5, "train_iterations": 10,
        "last_line": HOSTILE, "lm_loss": float("nan"), **values,
    }  # fmt: skip


def app_with(*runs: RunSnapshot, turned_at: float | None = None) -> App:
    """An application over a fixed snapshot."""
    clock = ManualClock()
    snapshot = Snapshot(
        at=clock.wall(), runs=runs, ready=True, loop_turned_at=clock.wall() if turned_at is None else turned_at
    )
    return App(lambda: snapshot, clock)


def get(app: App, path: str, method: str = "GET") -> tuple[str, dict[str, str], str]:
    """(status, headers, body)."""
    got: dict[str, Any] = {}

    def start_response(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
        got["status"], got["headers"] = status, dict(headers)

    body = b"".join(app({"PATH_INFO": path, "REQUEST_METHOD": method, "QUERY_STRING": ""}, start_response))
    return got["status"], got["headers"], body.decode()


def test_hostile_names_and_lines_are_escaped() -> None:
    """A log line is an attacker's text: no page runs it."""
    incident = {
        "run": HOSTILE,
        "incident": "hang",
        "severity": "critical",
        "since": 0.0,
        "summary": HOSTILE,
        "evidence": {"x": HOSTILE},
    }
    app = app_with(RunSnapshot(HOSTILE, {}, page(incidents=[incident])))
    for path in ("/", "/runs/" + HOSTILE.encode().decode("latin-1")):
        status, headers, body = get(app, path)
        assert status == "200 OK"
        assert "<script" not in body
        assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_the_api_is_valid_json() -> None:
    """NaN goes out as text: JSON knows none."""
    _, _, body = get(app_with(RunSnapshot("run", {}, page())), "/api/v1/runs")
    (run,) = json.loads(body, parse_constant=AssertionError)["runs"]
    assert run["lm_loss"] == "nan"


def test_health_means_the_loop_turns() -> None:
    """A loop that has not turned for a minute is not healthy."""
    assert get(app_with(), "/-/healthy")[0].startswith("200")
    assert get(app_with(turned_at=ManualClock().wall() - 60), "/-/healthy")[0].startswith("503")


def test_other_methods_and_paths_are_refused() -> None:
    """Only GET and HEAD, only known paths; HEAD has no body."""
    app = app_with()
    assert get(app, "/", "POST")[0].startswith("405")
    assert get(app, "/../etc/passwd")[0].startswith("404")
    assert get(app, "/metrics", "HEAD")[2] == ""
    assert get(app, "/", "HEAD")[2] == ""


def test_one_bad_family_is_left_out() -> None:
    """Samples that do not fit their labels cost that family, not the scrape."""
    bad = RunSnapshot(
        "run", {"megatron_iteration": (Sample((), 5.0),), "megatron_loss": (Sample(("a", "b", "c"), 1.0),)}, page()
    )
    status, _, body = get(app_with(bad), "/metrics")
    assert status.startswith("200")
    assert 'megatron_iteration{run="run"} 5.0' in body
    assert "megatron_loss{" not in body


def test_a_name_that_is_no_text_cannot_break_the_scrape() -> None:
    """Surrogates of a non-UTF-8 path and control characters are replaced."""
    run = RunSnapshot('bad\udcff\n"name', {"megatron_iteration": (Sample((), 5.0),)}, page())
    assert "megatron_iteration{" in get(app_with(run), "/metrics")[2]
