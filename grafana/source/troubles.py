"""What is wrong now, as tables that *fleet* and *run* share: incidents, what had ended before anybody looked, runs that
nobody watches. A row tells what, since when, in which phase, where, what it costs, what to do.
"""

from __future__ import annotations

from typing import Any

from grafana.source import queries as q
from grafana.source.layout import RUNBOOK
from grafana.source.panels import Query
from grafana.source.tables import LINK, SEVERITY, Column, rows

IDLE = "hang|crash|crash_loop|crash_without_exit|divergence|nan_loss"
"""Incidents while which no GPU of the run does what it is paid for."""
DEAD, SILENT, UNWATCHED = "found crashed", "found silent", "unwatched"
ON = "on (cluster, run)"
_SECTION = {DEAD: "crash", SILENT: "source-lost", UNWATCHED: "runs-unwatched"}
"""Of the runbook, where it is not the incident's own."""
_RESTART = "start the monitor again: until then only the log tells whether this run lives"
_LOOK = "look at the end of its log: it had been silent for long when the monitor first saw it"
_OF_FAILURES = ("failure", "rank", "node", "summary", "advice", "line")


def _with(expression: str, **labels: str) -> str:
    for name, text in labels.items():
        expression = f'label_replace({expression}, "{name}", "{text}", "", "")'
    return expression


def _incidents(select: str, *labels: str) -> str:
    """Open ones."""
    known = [label for label in labels if label != "section"]
    terms = " or ".join(
        f"{code} * {q.remembered('megatron_incident_info', select, *known, severity=name)}"
        for name, (code, _) in q.SEVERITIES.items()
    )
    found = f"{q.by('incident', *known)} ({terms})"
    if "section" in labels:
        found = f'label_replace({found}, "section", "$1", "incident", "(.*)")'
        for _ in range(2):  # a heading's anchor has hyphens
            found = f'label_replace({found}, "section", "$1-$2", "section", "(.*)_(.*)")'
    return found


def _dead(select: str, *labels: str) -> str:
    """Runs that had crashed before they were watched: no incident was opened for them."""
    crashed = f'{q.by()} (megatron_incident{{{select}, incident=~"crash.*"}} == 1)'
    found = f"{q.by(*(label for label in labels if label in _OF_FAILURES))} (megatron_failure_info{{{select}}})"
    return f"2 * {found} unless {ON} {crashed}"


def _silent(select: str) -> str:
    """Runs of which nobody knows what became of them: they were silent when they were first seen."""
    return f"2 * {q.in_state(select, 'lost')} unless {ON} {q.by()} (megatron_incident{{{select}}} == 1)"


def _unwatched(select: str) -> str:
    """Runs that no daemon shows: a warning, critical once their last deadline is over."""
    since = q.unwatched(select)
    return f"(2 + ({q.deadline(select)} < bool time())) and {ON} {since} or {ON} 2 * {since} ^ 0"


def wrong(select: str, *labels: str) -> str:
    """One series a trouble: its severity as value, its texts as labels."""
    return " or ".join(
        (
            _incidents(select, *labels),
            _with(f"({_dead(select, *labels)})", **_own(DEAD, labels)),
            _with(f"({_silent(select)})", **_own(SILENT, labels, advice=_LOOK)),
            _with(f"({_unwatched(select)})", **_own(UNWATCHED, labels, advice=_RESTART)),
        )
    )


def _own(incident: str, labels: tuple[str, ...], **texts: str) -> dict[str, str]:
    texts = {"incident": incident, "section": _SECTION[incident], **texts}
    return {name: text for name, text in texts.items() if name in ("incident", *labels)}


def _since(select: str, kinds: str = ".*") -> str:
    """When each of them began, Unix seconds."""
    progress = q.value("megatron_last_progress_timestamp_seconds", select)
    terms = [
        q.remembered("megatron_incident_since_timestamp_seconds", select, incident=kinds),
        _with(f"({progress} and {ON} ({_dead(select)}))", incident=DEAD),
        _with(q.unwatched(select), incident=UNWATCHED),
    ]
    if kinds == ".*":
        terms.append(_with(f"({progress} and {ON} ({_silent(select)}))", incident=SILENT))
    return " or ".join(terms)


def _cost(select: str) -> str:
    """GPU-hours that trained nothing since each began: all of a run that stands, a part of one that is slow."""
    gpus = f"({q.last_known('megatron_world_size', select)})"
    slow = q.remembered("megatron_incident_since_timestamp_seconds", select, incident="slowdown")
    part = f"{ON} group_left () clamp_min(1 - 1 / ({q.last_known('megatron_slowdown_ratio', select)}), 0)"
    return (
        f"(time() - ({_since(select, IDLE)})) / 3600 * {ON} group_left () {gpus} or "
        f"(time() - {slow}) / 3600 * {ON} group_left () {gpus} * {part}"
    )


def _page(select: str) -> str:
    """Each trouble with the address of the page of a daemon that shows its run."""
    built = "max without (version, python) (megatron_monitor_build_info)"  # one a daemon, whatever labels it has
    daemons = (
        f'megatron_monitor_page_info or ignoring (url) label_replace({built}, "url", "http://$1/", "instance", "(.*)")'
    )
    shown = f'max without (state) (megatron_run_state{{{select}, state="finished"}})'
    pages = (
        f"topk by (cluster, run) (1, {q.by('url')} ({shown} ^ 0 * ignoring (run, url) group_left (url) ({daemons})))"
    )
    return f"({_incidents(select)}) ^ 0 * {ON} group_left (url) ({pages})"


_RUNBOOK = [{"title": "Runbook", "url": f"${{{RUNBOOK}}}#${{__data.fields.section}}", "targetBlank": True}]
_WRAPPED = {"custom__cellOptions": {"type": "auto", "wrapText": True}}
_SHORT = 110  # characters
_OPEN = {"mappings": [{"type": "regex", "options": {"pattern": ".+", "result": {"text": "open", "index": 0}}}]}


def what(select: str, *, several: bool) -> Any:
    """What needs a person: one row a trouble, the worst first."""
    run = [Column("run", "Run", look=LINK, width=155), Column("cluster", "Cluster", width=80)] if several else []
    return rows(
        "What needs a person now" if several else "What is wrong now",
        "One row an incident that fires, a run that had crashed or was silent when it was first seen, or a run that no daemon "
        "shows (critical once its last deadline is over). An empty table is good. Since is a clock; GPU-hours are those "
        "that trained nothing since. A click on the incident opens the runbook, on the run its dashboard.",
        [
            Query(_placed(wrong(select, "phase", "failure", "rank", "node", "section"))),
            Query(f"1000 * ({_since(select)})"),
            Query(f"time() - ({_since(select)})"),
            Query(_cost(select)),
        ],
        [
            Column("A", "Severity", width=95, look=SEVERITY),
            Column("incident", "Incident", width=140, look={"links": _RUNBOOK}),
            *run,
            Column("B", "Since", "dateTimeAsIsoNoDateIfToday", 150),
            Column("C", "For", "s", 85),
            Column("failure", "Failure"),
            Column("phase", "Phase"),
            Column("where", "Where"),
            Column("D", "GPU-h", "none", 90, {"decimals": 1}),
            Column("section", "section", look={"custom__hidden": True}),
        ],
        hidden=("rank", "node", *(() if several else ("cluster", "run"))),
        empty="Nothing needs a person" if several else "Nothing is wrong",
        sort="Severity",
        then="GPU-h",
        pages=False,
    )


def _placed(troubles: str) -> str:
    """With the label `where`: node and rank."""
    numbered = f'label_replace({troubles}, "rank", "rank $1", "rank", "(.+)")'
    joined = f'label_join({numbered}, "where", " ", "node", "rank")'
    return f'label_replace({joined}, "where", "$1", "where", " *(.*?) *")'


def _shortened(troubles: str) -> str:
    """Lines of a log as far as a narrow column shows them without hiding what stands below."""
    return f'label_replace({troubles}, "line", "$1 …", "line", "(.{{{_SHORT}}}).+")'


def advised(select: str, *, several: bool) -> Any:
    """What to do about each, what the monitor said of it, the line that shows it, and where to read on."""
    name = "__data.fields.Run" if several else "run"
    page = f"${{__value.raw}}runs/?name=${{{name}:percentencode}}"
    daemon = {"title": "The monitor's page of the run", "url": page, "targetBlank": True}
    run = [Column("run", "Run", look=LINK, width=155)] if several else []
    return rows(
        "What to do, and why",
        "What to do first, the words of the last message of each incident with its figures, and the line of the log that shows "
        "it (its beginning; the last iteration's where none does). They stay as they were told; the monitor's page, the last "
        "column, has the whole line and counts on.",
        [
            Query(_shortened(wrong(select, "summary", "line", "advice"))),
            Query(_page(select)),
            *([Query(_cost(select))] if several else []),
        ],
        [
            Column("A", "Severity", width=95, look=SEVERITY),
            *run,
            *([] if several else [Column("incident", "Incident", width=140)]),
            Column("advice", "What to do", look=_WRAPPED),
            Column("summary", "What was said", look=_WRAPPED),
            Column("line", "Line", look=_WRAPPED),
            *([Column("C", "GPU-h", "none", 90, {"decimals": 0})] if several else []),
            Column("url", "Page", width=60, look={"links": [daemon], **_OPEN}),
        ],
        hidden=("Value #B", "cluster", "incident") if several else ("Value #B", "cluster", "run"),
        empty="Nothing to do",
        sort="Severity",
        then="GPU-h" if several else "",  # in the order of the table above
        pages=False,
    )
