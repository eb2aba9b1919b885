"""The HTML pages: render a Snapshot by the templates; static/live.js requests them again and replaces what changed.

Rules: Jinja2 escapes all values. All addresses are relative, so the pages work through a tunnel and behind a path
prefix. The HTML holds no inline style or script, so the Content-Security-Policy forbids both. Without JavaScript the
pages show everything but the charts and reload by themselves.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader

from megatron_monitor import __version__
from megatron_monitor.causes import cost_gpu_hours
from megatron_monitor.detectors.base import RANK
from megatron_monitor.metrics import CATALOGUE
from megatron_monitor.run.phases import ENDED
from megatron_monitor.serve.fleet import Choice
from megatron_monitor.serve.formats import (
    DASH,
    FLEET,
    LABELS,
    METRICS,
    SYMBOLS,
    duration,
    facts,
    figures,
    instant,
    number,
)  # fmt: skip
from megatron_monitor.serve.settings import attempts_of, settings_of, table
from megatron_monitor.snapshot import RunSnapshot, Snapshot

T = TypeVar("T")
_log = logging.getLogger(__name__)
_FACTS = (
    "actions", "job", "losses", "tflops_formula", "failure", "sources",
)  # fmt: skip
_MAX_LAG = 5.0  # seconds behind the logs before the page warns
_SHOWN_APART = ("advice", "last_line", "line", "failure_line", "failure", "rank", "node")
"""Evidence that an incident shows outside its list of facts."""
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
    templates.globals |= {"symbols": SYMBOLS, "labels": LABELS, "columns": FLEET}
    templates.globals |= {"counted": _counted, "run_path": run_path, "version": __version__, "metrics": METRICS}
    meanings = {metric.name: metric.help.replace("`", "") for metric in CATALOGUE}
    templates.globals["meanings"] = {key: meanings[metric] for key, metric in METRICS.items()}
    return templates


def _without_control_characters(value: object) -> object:
    return value.translate(_CONTROL_CHARACTERS) if type(value) is str and not value.isprintable() else value


def rendered(template: str, root: str, **values: object) -> str:
    """Return the page that a template makes. `root`: the way back to `/`."""
    return _templates().get_template(template).render(root=root, **values)


def render_index(snapshot: Snapshot, now: float, choice: Choice | None = None, notice: str = "") -> str:
    """Return the page of all runs and open incidents; `notice` is a warning on top."""
    choice = choice or Choice()
    shown, rest, states = choice.rows_of(snapshot.all_runs, now)
    return rendered(
        "index.html", "", notice=notice, summary=summary(snapshot), rest=rest, states=states, choice=choice,
        incidents=_incidents(snapshot.incidents, now), any_run=bool(snapshot.all_runs),
        critical=sum(item["severity"] == "critical" for item in snapshot.incidents),
        runs=each_run(shown, lambda run: _shown(run.page, now)),
    )  # fmt: skip


def _shown(page: dict[str, Any], now: float) -> dict[str, Any]:
    """Return the values of a run that the templates use."""
    incidents = sorted((live_incident(item, now) for item in page["incidents"]), key=lambda item: item["order"])
    more = {"path": run_path(page["run"]), "figures": figures(page, now), "incidents": incidents}
    return {"iteration": None, "train_iterations": None, "last_line": None, **page, **more}


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


def render_run(
    run: RunSnapshot, now: float, root: str, notice: str = "", others: Mapping[str, RunSnapshot] = MappingProxyType({}),
    names: Sequence[str] = (), numbers: Collection[str] = (),
) -> str:  # fmt: skip
    """Return the page of one run. Its settings are compared with those of the runs `names`, of the `others` that can be
    chosen, and with those of its own earlier attempts with these `numbers`.
    """
    page, attempts = run.page, attempts_of(run)
    columns = [(run.run, settings_of(page)), *((name, settings_of(others[name].page)) for name in names)]
    columns += [attempt for number, attempt in attempts.items() if number in numbers]
    return rendered(
        "run.html", root, notice=notice, run=_shown(page, now), incidents=_incidents(page["incidents"], now),
        died=_died(page), known=facts(page, [name for name in _FACTS if page.get(name)]), past=happened(run),
        log=run.log, at=instant(now), others=sorted(others), names=names, numbers=numbers, attempts=attempts,
        headings=[label for label, _ in columns], settings=table([settings for _, settings in columns]),
    )  # fmt: skip


class Happened(NamedTuple):
    """A row of the table."""

    time: str
    kind: str
    text: str
    where: str
    summary: str


def happened(run: RunSnapshot) -> list[Happened]:
    """Return incidents and restarts, latest first."""
    rows = []
    for item in run.transitions:
        kind = "resolved" if item.status == "resolved" else item.severity
        where = item.iteration if item.onset_iteration is None else item.onset_iteration
        text = f"{SYMBOLS.get(kind, '✔')} {item.incident} {kind}"
        rows.append(Happened(instant(item.time)[:19], kind, text, _plain(where), item.summary))
    zone = run.history.zone
    for iteration, before, time in run.history.restarts:
        again = 0 if before is None else before - iteration + 1
        changes = [one for at, since, every in run.history.changes if (at, since) == (iteration, time) for one in every]
        changed = [f"{name} {old or DASH} → {new or DASH}" for name, old, new in changes]
        summary = f"after iteration {number(before)}" + (f": {number(again)} computed again" if again > 0 else "")
        summary += f"; other arguments: {', '.join(changed)}" if changed else ""
        when = "" if time is None else instant(time + zone)[:19]
        rows.append(Happened(when, "restart", "┆ restart", _plain(iteration), summary))
    return sorted(rows, key=lambda row: row.time)[::-1]


def _plain(value: Any) -> str:
    return DASH if value is None else str(value)


def live_incident(incident: dict[str, Any], now: float) -> dict[str, Any]:
    """Return an incident with the texts that pages and `top` show."""
    evidence = incident.get("evidence", {})
    return {
        **incident, "path": run_path(incident["run"]), "age": _age(incident, now),
        "order": (-RANK[incident["severity"]], -(_cost(incident, now) or 0.0), incident["since"]),
        "lasted": duration(now - incident["since"]), "said": _summary_without_advice(incident),
        "place": _place(incident, now),
        "facts": facts(evidence, [name for name in evidence if name not in _SHOWN_APART]),
        "shown_line": incident.get("line") or evidence.get("last_line"),
    }  # fmt: skip


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
    ordered = sorted((live_incident(item, now) for item in incidents), key=lambda item: item["order"])
    shown = [item for item in ordered if item["severity"] != "info"]
    infos = [item for item in ordered if item["severity"] == "info"]
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
