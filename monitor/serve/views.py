"""The views: HTML pages, static files and the JSON API.

Rule: a view makes a Reply from one Snapshot. It never waits and never touches the logs' file system.
"""

import hashlib
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec

from megatron_monitor.serve import page
from megatron_monitor.serve.exchange import Reply, Request
from megatron_monitor.serve.fleet import Choice, worst_first
from megatron_monitor.serve.past import history_json
from megatron_monitor.serve.settings import KINDS
from megatron_monitor.snapshot import CARDS, NOTHING, RunSnapshot, Snapshot, ViewRequest, as_asked

_STATIC = Path(__file__).parent / "static"
_HTML = "text/html; charset=utf-8"
_JSON = "application/json"
_MAX_COMPARED = 5  # other runs beside a run: six lines in a chart can be told apart
_ADVICE = "/api/v1/advice"
UNSHARED = frozenset({_ADVICE})
"""Views that are made for each request: the remediator acts by the newest advice."""
_CONTROL_CHARACTERS = re.compile("[\x7f-\x9f]")  # JSON allows them, but terminals obey them
_ALIVE_STATES = frozenset({"starting", "training", "evaluating", "saving"})
_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}


@cache
def static_files() -> dict[str, Reply]:
    """Return the answers with the files below static/ by their relative path."""
    files: dict[str, Reply] = {}
    for file in _STATIC.rglob("*"):
        kind = _TYPES.get(file.name.rsplit(".", 1)[-1])
        if kind is not None and file.is_file():
            body = file.read_bytes()
            tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
            headers = (("ETag", tag), ("Cache-Control", "no-cache"))
            files[file.relative_to(_STATIC).as_posix()] = Reply(200, kind, body, headers)
    return files


def asked_by(request: Request) -> ViewRequest:
    """Return the parts of a Snapshot that the answer needs: the page of one run needs only that run."""
    if request.path in ("/", "/api/v1/runs"):
        return CARDS
    if request.path in ("/help", "/api/v1/incidents") or (request.path == _ADVICE and not _named(request)):
        return NOTHING
    return ViewRequest(samples=False, pages=False, whole=frozenset({_named(request), *_values(request, "with")}))


def view_of(request: Request, snapshot: Snapshot, now: float, notice: str = "") -> Reply | None:
    """Return the page or the JSON at this path, None for an unknown path; `notice` is a warning on HTML pages."""
    path, what = request.path, request.path.rpartition("/")[2]
    if path == "/":
        return _html(page.render_index(snapshot, now, Choice.of(request.query), notice))
    if path == "/help":
        return _html(page.rendered("help.html", "", notice=notice))
    if path in _VIEWS:
        return _VIEWS[path](request, snapshot, now)
    run = _find(snapshot, request)
    if path.startswith("/runs/"):
        # the way back to `/` as the browser sees the path, in which a slash may be written %2F
        root = "../" * (1 + request.raw_path.partition("/runs/")[2].count("/"))
        if run is None:
            return _html(page.rendered("missing.html", root, notice=notice, name=_named(request)), 404)
        others = {as_asked(other.run): other for other in snapshot.all_runs if other is not run}
        chosen = [name for name in dict.fromkeys(_values(request, "with")) if name in others][:_MAX_COMPARED]
        return _html(page.render_run(run, now, root, notice, others, chosen, _values(request, "attempt")))
    if run is None or not path.startswith("/api/v1/runs/") or what not in ("configuration", "history", "log"):
        return None
    if what == "log":
        return _json({"at": now, **run.log})
    if what == "history":
        width, start = _natural(_first(request, "width")), _natural(_first(request, "from"))
        past = history_json(run.history, width, start, _first(request, "key"))
        incidents = [{**item.to_json(), "since": item.since} for item in run.transitions]
        return _json({"at": now, "run": _stated(run), **past, "incidents": incidents})
    return _json({name: run.page.get(name) or {} for name in KINDS})


def _runs(_request: Request, snapshot: Snapshot, now: float) -> Reply:
    runs = page.each_run(worst_first(snapshot.all_runs, now), _stated)
    return _json({"at": now, "ready": snapshot.ready, "summary": page.summary(snapshot), "runs": runs})


def _stated(run: RunSnapshot) -> dict[str, Any]:
    """Return what is known of a run, without its arguments, which are large."""
    return {name: value for name, value in run.page.items() if name != "arguments"}


def _advice(request: Request, snapshot: Snapshot, now: float) -> Reply:
    """Return the advice for one run, or for all runs with an open incident. `ended=1`: the attempt has ended."""
    name = _named(request)
    if not name:
        runs = [run.advice for run in snapshot.runs if run.advice is not None and run.page["incidents"]]
        age = max(0.0, now - snapshot.at) + snapshot.behind_seconds
        return _json({"runs": msgspec.to_builtins(runs), "age_seconds": age, "ready": snapshot.ready})
    run = _find(snapshot, request)
    if run is None:
        return _json({"run": name, "advice": "none", "reason": "no run of this name is known"})
    if run.advice is None:
        return _json({"run": name, "advice": "none", "reason": "its log is no longer followed"})
    advice = msgspec.to_builtins(run.advice)
    if _first(request, "ended") and advice["advice"] == "none" and run.page["state"] in _ALIVE_STATES:
        advice |= {"advice": "wait", "reason": "the log does not show yet that the attempt has ended"}
    return _json(advice)


_VIEWS: dict[str, Callable[[Request, Snapshot, float], Reply]] = {
    "/api/v1/runs": _runs,
    _ADVICE: _advice,
    "/api/v1/incidents": lambda _request, snapshot, now: _json({"at": now, "incidents": list(snapshot.incidents)}),
}


def _named(request: Request) -> str:
    """Return the run's name: from the path, else from `?name=`; for advice from `?run=`."""
    path = request.path
    if path == _ADVICE:
        return _first(request, "run")
    inner = path.removeprefix("/api/v1/runs/").rpartition("/")[0] if path.startswith("/api/") else path[len("/runs/") :]
    return inner or _first(request, "name")


def _find(snapshot: Snapshot, request: Request) -> RunSnapshot | None:
    name = _named(request)
    return next((run for run in snapshot.all_runs if as_asked(run.run) == name), None)


def _values(request: Request, name: str) -> list[str]:
    return parse_qs(request.query[:4000], errors="replace").get(name, [])


def _first(request: Request, name: str) -> str:
    """Return the first value of a query parameter, "" if it is absent."""
    return next(iter(_values(request, name)), "")


def _natural(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def static_reply(request: Request) -> Reply | None:
    """Return a static file, 304 if the client has it already, None if there is no such file."""
    reply = static_files().get(request.path.removeprefix("/static/"))
    if reply is not None and request.headers.get("if-none-match") == dict(reply.headers)["ETag"]:
        return reply._replace(status=304, body=b"")
    return reply


def _html(text: str, status: int = 200) -> Reply:
    return Reply(status, _HTML, text.encode("utf-8", "replace"))


def _json(value: Any) -> Reply:
    # JSON has no NaN and no infinity: both are sent as text
    text = json.dumps(_finite(value), ensure_ascii=False)
    text = _CONTROL_CHARACTERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return Reply(200, _JSON, text.encode("utf-8", "replace"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return str(value) if value != value or value in (float("inf"), float("-inf")) else value
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
