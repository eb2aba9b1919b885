"""The pages for people: the markup of templates/, filled here, which static/*.js keeps up to date. Every text of a log is
escaped.

Law: all addresses are relative, so that the pages work through a tunnel and behind a path prefix; no style or script
stands in the HTML, so that the Content-Security-Policy can forbid both; without script the pages still show everything
but the charts, and reload by themselves.
"""

import html
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import resources
from string import Template
from typing import Any, TypeVar
from urllib.parse import quote

from monitor.causes import cost_gpu_hours
from monitor.run.phases import ENDED
from monitor.serve.formats import DASH, FLEET, LABELS, SYMBOLS, Figure, duration, facts, figures, instant, number
from monitor.snapshot import RunSnapshot, Snapshot

T = TypeVar("T")
_log = logging.getLogger(__name__)
_FACTS = (
    "actions", "job", "belongs", "losses", "topology", "software", "environment", "tflops_formula", "failure", "sources"
)  # fmt: skip
_ASKED_FOR = ("arguments",)
"""Too much to be sent every other second."""
_BEHIND = 5.0  # seconds from which it is said that what is shown is old
_REASONS = 8  # of a run's streams
_NOTHING = "<tr><td colspan=4>Nothing so far.</td></tr>"
_TOLD = ("advice", "last_line", "line", "failure_line", "failure", "rank", "node")
"""Evidence that an incident's own lines show."""
_SEVERITY = {"critical": 0, "warning": 1, "info": 2}
_OBEYED = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "\ufffd")
_WORST = 5
"""Open incidents that stand for themselves; the others are folded, and so is what is for information."""


def escape(text: str) -> str:
    """As HTML, and without what a terminal obeys: pages are read there, too."""
    return html.escape(text.translate(_OBEYED))


def run_path(name: str) -> str:
    """The address of a run below `runs/`, slashes and all; what a proxy could change goes into a query."""
    segments = name.split("/")
    if any(segment in ("", ".", "..") for segment in segments) or "%" in name or "\\" in name:
        return "?name=" + quote(name, safe="", errors="replace")
    return "/".join(quote(segment, safe="", errors="replace") for segment in segments)


@cache
def _template(name: str) -> Template:
    """The markup of templates/, line ends and indents aside."""
    text = resources.files("monitor.serve").joinpath("templates", f"{name}.html").read_text("utf-8")
    return Template("".join(line.strip() for line in text.splitlines()))


def filled(template: str, /, **texts: str) -> str:
    """A template with these texts, which are escaped already."""
    return _template(template).substitute(texts)


def document(title: str, root: str, script: str, body: str) -> str:
    """A whole page; `script` is the one that keeps it up to date, if any."""
    root = escape(root)
    scripts = filled("charts", root=root) if script == "run.js" else ""
    if script:
        scripts += filled("scripts", root=root, script=script)
    symbols = escape(json.dumps(SYMBOLS))
    return filled("document", root=root, symbols=symbols, title=escape(title), scripts=scripts, body=body)


def _hidden(where: object) -> str:
    return " hidden" if where else ""


def render_index(snapshot: Snapshot, now: float) -> str:
    """All runs and their open incidents."""
    runs = snapshot.all_runs
    body = filled(
        "index", summary=escape(summary(snapshot)), members=_members(snapshot), incidents=_incidents(list(snapshot.incidents), now, ""),
        no_none=_hidden(snapshot.incidents), no_runs=_hidden(not runs), labels=escape(json.dumps(LABELS)),
        columns=",".join(FLEET), no_empty=_hidden(runs),
        heads="".join(f"<th scope=col data-key={key}>{escape(LABELS[key])}" for key in FLEET),
        rows="".join(each_run(worst_first(snapshot, now), lambda run: _row(run.page, now))),
    )  # fmt: skip
    return document("megatron-monitor", "", "fleet.js", body)


def _members(snapshot: Snapshot) -> str:
    """The others of the group that shares a topic: their runs stand on their pages."""
    shown = []
    for address, partitions in snapshot.members.items():
        name, of = escape(address) or "nobody", ", ".join(map(str, partitions))
        link = f"<a href='{name}'>{name}</a>" if address.startswith(("http://", "https://")) else name
        shown.append(f"{link} partition{'s' if len(partitions) > 1 else ''} {of}")
    return f"<p class=soft>Shared through Kafka: {'; '.join(shown)}</p>" if shown else ""


_RECENT = 86400.0  # seconds since its last progress in which a run that died may still be news
_DEAD = ("crashed", "lost")
_OVER = 4


def worst_first(snapshot: Snapshot, now: float) -> list[RunSnapshot]:
    """All runs, those kept as history too: critical, died in the last day, warned of, alive, and what is long over."""
    return sorted(snapshot.all_runs, key=lambda run: _order(run.page, now))


def _order(page: dict[str, Any], now: float) -> tuple[int, float, str]:
    severities = {item["severity"] for item in page["incidents"]}
    state, last, name = page["state"], page.get("progress_at") or 0.0, page["run"]
    if "critical" in severities or state == "hung":
        return 0, 0.0, name
    if state in _DEAD or state == "finished":
        return (1 if state in _DEAD and now - last < _RECENT else _OVER), -last, name  # the last to end first
    return (2 if "warning" in severities else 3), 0.0, name


def each_run(runs: Iterable[RunSnapshot], shown: Callable[[RunSnapshot], T]) -> list[T]:
    """What is shown of each run. One that cannot be shown costs the page its own part alone."""
    out: list[T] = []
    for run in runs:
        try:
            out.append(shown(run))
        except Exception:  # noqa: BLE001 - the boundary of a row
            _log.exception("run=%r could not be shown and is left out", run.run)
    return out


def summary(snapshot: Snapshot) -> str:
    """One line over the table."""
    states = Counter(run.page["state"] for run in snapshot.all_runs)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    count = f"{len(snapshot.all_runs)} run{'' if len(snapshot.all_runs) == 1 else 's'}"
    reading = "" if snapshot.ready else "; reading the backlog"
    if snapshot.ready and snapshot.behind_seconds > _BEHIND:
        reading = f"; the monitor is {snapshot.behind_seconds:.0f} s behind the logs"
    return f"{count}{': ' if counts else ''}{counts}{reading}; {instant(snapshot.at)}"


def render_run(run: RunSnapshot, now: float, root: str) -> str:
    """One run: its figures, its incidents, its charts, what is known of it, its last line."""
    page = run.page
    shown = figures(page, now)
    cards = "".join(
        f"<div{' class=unknown' if shown[key].text == DASH else ''}><dt>{escape(label)}</dt>"
        f"<dd>{_figure(key, shown[key])}{_bar(page) if key == 'iteration' else ''}</dd></div>"
        for key, label in LABELS.items()
    )
    body = filled(
        "run", home=escape(root) or "./", name=escape(page["run"]), state=_state(page, shown["state"]), cards=cards,
        path=escape(run_path(page["run"])), no_open=_hidden(not page["incidents"]), died=_died(page),
        incidents=_incidents(page["incidents"], now, root, " open"), known=_list(_known(page)),
        past="".join(_past(item) for item in reversed(page.get("history", []))) or _NOTHING,
        no_last=_hidden(not page.get("last_line")), last_line=escape(page.get("last_line") or ""),
    )  # fmt: skip
    return document(f"{shown['state'].text} · {page['run']}", root, "run.js", body)


def render_missing(name: str, root: str) -> str:
    """For who follows a link to a run that is not known: an old message's, or one of another monitor."""
    return document("no such run", root, "", filled("missing", home=escape(root) or "./", name=escape(name)))


def live_run(page: dict[str, Any], now: float) -> dict[str, Any]:
    """What the scripts are sent of a run: its data, and the texts of its page."""
    return {
        **{name: value for name, value in page.items() if name not in _ASKED_FOR},
        "path": run_path(page["run"]),
        "figures": figures(page, now),
        "facts": _known(page),
        "incidents": [_live_incident(item, now) for item in page["incidents"]],
    }


def fleet_run(page: dict[str, Any], now: float, columns: Sequence[str] = FLEET) -> dict[str, Any]:
    """What the page of all runs is sent of one: 500 runs every other second are to be little work on both sides. `order`
    is what the columns are sorted by, `over` whether nobody waits for the run.
    """
    shown = figures(page, now)
    known = [name for name in columns if name in LABELS]
    return {
        **{name: page.get(name) for name in ("run", "state", "iteration", "train_iterations")},
        "path": run_path(page["run"]),
        "over": _order(page, now)[0] == _OVER,
        "figures": {name: shown[name] for name in ("state", *known)},
        "order": {name: page.get("slowdown_ratio" if name == "over_normal" else name) for name in known},
        "incidents": [_live_incident(item, now) for item in page["incidents"]],
    }


def _live_incident(incident: dict[str, Any], now: float) -> dict[str, Any]:
    return {
        **incident, "path": run_path(incident["run"]), "age": _age(incident, now), "order": _worse(incident, now),
        "lasted": duration(now - incident["since"]), "said": _said(incident), "place": _place(incident, now),
        "facts": _evidence(incident),
    }  # fmt: skip


def _known(page: dict[str, Any]) -> list[tuple[str, str]]:
    shown = {**page, "belongs": _belongs(page.get("identity") or {})}
    return facts(shown, [name for name in _FACTS if shown.get(name)])


def _belongs(identity: dict[str, Any]) -> list[str]:
    """Which job the run is, which share it, and why its streams are its own, each reason once."""
    job, shared = identity.get("job"), identity.get("shares_job_with")
    reasons = Counter(stream["why"] for stream in identity.get("streams", ()))
    return [
        *([f"{job['id']} ({job['why']})"] if job else ()),
        *([f"shares the job with {', '.join(shared)}"] if shared else ()),
        *(f"{count} × {why}" for why, count in list(reasons.items())[:_REASONS]),
    ]


def _said(incident: dict[str, Any]) -> str:
    """The summary without the advice at its end, which stands on a line of its own."""
    summary, advice = str(incident["summary"]), incident.get("advice")
    return summary.removesuffix(advice).rstrip("; ") if advice else summary


def _place(incident: dict[str, Any], now: float) -> str:
    """Where it stands, and what it has cost: what a person on call asks first."""
    gpus, cost = incident.get("gpus"), _cost(incident, now)
    parts = [
        incident.get("failure") and incident["failure"].replace("_", " "),
        incident.get("rank") and f"rank {incident['rank']}",
        incident.get("node") and f"node {incident['node']}",
        cost is not None and f"{number(cost)} GPU-hours on {number(gpus)} GPUs",
    ]
    return ", ".join(part for part in parts if part)


def _cost(incident: dict[str, Any], now: float) -> float | None:
    evidence = incident.get("evidence", {})
    return cost_gpu_hours(incident["incident"], now - incident["since"], incident.get("gpus"), evidence)


def _worse(incident: dict[str, Any], now: float) -> tuple[int, float, float]:
    """What open incidents are sorted by: severity, cost, age."""
    return _SEVERITY.get(incident["severity"], 3), -(_cost(incident, now) or 0.0), incident["since"]


def _evidence(incident: dict[str, Any]) -> list[tuple[str, str]]:
    evidence = incident.get("evidence", {})
    return facts(evidence, [name for name in evidence if name not in _TOLD])


def _age(incident: dict[str, Any], now: float) -> str:
    phase = "" if incident.get("phase") in ENDED else (incident.get("phase") or "").replace("_", " ")
    word = f"{incident['severity']}{f' while {phase}' if phase else ''}"
    return f"{word}, since {instant(incident['since'])}, {duration(now - incident['since'])}"


def _list(pairs: list[tuple[str, str]]) -> str:
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs)


def _state(page: dict[str, Any], figure: Figure) -> str:
    return _figure("state", figure, f"state {escape(str(page['state']))}")


def _figure(key: str, figure: Figure, kind: str = "value") -> str:
    return (
        f"<span class='{kind} {figure.tone}' data-k={key}>{escape(figure.text)}</span> "
        f"<small data-n={key}>{escape(figure.note)}</small>"
    )


def _bar(page: dict[str, Any]) -> str:
    iteration, total = page.get("iteration"), page.get("train_iterations")
    known = iteration is not None and total
    value = f" max={total} value={min(iteration or 0, total or 0)}" if known else " hidden"
    return f" <progress aria-label='iterations done'{value}></progress>"


def _row(page: dict[str, Any], now: float) -> str:
    shown = figures(page, now)
    cells = "".join(
        f"<td data-label='{escape(LABELS[key])}'{' class=unknown' if shown[key].text == DASH else ''}>{_figure(key, shown[key])}{_bar(page) if key == 'iteration' else ''}</td>"
        for key in FLEET
    )
    incidents = "".join(_badge(item) for item in page["incidents"])
    return (
        f"<tr data-run='{escape(page['run'])}'><th scope=row><a href='runs/{escape(run_path(page['run']))}'>"
        f"{escape(page['run'])}</a></th><td data-label=State>{_state(page, shown['state'])}</td>"
        f"<td data-label='Open incidents' data-k=incidents{'' if incidents else ' class=unknown'}>{incidents or DASH}</td>{cells}</tr>"
    )


def _badge(incident: dict[str, Any]) -> str:
    severity = incident["severity"]
    words = f"{SYMBOLS.get(severity, '')} {incident['incident']}"
    hidden = f"<span class=hidden> {escape(severity)}</span>"
    return f"<span class='badge {escape(severity)}'>{escape(words)}{hidden}</span> "


def _incidents(incidents: list[dict[str, Any]], now: float, root: str, opened: str = "") -> str:
    """A line each: the worst, and under a line of their own the others, and those for information."""
    told = sorted((item for item in incidents if item["severity"] != "info"), key=lambda item: _worse(item, now))
    infos = [item for item in incidents if item["severity"] == "info"]

    cards = [_incident(item, now, root, opened if at < _WORST else "") for at, item in enumerate(told)]
    return filled(
        "incidents", worst="".join(cards[:_WORST]), more="".join(cards[_WORST:]), no_more=_hidden(len(told) <= _WORST),
        more_count=_counted(told[_WORST:], "more"), infos="".join(_incident(item, now, root) for item in infos),
        no_infos=_hidden(not infos), info_count=_counted(infos, "for information"),
    )  # fmt: skip


def _counted(incidents: list[dict[str, Any]], words: str) -> str:
    """How many, and of which kinds."""
    kinds = Counter(item["incident"] for item in incidents).most_common()
    return f"{len(incidents)} {words}: {', '.join(f'{count} {kind}' for kind, count in kinds)}"


def _incident(incident: dict[str, Any], now: float, root: str, opened: str = "") -> str:
    shown = _live_incident(incident, now)
    line = incident.get("line") or incident.get("evidence", {}).get("last_line")
    texts = {name: escape(str(shown[name])) for name in ("severity", "run", "said", "place", "lasted", "age")}
    return filled(
        "incident", **texts, opened=opened, badge=_badge(incident), address=f"{escape(root)}runs/{escape(shown['path'])}",
        advised=_advised(incident.get("advice"), incident.get("runbook_url"), incident.get("command")),
        facts=_list(shown["facts"]), line=f"<pre>{escape(str(line))}</pre>" if line else "",
    )  # fmt: skip


def _advised(advice: str | None, link: str | None, command: str | None = None) -> str:
    runbook = f" <a href='{escape(link)}'>runbook</a>" if link else ""
    do = f"<p><b>Do:</b> {escape(advice)}{runbook}</p>" if advice else ""
    return f"{do}<p class=command><code>{escape(command)}</code></p>" if command else do


def _died(page: dict[str, Any]) -> str:
    """What a run died of before anybody watched it: no incident stands for it, and a person asks the same of it."""
    died = page.get("died")
    if not died or any(item["incident"] == died["incident"] for item in page["incidents"]):
        return ""
    lines = f"<pre>{escape(died['line'])}</pre>" if died["line"] else ""
    where = (f"{name} {died[name]}" for name in ("rank", "node") if died[name])
    place = ", ".join((died["failure"].replace("_", " "), *where))
    return (
        "<section aria-labelledby=died><h2 id=died>How it ended</h2><article class=incident>"
        f"<p>{escape(died['summary'])}</p><p class=place>{escape(place)}</p>"
        f"{_advised(died['advice'], died['runbook_url'])}{lines}</article></section>"
    )


def _past(item: dict[str, Any]) -> str:
    kind = "resolved" if item["status"] == "resolved" else item["severity"]
    words = f"{SYMBOLS.get(kind, '✔')} {item['incident']} {kind}"
    where = item.get("onset_iteration", item.get("iteration"))
    return (
        f"<tr><td>{escape(item['time'][:19].replace('T', ' '))}</td><td class='{escape(kind)}'>{escape(words)}</td>"
        f"<td>{'–' if where is None else where}</td><td>{escape(item['summary'])}</td></tr>"
    )


def render_nodes(snapshot: Snapshot, now: float) -> str:
    """Every node of the Snapshot, those that stand out first with their evidence."""
    suspects = [node for node in snapshot.nodes if node["stands_out"]]
    said = "".join(f"<li><b>{escape(node['node'])}</b>: {escape(node['evidence'])}</li>" for node in suspects)
    body = "".join(_node_row(node) for node in snapshot.nodes)
    told = f"<ul>{said}</ul>" if said else "<p class=soft>None.</p>"
    empty = "<tr><td colspan=8>Nothing has happened to a node so far.</td></tr>"
    count = f"{len(suspects)} of {snapshot.nodes_in_all} nodes stand out; {instant(now)}"
    body = filled("nodes", count=escape(count), told=told, body=body or empty)
    return document("Nodes · megatron-monitor", "", "", body)


def _node_row(node: dict[str, Any]) -> str:
    rate = node["rate"]
    cells = (
        node["node"], str(node["launches"]), _count(node["named"]),
        f"{rate['mean']:.1f} ({rate['low']:.1f} to {rate['high']:.1f})", _count(node["present"]), _count(node["slow"]),
        str(node["hangs"]), "-" if node["chance"] >= 1 else f"{node['chance']:.1g}",
    )  # fmt: skip
    return "<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells) + "</tr>"


def _count(count: dict[str, Any]) -> str:
    return f"{count['seen']} ({count['expected']:.2g})" if count["of"] else "-"
