"""The pages for people: data of a Snapshot for the templates, which static/*.js keeps up to date.

Law: Jinja2 escapes what is filled in; all addresses are relative, so that the pages work through a tunnel and behind a
path prefix; no style or script stands in the HTML, so that the Content-Security-Policy can forbid both; without script
the pages still show everything but the charts, and reload by themselves.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader

from megatron_monitor.causes import cost_gpu_hours
from megatron_monitor.run.phases import ENDED
from megatron_monitor.serve.formats import FLEET, LABELS, SYMBOLS, duration, facts, figures, instant, number
from megatron_monitor.snapshot import RunSnapshot, Snapshot

T = TypeVar("T")
_log = logging.getLogger(__name__)
_FACTS = (
    "actions", "job", "losses", "topology", "software", "environment", "tflops_formula", "failure", "sources"
)  # fmt: skip
_ASKED_FOR = ("arguments",)
"""Too much to be sent every other second."""
_BEHIND = 5.0  # seconds from which it is said that what is shown is old
_REPORTED = ("advice", "last_line", "line", "failure_line", "failure", "rank", "node")
"""Evidence that an incident's own lines show."""
_SEVERITY = {"critical": 0, "warning": 1, "info": 2}
_OBEYED = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "\ufffd")
"""What a terminal obeys: pages are read there, too."""
_WORST = 5
"""Open incidents that stand for themselves; the others are folded, and so is what is for information."""


def run_path(name: str) -> str:
    """The address of a run below `runs/`, slashes and all; what a proxy could change goes into a query."""
    segments = name.split("/")
    if any(segment in ("", ".", "..") for segment in segments) or "%" in name or "\\" in name:
        return "?name=" + quote(name, safe="", errors="replace")
    return "/".join(quote(segment, safe="", errors="replace") for segment in segments)


@cache
def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, finalize=_shown_to_people,
    )  # fmt: skip
    made.policies["json.dumps_kwargs"] = {}  # keys stay in their order
    made.globals |= {"symbols": SYMBOLS, "labels": LABELS, "columns": FLEET, "counted": _counted}
    return made


def _shown_to_people(value: object) -> object:
    return value.translate(_OBEYED) if type(value) is str and not value.isprintable() else value


def _rendered(template: str, root: str, **values: object) -> str:
    return _templates().get_template(template).render(root=root, **values)


def render_index(snapshot: Snapshot, now: float, notice: str = "") -> str:
    """All runs and their open incidents; `notice`: a warning on top."""
    return _rendered(
        "index.html", "", notice=notice, summary=summary(snapshot), members=snapshot.members,
        incidents=_incidents(snapshot.incidents, now), any_open=bool(snapshot.incidents),
        any_run=bool(snapshot.all_runs),
        runs=each_run(worst_first(snapshot, now), lambda run: _shown(run.page, now)),
    )  # fmt: skip


def _shown(page: dict[str, Any], now: float) -> dict[str, Any]:
    """What the templates need of a run."""
    more = {"path": run_path(page["run"]), "figures": figures(page, now)}
    return {"iteration": None, "train_iterations": None, "last_line": None, **page, **more}


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
    if state in (*_DEAD, "stopped", "finished"):
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


def render_run(run: RunSnapshot, now: float, root: str, notice: str = "") -> str:
    """One run: its figures, its incidents, its charts, what is known of it, its last line."""
    page = run.page
    return _rendered(
        "run.html", root, notice=notice, run=_shown(page, now), incidents=_incidents(page["incidents"], now),
        died=_died(page), known=_known(page), past=page.get("history", [])[::-1], log=run.log,
    )  # fmt: skip


def render_missing(name: str, root: str, notice: str = "") -> str:
    """For who follows a link to a run that is not known: an old message's, or one of another monitor."""
    return _rendered("missing.html", root, notice=notice, name=name)


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
    """What the page of all runs is sent of one: 500 runs every other second are to be little work on both sides.

    `order` is what the columns are sorted by, `over` whether nobody waits for the run.
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
    evidence = incident.get("evidence", {})
    return {
        **incident, "path": run_path(incident["run"]), "age": _age(incident, now),
        "order": (_SEVERITY.get(incident["severity"], 3), -(_cost(incident, now) or 0.0), incident["since"]),
        "lasted": duration(now - incident["since"]), "said": _said(incident), "place": _place(incident, now),
        "facts": facts(evidence, [name for name in evidence if name not in _REPORTED]),
    }  # fmt: skip


def _known(page: dict[str, Any]) -> list[tuple[str, str]]:
    return facts(page, [name for name in _FACTS if page.get(name)])


def _said(incident: dict[str, Any]) -> str:
    """The summary without the advice at its end, which stands on a line of its own."""
    summary, advice = str(incident["summary"]), incident.get("advice")
    return summary.removesuffix(advice).rstrip("; ") if advice else summary


def _place(incident: dict[str, Any], now: float) -> str:
    """Where it stands, and what it has cost: what a person on call asks first."""
    gpus, cost = incident.get("gpus"), _cost(incident, now)
    parts = [
        incident.get("cause") and incident["cause"].replace("_", " "),
        incident.get("rank") and f"rank {incident['rank']}",
        incident.get("node") and f"node {incident['node']}",
        cost is not None and f"{number(cost)} GPU-hours on {number(gpus)} GPUs",
    ]
    return ", ".join(part for part in parts if part)


def _cost(incident: dict[str, Any], now: float) -> float | None:
    evidence = incident.get("evidence", {})
    return cost_gpu_hours(incident["incident"], now - incident["since"], incident.get("gpus"), evidence)


def _age(incident: dict[str, Any], now: float) -> str:
    phase = "" if incident.get("phase") in ENDED else (incident.get("phase") or "").replace("_", " ")
    word = f"{incident['severity']}{f' while {phase}' if phase else ''}"
    return f"{word}, since {instant(incident['since'])}, {duration(now - incident['since'])}"


def _incidents(incidents: Iterable[dict[str, Any]], now: float) -> dict[str, list[dict[str, Any]]]:
    """The worst, the others, and those for information."""
    live = [
        {**_live_incident(item, now), "shown_line": item.get("line") or item.get("evidence", {}).get("last_line")}
        for item in incidents
    ]
    shown = sorted((item for item in live if item["severity"] != "info"), key=lambda item: item["order"])
    infos = [item for item in live if item["severity"] == "info"]
    return {"worst": shown[:_WORST], "more": shown[_WORST:], "infos": infos}


def _counted(incidents: list[dict[str, Any]], noun: str) -> str:
    """How many, and of which kinds."""
    kinds = Counter(item["incident"] for item in incidents).most_common()
    return f"{len(incidents)} {noun}: {', '.join(f'{count} {kind}' for kind, count in kinds)}"


def _died(page: dict[str, Any]) -> dict[str, Any] | None:
    """What a run died of before anybody watched it: no incident stands for it, and a person asks the same of it."""
    died = page.get("died")
    if not died or any(item["incident"] == died["incident"] for item in page["incidents"]):
        return None
    where = (f"{name} {died[name]}" for name in ("rank", "node") if died[name])
    return {**died, "place": ", ".join((died["cause"].replace("_", " "), *where))}
