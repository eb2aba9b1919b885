"""The application: routes, escaping, health."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from html import escape
from typing import Any
from urllib.parse import unquote, urljoin

import pytest

from megatron_monitor.serve.exchange import Request
from megatron_monitor.serve.http import App
from megatron_monitor.serve.page import run_path
from megatron_monitor.snapshot import RunSnapshot, Snapshot
from tests.clock import ManualClock

HOSTILE = "<script>alert(1)</script>\x1b[31m\"'&\u2028"


def page(**values: Any) -> dict[str, Any]:
    """What a run shows."""
    return {
        "run": HOSTILE, "state": "hung", "incidents": [], "history": [], "iteration": 5, "train_iterations": 10,
        "last_line": HOSTILE, "lm_loss": float("nan"), **values,
    }  # fmt: skip


def app_with(*runs: RunSnapshot, idle: float = 0.0) -> App:
    """An application over a fixed snapshot, of a loop that has not turned for `idle` seconds."""
    clock = ManualClock()
    snapshot = Snapshot(at=clock.wall(), runs=runs, ready=True)
    return App(lambda _asked: snapshot, clock, lambda: clock.monotonic() - idle)


def get(
    app: App, path: str, method: str = "GET", query: str = "", uri: str = "", **more: str
) -> tuple[int, dict[str, str], str]:
    """(status, headers, body)."""
    reply = app(Request(method, path, query, more, uri))
    return reply.status, {**dict(reply.headers), "Content-Type": reply.content_type}, reply.body.decode()


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
    for path in ("/", "/runs/" + HOSTILE):
        status, _, body = get(app, path)
        assert status == 200
        assert body.count("<script") == (1 if path == "/" else 2)
        assert "<script>" not in body
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\ufffd[31m&#34;&#39;&amp;" in body


@pytest.mark.parametrize(
    "name", ["a", "team/a b", "a/../b", "100%", "%2F", "/lead", "ü/ñ", "..", "a\\b", "x/history", "?q#f"]
)
def test_every_name_has_a_page_and_a_history(name: str) -> None:
    """Slashes, percent signs, dots, letters of any kind: the link on the page leads to the run and back."""
    app = app_with(RunSnapshot(name, {}, page(run=name)), RunSnapshot("history", {}, page(run="history")))
    way = run_path(name)
    path, _, query = ("runs/" + way).partition("?")
    assert ".." not in path.split("/")
    status, _, body = get(app, "/" + unquote(path), query=query, uri="/" + path)
    assert status == 200
    assert f"<h1>{escape(name)} <" in body
    root = re.search("data-root='([^']*)'", body)
    assert root is not None
    assert urljoin("http://h/prefix/" + path, root[1]) == "http://h/prefix/"
    asked, _, query = (f"api/v1/runs/history{way}" if way[0] == "?" else f"api/v1/runs/{way}/history").partition("?")
    status, _, body = get(app, "/" + unquote(asked), query=query)
    assert status == 200
    assert json.loads(body)["run"]["run"] == name


def test_a_quoted_slash_is_a_slash() -> None:
    """`/runs/a%2Fb` is the run a/b, and its page knows how deep the browser thinks it is."""
    app = app_with(RunSnapshot("a/b", {}, page(run="a/b")))
    _, _, body = get(app, "/runs/a/b", uri="/runs/a%2Fb")
    assert "data-root='../'" in body
    _, _, body = get(app, "/runs/a/b", uri="/runs/a/b")
    assert "data-root='../../'" in body


def test_static_files_are_typed_tagged_and_nothing_else_is_served() -> None:
    """The browser may keep them, asks whether they changed, and cannot climb out of the folder."""
    app = app_with()
    status, headers, body = get(app, "/static/fleet.js")
    assert (status, headers["Content-Type"]) == (200, "text/javascript; charset=utf-8")
    assert "import" in body
    assert get(app, "/static/uplot/LICENSE")[0] == 200
    assert get(app, "/static/uplot/uPlot.iife.min.js")[0] == 200
    again = get(app, "/static/fleet.js", **{"if-none-match": headers["ETag"]})
    assert (again[0], again[2]) == (304, "")
    for path in ("/static/", "/static/../http.py", "/static/%2e%2e/http.py", "/static/uplot", "/static/none.js"):
        assert get(app, path)[0] == 404, path


def test_the_api_is_valid_json() -> None:
    """NaN goes out as text: JSON knows none."""
    _, _, body = get(app_with(RunSnapshot("run", {}, page())), "/api/v1/runs")
    (run,) = json.loads(body, parse_constant=AssertionError)["runs"]
    assert run["lm_loss"] == "nan"


def test_health_means_the_loop_turns() -> None:
    """A loop that has not turned for a minute is not healthy."""
    assert get(app_with(), "/-/healthy")[0] == 200
    assert get(app_with(idle=60.0), "/-/healthy")[0] == 503


def test_other_methods_and_paths_are_refused() -> None:
    """Only GET and HEAD, only known paths."""
    app = app_with()
    assert get(app, "/", "POST")[0] == 405
    assert get(app, "/../etc/passwd")[0] == 404
    assert get(app, "/", "HEAD")[0] == 200


def test_a_page_is_made_once_for_all_its_viewers() -> None:
    """Fifty people cost one snapshot and one page a second; another view costs its own, and advice is always new."""
    clock, made = ManualClock(), list[Any]()
    app = App(lambda asked: made.append(asked) or Snapshot(at=clock.wall(), ready=True), clock, clock.monotonic)  # type: ignore[func-returns-value]
    with ThreadPoolExecutor(50) as people:
        pages = list(people.map(lambda _: get(app, "/"), range(50)))
    assert (len(made), len({body for _, _, body in pages})) == (1, 1)
    get(app, "/", query="rows=5")
    assert len(made) == 2
    clock.advance(1.5)
    get(app, "/")
    assert len(made) == 3
    for _ in range(2):
        get(app, "/api/v1/advice")
    assert len(made) == 5
