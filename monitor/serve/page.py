"""The page for people: server-rendered HTML, no script, nothing from the network. Every text of a log is escaped."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import Any
from urllib.parse import quote

from monitor.metrics import RunSnapshot, Snapshot

_REFRESH_SECONDS = 5
# State by symbol and word, never by colour alone.
_SYMBOLS = {
    "starting": "◔", "training": "●", "evaluating": "◑", "saving": "◒", "hung": "■", "crashed": "✖",
    "finished": "✔", "lost": "?",
}  # fmt: skip
_STYLE = """
:root{color-scheme:light dark;--line:#d0d7de;--soft:#57606a;--bad:#b42318;--warn:#9a6700;--good:#1a7f37;--box:#f6f8fa}
@media(prefers-color-scheme:dark){:root{--line:#3d444d;--soft:#9198a1;--bad:#ff7b72;--warn:#e3b341;--good:#56d364;--box:#161b22}}
body{font:15px/1.45 system-ui,sans-serif;margin:1.2rem auto;max-width:78rem;padding:0 1rem}
h1{font-size:1.25rem;margin:.2rem 0} h2{font-size:1.05rem;margin:1.4rem 0 .4rem} small,.soft{color:var(--soft)}
table{border-collapse:collapse;width:100%} th,td{padding:.35rem .6rem;border-bottom:1px solid var(--line);text-align:right;vertical-align:top}
th{font-weight:600;color:var(--soft)} th:first-child,td:first-child,td.l,th.l{text-align:left} .scroll{overflow-x:auto}
.hung,.crashed,span.critical{color:var(--bad);font-weight:600} .late,span.warning,.lost{color:var(--warn);font-weight:600} .training,.finished{color:var(--good)}
.incident{border:1px solid var(--line);border-left:.35rem solid var(--bad);background:var(--box);padding:.6rem .8rem;margin:.6rem 0}
.incident.warning{border-left-color:var(--warn)} .incident.resolved{border-left-color:var(--good)}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:.82rem;margin:.4rem 0 0} progress{width:6rem;vertical-align:middle}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:0} dt{color:var(--soft)} dd{margin:0;overflow-wrap:anywhere}
"""  # noqa: E501 - style sheets read worse when wrapped


def _document(title: str, body: str) -> str:
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<meta http-equiv=refresh content={_REFRESH_SECONDS}><title>{escape(title)}</title>"
        f"<style>{_STYLE}</style></head><body>{body}</body></html>"
    )


def number(value: Any, digits: int = 4) -> str:
    """A figure for people; a dash where it is unknown."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.{digits}g}" if isinstance(value, float) and abs(value) < 1e5 else f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """Seconds in the two largest units that say something."""
    if seconds is None:
        return "–"
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if hours < 1:
        return f"{minutes} min {int(seconds % 60)} s"
    if days < 1:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def _instant(at: float | None) -> str:
    return "–" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _state(name: str) -> str:
    return f"<span class='{escape(name)}'>{_SYMBOLS.get(name, '?')} {escape(name)}</span>"


def _row(page: dict[str, Any], now: float) -> str:
    iteration, total = page.get("iteration"), page.get("train_iterations")
    bar = f"<progress max={total} value={min(iteration, total)}></progress> " if iteration is not None and total else ""
    progress_at, budget = page.get("progress_at"), page.get("budget_seconds")
    age = duration(now - progress_at) if progress_at is not None else "–"
    allowed = f" <small>of {duration(budget)}</small>" if budget is not None else ""
    incidents = ", ".join(
        f"<span class={escape(i['severity'])}>{escape(i['incident'])}</span>" for i in page["incidents"]
    )
    mfu = page.get("mfu")
    return (
        f"<tr><td><a href='runs/{quote(page['run'], safe='')}'>{escape(page['run'])}</a></td>"
        f"<td class=l>{_state(page['state'])}</td>"
        f"<td>{bar}{number(iteration)}<small> / {number(total)}</small></td>"
        f"<td>{number(page.get('seconds_per_iteration'))}<small> / {number(page.get('baseline_seconds'))}</small></td>"
        f"<td>{number(page.get('samples_per_second'))}</td><td>{number(page.get('tflops'))}</td>"
        f"<td>{'–' if mfu is None else f'{100 * mfu:.1f} %'}</td><td>{number(page.get('lm_loss'))}</td>"
        f"<td>{age}{allowed}</td><td>{_instant(page.get('eta'))}</td><td class=l>{incidents or '–'}</td></tr>"
    )


def _severity(name: str) -> str:
    return f"<span class={escape(name)}>{escape(name)}</span>"


def _incident(incident: dict[str, Any], now: float) -> str:
    evidence = incident.get("evidence", {})
    facts = "".join(
        f"<dt>{escape(str(name).replace('_', ' '))}</dt><dd>{escape(str(value))}</dd>"
        for name, value in evidence.items()
        if name not in ("last_line", "last_progress_at")
    )
    line = f"<pre>{escape(evidence['last_line'])}</pre>" if evidence.get("last_line") else ""
    return (
        f"<div class='incident {escape(incident['severity'])}'><b>{escape(incident['run'])}: "
        f"{escape(incident['incident'])}</b> {_severity(incident['severity'])}"
        f" <small>since {_instant(incident['since'])} ({duration(now - incident['since'])})</small>"
        f"<div>{escape(incident['summary'])}</div><dl>{facts}</dl>{line}</div>"
    )


def render_index(snapshot: Snapshot, now: float) -> str:
    """All runs and their open incidents."""
    rows = "".join(_row(run.page, now) for run in snapshot.runs)
    count = f"{len(snapshot.runs)} run{'' if len(snapshot.runs) == 1 else 's'}"
    incidents = [incident for run in snapshot.runs for incident in run.page["incidents"]]
    open_ones = "".join(_incident(incident, now) for incident in incidents) or "<p class=soft>No open incident.</p>"
    empty = (
        "<p>No training run seen yet. Files are followed as they appear; a file without a training line makes no run. "
        "<a href=metrics>/metrics</a> tells what is read.</p>"
    )
    heads = (
        "<th class=l>Run<th class=l>State<th>Iteration<th>s/iteration <small>/ normal</small><th>Samples/s<th>TFLOPs"
        "<th>MFU<th>Loss<th>Last progress<th>ETA<th class=l>Incidents"
    )
    table = f"<div class=scroll><table><thead><tr>{heads}</thead><tbody>{rows}</tbody></table></div>" if rows else empty
    state = "" if snapshot.ready else " <span class=warning>reading the backlog</span>"
    return _document(
        "megatron-monitor",
        f"<h1>megatron-monitor{state}</h1><p class=soft>{count} at {_instant(snapshot.at)} · "
        f"<a href=metrics>/metrics</a> · <a href=api/v1/runs>runs</a> · <a href=api/v1/incidents>incidents</a></p>"
        f"{table}<h2>Open incidents</h2>{open_ones}",
    )


def render_run(run: RunSnapshot, now: float) -> str:
    """One run: its figures, its incidents, its last line."""
    page = run.page
    facts = "".join(
        f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(_fact(name, value))}</dd>"
        for name, value in page.items()
        if name not in ("incidents", "history", "last_line") and value not in (None, "", {}, [])
    )
    history = "".join(
        f"<div class='incident {escape(item['status'] if item['status'] == 'resolved' else item['severity'])}'>"
        f"<b>{escape(item['incident'])} {escape(item['status'])}</b> <small>{escape(item['time'])}</small>"
        f"<div>{escape(item['summary'])}</div></div>"
        for item in reversed(page.get("history", []))
    )
    return _document(
        page["run"],
        f"<p><a href='../'>all runs</a></p><h1>{escape(page['run'])} {_state(page['state'])}</h1>"
        f"{''.join(_incident(incident, now) for incident in page['incidents'])}"
        f"<h2>Now</h2><dl>{facts}</dl><pre>{escape(page.get('last_line') or '')}</pre>"
        f"<h2>Incidents so far</h2>{history or '<p class=soft>None.</p>'}",
    )


def _fact(name: str, value: Any) -> str:
    if name.endswith("_at") or name in ("eta", "hang_deadline"):
        return _instant(value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return number(value) if isinstance(value, float | int) else str(value)
