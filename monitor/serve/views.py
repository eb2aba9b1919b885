"""What is answered on each path beside metrics and health: pages, their static files, the JSON API.

Law: a view reads one Snapshot and gives a Reply; nothing here waits, and no log's file system is touched.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

from monitor.metrics import RunSnapshot, Snapshot
from monitor.run.history import history_json
from monitor.serve.page import render_index, render_run

_HTML = "text/html; charset=utf-8"
_JSON = "application/json"
_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}
_WORTH_PACKING = 1000  # bytes


class Reply(NamedTuple):
    """An answer before it is sent."""

    status: str
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class StaticFile(NamedTuple):
    """A file of the package, read once."""

    content_type: str
    body: bytes
    tag: str


@cache
def static_files() -> dict[str, StaticFile]:
    """Every file below static/, by its path there."""
    found: dict[str, StaticFile] = {}

    def collect(directory: Traversable, prefix: str) -> None:
        for entry in directory.iterdir():
            if entry.is_dir():
                collect(entry, f"{prefix}{entry.name}/")
                continue
            kind = _TYPES.get(entry.name.rsplit(".", 1)[-1])
            if kind is not None:
                body = entry.read_bytes()
                found[prefix + entry.name] = StaticFile(kind, body, f'"{hashlib.sha256(body).hexdigest()[:20]}"')

    collect(resources.files("monitor.serve").joinpath("static"), "")
    return found


def reply_to(path: str, environ: dict[str, Any], snapshot: Snapshot, now: float) -> Reply | None:
    """The answer to a path, None if there is nothing. `path` is PATH_INFO."""
    reply = _reply(path, environ, snapshot, now)
    if reply is None or len(reply.body) < _WORTH_PACKING or "gzip" not in environ.get("HTTP_ACCEPT_ENCODING", ""):
        return reply
    packed = gzip.compress(reply.body, compresslevel=4, mtime=0)
    return reply._replace(
        body=packed, headers=(*reply.headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
    )


def _reply(path: str, environ: dict[str, Any], snapshot: Snapshot, now: float) -> Reply | None:
    if path == "/":
        return _html(render_index(snapshot, now))
    if path.startswith("/static/"):
        return _static(path[len("/static/") :], environ)
    if path.startswith("/runs/"):
        run = _find(snapshot, path[len("/runs/") :], environ)
        return _html(render_run(run, now, _root(path, environ))) if run else None
    if path == "/api/v1/runs":
        return _json({"at": now, "ready": snapshot.ready, "runs": [run.page for run in snapshot.runs]})
    if path == "/api/v1/incidents":
        return _json({"at": now, "incidents": list(snapshot.incidents)})
    if path.startswith("/api/v1/runs/") and path.endswith("/history"):
        run = _find(snapshot, path[len("/api/v1/runs/") : -len("/history")], environ)
        return _history(run, environ, now) if run else None
    return None


def _find(snapshot: Snapshot, name: str, environ: dict[str, Any]) -> RunSnapshot | None:
    """The run of the path, or of `?name=` where the path holds none."""
    # PEP 3333 hands the path over as Latin-1 code points of its bytes; the server leaves %2F as it is.
    name = name.encode("latin-1", "replace").decode("utf-8", "replace").replace("%2F", "/").replace("%2f", "/")
    if not name:
        name = "".join(_query(environ).get("name", [""])[:1])
    return next((run for run in snapshot.runs if _visible(run.run) == name), None)


def _visible(name: str) -> str:
    return name.encode("utf-8", "replace").decode()


def _root(path: str, environ: dict[str, Any]) -> str:
    """The way from a run's page back to `/`, as the browser sees the path: a slash may be written %2F."""
    asked = str(environ.get("REQUEST_URI") or path).split("?", 1)[0]
    rest = asked.partition("/runs/")[2] if "/runs/" in asked else path[len("/runs/") :]
    return "../" * (1 + rest.count("/"))


def _query(environ: dict[str, Any]) -> dict[str, list[str]]:
    return parse_qs(str(environ.get("QUERY_STRING", ""))[:4000], errors="replace")


def _history(run: RunSnapshot, environ: dict[str, Any], now: float) -> Reply:
    query = _query(environ)
    key = "".join(query.get("key", [""])[:1])
    past = history_json(run.history, _whole(query, "width"), _whole(query, "from"), key)
    return _json({"at": now, "run": run.page, **past, "incidents": [item.to_json() for item in run.transitions]})


def _whole(query: dict[str, list[str]], name: str) -> int:
    text = "".join(query.get(name, ["0"])[:1])
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _static(name: str, environ: dict[str, Any]) -> Reply | None:
    file = static_files().get(unquote(name))
    if file is None:
        return None
    headers = (("ETag", file.tag), ("Cache-Control", "no-cache"))
    if environ.get("HTTP_IF_NONE_MATCH") == file.tag:
        return Reply("304 Not Modified", file.content_type, b"", headers)
    return Reply("200 OK", file.content_type, file.body, headers)


def _html(text: str) -> Reply:
    return Reply("200 OK", _HTML, text.encode("utf-8", "replace"))


def _json(value: Any) -> Reply:
    # JSON knows no NaN: browsers refuse it. The log's nan and inf go out as text.
    return Reply("200 OK", _JSON, json.dumps(_finite(value), ensure_ascii=False).encode("utf-8", "replace"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return str(value) if value != value or value in (float("inf"), float("-inf")) else value
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
