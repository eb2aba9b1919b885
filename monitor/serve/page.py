"""The HTML pages: render a Snapshot by the templates; static/*.js then keeps the pages up to date.

Rules: Jinja2 escapes all values. All addresses are relative, so the pages work through a tunnel and behind a path
prefix. The HTML holds no inline style or script, so the Content-Security-Policy forbids both. Without JavaScript the
pages show everything but the charts and reload by themselves.
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
_ON_REQUEST = ("arguments",)
"""Facts that are too large to be sent every two seconds."""
_MAX_LAG = 5.0  # seconds behind the logs before the page warns
_SHOWN_APART = ("advice", "last_line", "line", "failure_line", "failure", "rank", "node")
"""Evidence that an incident shows outside its list of facts."""
_SEVERITY = {"critical": 0, "warning": 1, "info": 2}
_CONTROL_CHARACTERS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "\ufffd")
"""Characters that command a terminal, where pages are read, too; they are replaced."""
_MAX_UNFOLDED = 5  # incidents; the others and those of severity info are folded


def run_path(name: str) -> str:
    """Return the address of a run below `runs/`; a name that a proxy could change is given as `?name=`."""
    segments = name.split("/")
    if any(segment in ("", ".", "..") for segment in segments) or "%" in name or "\\" in name:
        return "?name=" + quote(name, safe="", errors="replace")
    return "/".join(quote(segment, safe="", errors="replace") for segment in segments)


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, finalize=_without_control_characters,
    )  # fmt: skip
    templates.policies["json.dumps_kwargs"] = {}  # keeps the order of the keys
    templates.globals |= {"symbols": SYMBOLS, "labels": LABELS, "columns": FLEET, "counted": _counted}
    return templates


def _without_control_characters(value: object) -> object:
    return value.translate(_CONTROL_CHARACTERS) if type(value) is str and not value.isprintable() else value


def _rendered(template: str, root: str, **values: object) -> str:
    return _templates().get_template(template).render(root=root, **values)


def render_index(snapshot: Snapshot, now: float, notice: str = "") -> str:
    """Return the page of all runs and open incidents; `notice` is a warning on top."""
    return _rendered(
        "index.html", "", notice=notice, summary=summary(snapshot), members=snapshot.members,
        incidents=_incidents(snapshot.incidents, now), any_open=bool(snapshot.incidents),
        any_run=bool(snapshot.all_runs),
        runs=each_run(worst_first(snapshot, now), lambda run: _shown(run.page, now)),
    )  # fmt: skip


def _shown(page: dict[str, Any], now: float) -> dict[str, Any]:
    """Return the values of a run that the templates use."""
    more = {"path": run_path(page["run"]), "figures": figures(page, now)}
    return {"iteration": None, "train_iterations": None, "last_line": None, **page, **more}


_RECENT_SECONDS = 86400.0  # a run that died is sorted to the top for so long after its last progress
_DEAD = ("crashed", "lost")
_RANK_OVER = 4


def worst_first(snapshot: Snapshot, now: float) -> list[RunSnapshot]:
    """Return all runs in the order: critical, died in the last day, with a warning, alive, over."""
    return sorted(snapshot.all_runs, key=lambda run: _order(run.page, now))


def _order(page: dict[str, Any], now: float) -> tuple[int, float, str]:
    severities = {item["severity"] for item in page["incidents"]}
    state, last, name = page["state"], page.get("progress_at") or 0.0, page["run"]
    if "critical" in severities or state == "hung":
        return 0, 0.0, name
    if state in (*_DEAD, "stopped", "finished"):
        return (1 if state in _DEAD and now - last < _RECENT_SECONDS else _RANK_OVER), -last, name  # latest end first
    return (2 if "warning" in severities else 3), 0.0, name


def each_run(runs: Iterable[RunSnapshot], shown: Callable[[RunSnapshot], T]) -> list[T]:
    """Call `shown` for each run; a run whose data raise an error is logged and left out."""
    out: list[T] = []
    for run in runs:
        try:
            out.append(shown(run))
        except Exception:  # noqa: BLE001 - one run must not break the page
            _log.exception("run=%r could not be shown and is left out", run.run)
    return out


def summary(snapshot: Snapshot) -> str:
    """Return the line above the table: counts of states, and how old the data are."""
    states = Counter(run.page["state"] for run in snapshot.all_runs)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    count = f"{len(snapshot.all_runs)} run{'' if len(snapshot.all_runs) == 1 else 's'}"
    lag = "" if snapshot.ready else "; reading the backlog"
    if snapshot.ready and snapshot.behind_seconds > _MAX_LAG:
        lag = f"; the monitor is {snapshot.behind_seconds:.0f} s behind the logs"
    return f"{count}{': ' if counts else ''}{counts}{lag}; {instant(snapshot.at)}"


def render_run(run: RunSnapshot, now: float, root: str, notice: str = "") -> str:
    """Return the page of one run."""
    page = run.page
    return _rendered(
        "run.html", root, notice=notice, run=_shown(page, now), incidents=_incidents(page["incidents"], now),
        died=_died(page), known=_known(page), past=page.get("history", [])[::-1], log=run.log,
    )  # fmt: skip


def render_missing(name: str, root: str, notice: str = "") -> str:
    """Return the page for a link to an unknown run, for example from an old message."""
    return _rendered("missing.html", root, notice=notice, name=name)


def live_run(page: dict[str, Any], now: float) -> dict[str, Any]:
    """Return the data and texts of a run for the page's scripts."""
    return {
        **{name: value for name, value in page.items() if name not in _ON_REQUEST},
        "path": run_path(page["run"]),
        "figures": figures(page, now),
        "facts": _known(page),
        "incidents": [live_incident(item, now) for item in page["incidents"]],
    }


def fleet_run(page: dict[str, Any], now: float, columns: Sequence[str] = FLEET) -> dict[str, Any]:
    """Return the few values of a run that the page of all runs needs: it shows up to 500 runs every two seconds.

    `order` holds the values by which columns are sorted; `over` is true if the run has ended and is not recent news.
    """
    shown = figures(page, now)
    keys = [name for name in columns if name in LABELS]
    return {
        **{name: page.get(name) for name in ("run", "state", "iteration", "train_iterations")},
        "path": run_path(page["run"]),
        "over": _order(page, now)[0] == _RANK_OVER,
        "figures": {name: shown[name] for name in ("state", *keys)},
        "order": {name: page.get("slowdown_ratio" if name == "over_normal" else name) for name in keys},
        "incidents": [live_incident(item, now) for item in page["incidents"]],
    }


def live_incident(incident: dict[str, Any], now: float) -> dict[str, Any]:
    """Return an incident with the texts that pages and `top` show."""
    evidence = incident.get("evidence", {})
    return {
        **incident, "path": run_path(incident["run"]), "age": _age(incident, now),
        "order": (_SEVERITY.get(incident["severity"], 3), -(_cost(incident, now) or 0.0), incident["since"]),
        "lasted": duration(now - incident["since"]), "said": _summary_without_advice(incident),
        "place": _place(incident, now),
        "facts": facts(evidence, [name for name in evidence if name not in _SHOWN_APART]),
    }  # fmt: skip


def _known(page: dict[str, Any]) -> list[tuple[str, str]]:
    return facts(page, [name for name in _FACTS if page.get(name)])


def _summary_without_advice(incident: dict[str, Any]) -> str:
    """Return the summary without the advice, which has a line of its own."""
    summary, advice = str(incident["summary"]), incident.get("advice")
    return summary.removesuffix(advice).rstrip("; ") if advice else summary


def _place(incident: dict[str, Any], now: float) -> str:
    """Return the cause, the place and the cost of an incident as a short text."""
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
    """Return the incidents in three lists: the most severe ones, the others, and those of severity info."""
    live = [
        {**live_incident(item, now), "shown_line": item.get("line") or item.get("evidence", {}).get("last_line")}
        for item in incidents
    ]
    shown = sorted((item for item in live if item["severity"] != "info"), key=lambda item: item["order"])
    infos = [item for item in live if item["severity"] == "info"]
    return {"worst": shown[:_MAX_UNFOLDED], "more": shown[_MAX_UNFOLDED:], "infos": infos}


def _counted(incidents: list[dict[str, Any]], noun: str) -> str:
    """Return the number of incidents in all and of each kind as a text."""
    kinds = Counter(item["incident"] for item in incidents).most_common()
    return f"{len(incidents)} {noun}: {', '.join(f'{count} {kind}' for kind, count in kinds)}"


def _died(page: dict[str, Any]) -> dict[str, Any] | None:
    """Return the failure that ended a historical run, which has no incident; None if there is none."""
    died = page.get("died")
    if not died or any(item["incident"] == died["incident"] for item in page["incidents"]):
        return None
    where = (f"{name} {died[name]}" for name in ("rank", "node") if died[name])
    return {**died, "place": ", ".join((died["cause"].replace("_", " "), *where))}
