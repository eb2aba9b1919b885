"""The pages for people: the markup of templates/, filled here, which static/*.js keeps up to date.

Law: what is filled in is escaped, unless it is markup that was filled itself (`Html`); all addresses are relative, so that the pages work through a tunnel and behind a path prefix; no style or script
stands in the HTML, so that the Content-Security-Policy can forbid both; without script the pages still show everything
but the charts, and reload by themselves.
"""

import html
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from megatron_monitor.causes import cost_gpu_hours
from megatron_monitor.run.phases import ENDED
from megatron_monitor.serve.formats import (
    DASH,
    FLEET,
    LABELS,
    SYMBOLS,
    Figure,
    duration,
    facts,
    figures,
    instant,
    number,
)
from megatron_monitor.snapshot import RunSnapshot, Snapshot

T = TypeVar("T")
_log = logging.getLogger(__name__)
_FACTS = (
    "actions", "job", "belongs", "losses", "topology", "software", "environment", "tflops_formula", "failure", "sources"
)  # fmt: skip
_ASKED_FOR = ("arguments",)
"""Too much to be sent every other second."""
_BEHIND = 5.0  # seconds from which it is said that what is shown is old
_REASONS = 8  # of a run's streams
_TOLD = ("advice", "last_line", "line", "failure_line", "failure", "rank", "node")
"""Evidence that an incident's own lines show."""
_SEVERITY = {"critical": 0, "warning": 1, "info": 2}
_OBEYED = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "\ufffd")
_ODD = re.compile("[&<>\"'\0-\x08\x0b-\x1f\x7f-\x9f]")
_PART = re.compile(r"<!-- (\w+) -->")
_WORST = 5
"""Open incidents that stand for themselves; the others are folded, and so is what is for information."""


def escape(text: str) -> str:
    """As HTML, and without what a terminal obeys: pages are read there, too."""
    return html.escape(text.translate(_OBEYED)) if _ODD.search(text) else text


def run_path(name: str) -> str:
    """The address of a run below `runs/`, slashes and all; what a proxy could change goes into a query."""
    segments = name.split("/")
    if any(segment in ("", ".", "..") for segment in segments) or "%" in name or "\\" in name:
        return "?name=" + quote(name, safe="", errors="replace")
    return "/".join(quote(segment, safe="", errors="replace") for segment in segments)


class Html(str):
    """Markup, with what it was filled with."""

    __slots__ = ()


_NO_HTML = Html()


@cache
def _templates() -> dict[str, str]:
    """By name the files of templates/, and the parts of parts.html, for `%`; line ends and indents aside."""
    found: dict[str, str] = {}
    for file in (Path(__file__).parent / "templates").iterdir():
        name = file.stem
        for line in file.read_text("utf-8").replace("%", "%%").splitlines():
            part = _PART.match(line)
            name = part[1] if part else name
            found[name] = found.get(name, "") + (line[part.end() :] if part else line.strip())
    return {name: re.sub(r"\$\{?(\w+)\}?", r"%(\1)s", text) for name, text in found.items()}


def filled(template: str, /, **texts: object) -> Html:
    """A template with these texts."""
    safe = {name: text if isinstance(text, Html) else escape(str(text)) for name, text in texts.items()}
    return Html(_templates()[template] % safe)


def joined(parts: Iterable[Html]) -> Html:
    """One behind the other."""
    return Html("".join(parts))


def document(title: str, root: str, body: Html, scripts: str = "") -> str:
    """A whole page; `scripts`: the template of those that keep it up to date, if any."""
    more = filled(scripts, root=root) if scripts else _NO_HTML
    return filled("document", root=root, symbols=json.dumps(SYMBOLS), title=title, scripts=more, body=body)


def _if(where: object, attribute: str) -> Html:
    return Html(f" {attribute}") if where else _NO_HTML


def render_index(snapshot: Snapshot, now: float) -> str:
    """All runs and their open incidents."""
    runs = snapshot.all_runs
    body = filled(
        "index", summary=summary(snapshot), members=_members(snapshot),
        incidents=_incidents(list(snapshot.incidents), now, ""), no_none=_if(snapshot.incidents, "hidden"),
        no_runs=_if(not runs, "hidden"), labels=json.dumps(LABELS), columns=",".join(FLEET), no_empty=_if(runs, "hidden"),
        heads=joined(filled("head", key=key, label=LABELS[key]) for key in FLEET),
        rows=joined(each_run(worst_first(snapshot, now), lambda run: _row(run.page, now))),
    )  # fmt: skip
    return document("megatron-monitor", "", body, "fleet")


def _members(snapshot: Snapshot) -> Html:
    """The others of the group that shares a topic: their runs stand on their pages."""
    shown = []
    for address, partitions in snapshot.members.items():
        is_link = address.startswith(("http://", "https://"))
        name = filled("member", address=address) if is_link else escape(address) or "nobody"
        shown.append(f"{name} partition{'s' if len(partitions) > 1 else ''} {', '.join(map(str, partitions))}")
    return filled("members", shown=Html("; ".join(shown))) if shown else _NO_HTML


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
    body = filled(
        "run", home=root or "./", name=page["run"], state=_state(page, shown["state"]),
        cards=joined(_shown("card", page, key, shown[key]) for key in LABELS),
        path=run_path(page["run"]), no_open=_if(not page["incidents"], "hidden"), died=_died(page),
        incidents=_incidents(page["incidents"], now, root, " open"), known=_list(_known(page)),
        past=joined(map(_past, reversed(page.get("history", []))))
        or filled("nothing", columns=4, words="Nothing so far."),
        no_last=_if(not page.get("last_line"), "hidden"), last_line=page.get("last_line") or "",
    )  # fmt: skip
    return document(f"{shown['state'].text} · {page['run']}", root, body, "charts")


def render_missing(name: str, root: str) -> str:
    """For who follows a link to a run that is not known: an old message's, or one of another monitor."""
    return document("no such run", root, filled("missing", home=root or "./", name=name))


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


def _list(pairs: list[tuple[str, str]]) -> Html:
    return joined(filled("fact", name=name, value=value) for name, value in pairs)


def _state(page: dict[str, Any], figure: Figure) -> Html:
    return _figure("state", figure, f"state {page['state']}")


def _figure(key: str, figure: Figure, kind: str = "value") -> Html:
    return filled("figure", kind=kind, tone=figure.tone, key=key, text=figure.text, note=figure.note)


def _shown(template: str, page: dict[str, Any], key: str, figure: Figure) -> Html:
    """A figure as a card or a cell."""
    bar = _bar(page) if key == "iteration" else _NO_HTML
    unknown = _if(figure.text == DASH, "class=unknown")
    return filled(template, unknown=unknown, label=LABELS[key], figure=_figure(key, figure), bar=bar)


def _bar(page: dict[str, Any]) -> Html:
    iteration, total = page.get("iteration"), page.get("train_iterations")
    if iteration is None or not total:
        return filled("bar", value=_if(True, "hidden"))
    return filled("bar", value=filled("value", most=total, value=min(iteration, total)))


def _row(page: dict[str, Any], now: float) -> Html:
    shown, incidents = figures(page, now), joined(map(_badge, page["incidents"]))
    return filled(
        "row", run=page["run"], path=run_path(page["run"]), state=_state(page, shown["state"]),
        unknown=_if(not incidents, "class=unknown"), incidents=incidents or DASH,
        cells=joined(_shown("cell", page, key, shown[key]) for key in FLEET),
    )  # fmt: skip


def _badge(incident: dict[str, Any]) -> Html:
    severity = incident["severity"]
    return filled("badge", severity=severity, words=f"{SYMBOLS.get(severity, '')} {incident['incident']}")


def _incidents(incidents: list[dict[str, Any]], now: float, root: str, opened: str = "") -> Html:
    """A line each: the worst, and under a line of their own the others, and those for information."""
    told = sorted((item for item in incidents if item["severity"] != "info"), key=lambda item: _worse(item, now))
    infos = [item for item in incidents if item["severity"] == "info"]

    cards = [_incident(item, now, root, opened if at < _WORST else "") for at, item in enumerate(told)]
    return filled(
        "incidents", worst=joined(cards[:_WORST]), more=joined(cards[_WORST:]), no_more=_if(len(told) <= _WORST, "hidden"),
        more_count=_counted(told[_WORST:], "more"), infos=joined(_incident(item, now, root) for item in infos),
        no_infos=_if(not infos, "hidden"), info_count=_counted(infos, "for information"),
    )  # fmt: skip


def _counted(incidents: list[dict[str, Any]], words: str) -> str:
    """How many, and of which kinds."""
    kinds = Counter(item["incident"] for item in incidents).most_common()
    return f"{len(incidents)} {words}: {', '.join(f'{count} {kind}' for kind, count in kinds)}"


def _incident(incident: dict[str, Any], now: float, root: str, opened: str = "") -> Html:
    shown = _live_incident(incident, now)
    line = incident.get("line") or incident.get("evidence", {}).get("last_line")
    return filled(
        "incident", **{name: shown[name] for name in ("severity", "run", "said", "place", "lasted", "age")},
        opened=opened, badge=_badge(incident), address=f"{root}runs/{shown['path']}", facts=_list(shown["facts"]),
        advised=_advised(incident.get("advice"), incident.get("runbook_url"), incident.get("command")),
        line=_some("line", line=line),
    )  # fmt: skip


def _some(template: str, /, **text: str | None) -> Html:
    """Filled, where there is something to say."""
    return filled(template, **text) if all(text.values()) else _NO_HTML


def _advised(advice: str | None, link: str | None, command: str | None = None) -> Html:
    do = filled("advice", advice=advice, runbook=_some("runbook", link=link)) if advice else _NO_HTML
    return joined((do, _some("command", command=command)))


def _died(page: dict[str, Any]) -> Html:
    """What a run died of before anybody watched it: no incident stands for it, and a person asks the same of it."""
    died = page.get("died")
    if not died or any(item["incident"] == died["incident"] for item in page["incidents"]):
        return _NO_HTML
    where = (f"{name} {died[name]}" for name in ("rank", "node") if died[name])
    return filled(
        "died", summary=died["summary"], place=", ".join((died["failure"].replace("_", " "), *where)),
        advised=_advised(died["advice"], died["runbook_url"]), lines=_some("line", line=died["line"]),
    )  # fmt: skip


def _past(item: dict[str, Any]) -> Html:
    kind = "resolved" if item["status"] == "resolved" else item["severity"]
    where = item.get("onset_iteration", item.get("iteration"))
    return filled(
        "past", time=item["time"][:19].replace("T", " "), kind=kind, where=DASH if where is None else where,
        words=f"{SYMBOLS.get(kind, '✔')} {item['incident']} {kind}", summary=item["summary"],
    )  # fmt: skip


def render_nodes(snapshot: Snapshot, now: float) -> str:
    """Every node of the Snapshot, those that stand out first with their evidence."""
    suspects = [node for node in snapshot.nodes if node["stands_out"]]
    said = joined(filled("suspect", node=node["node"], evidence=node["evidence"]) for node in suspects)
    body = filled(
        "nodes", count=f"{len(suspects)} of {snapshot.nodes_in_all} nodes stand out; {instant(now)}",
        told=filled("suspects", said=said) if said else filled("none"),
        body=joined(map(_node_row, snapshot.nodes))
        or filled("nothing", columns=8, words="Nothing has happened to a node so far."),
    )  # fmt: skip
    return document("Nodes · megatron-monitor", "", body)


def _node_row(node: dict[str, Any]) -> Html:
    rate = node["rate"]
    cells = (
        node["node"], node["launches"], _count(node["named"]),
        f"{rate['mean']:.1f} ({rate['low']:.1f} to {rate['high']:.1f})", _count(node["present"]), _count(node["slow"]),
        node["hangs"], "-" if node["chance"] >= 1 else f"{node['chance']:.1g}",
    )  # fmt: skip
    return filled("node", cells=joined(filled("plain", text=cell) for cell in cells))


def _count(count: dict[str, Any]) -> str:
    return f"{count['seen']} ({count['expected']:.2g})" if count["of"] else "-"
