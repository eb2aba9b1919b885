"""PromQL that more than one panel needs, and the one table of states: number, colour, meaning.

Every query takes the maximum over daemons (`max by (cluster, run)`): a run that two daemons follow is one run, and a
label that the site adds (`cluster`) may be there or not. Prometheus 2.42 is the oldest that must understand it.
"""

from __future__ import annotations

from typing import NamedTuple

MANY = 'cluster=~"$cluster", run=~"$run"'
"""Selector of dashboards that show several runs; `$run` has All."""
ONE = 'cluster=~"$cluster", run="$run"'
"""Selector of the dashboard of one run. `=`: Grafana escapes a single value as text, not as a regular expression."""
DAEMON = 'job=~"$job", instance=~"$instance"'
"""Selector of the monitor's own metrics."""


class State(NamedTuple):
    """One value of `megatron_run_state`, as a number for timelines (higher is worse) and in its one colour."""

    name: str
    code: int
    colour: str


# Green, greys and blues are well; yellow, orange and red are not. The text stands beside the colour everywhere.
STATES: tuple[State, ...] = (
    State("finished", 1, "#8e8e8e"),
    State("starting", 2, "#7d9bb5"),
    State("training", 3, "green"),
    State("evaluating", 4, "purple"),
    State("saving", 5, "blue"),
    State("lost", 6, "dark-yellow"),
    State("crashed", 7, "red"),
    State("hung", 8, "orange"),
)
UNWATCHED = State("unwatched", 9, "#d683ce")
"""What no daemon can export: that none looks. Of dashboards alone."""
ALIVE = "starting|training|evaluating|saving"
SEVERITIES = {"info": (1, "blue"), "warning": (2, "dark-yellow"), "critical": (3, "red")}


def by(*labels: str) -> str:
    """The greatest over daemons: one series a run, and a value of `labels`."""
    return f"max by ({', '.join(('cluster', 'run', *labels))})"


def _series(metric: str, select: str, where: dict[str, str]) -> str:
    matchers = "".join(f', {name}=~"{pattern}"' for name, pattern in where.items())
    return f"{metric}{{{select}{matchers}}}"


def value(metric: str, select: str, *labels: str, **where: str) -> str:
    """The metric of each run, one series a run (and a value of `labels`); `where` are label matchers (regex)."""
    return f"{by(*labels)} ({_series(metric, select, where)})"


def in_state(select: str, states: str) -> str:
    """The runs that are in one of the states (a regular expression), each with the value 1."""
    return f"({value('megatron_run_state', select, state=states)} == 1)"


def while_alive(expression: str, select: str) -> str:
    """The expression where the run is alive: a gauge keeps its last value when a run hangs or ends."""
    return f"{expression} and on (cluster, run) {in_state(select, ALIVE)}"


def state_code(select: str) -> str:
    """The number of each run's state."""
    return code_of(f"(megatron_run_state{{{select}}} == 1)")


def code_of(on: str) -> str:
    """The states that are on, times a table of numbers by state. (A chain of `or` over all states takes twelve times as
    long for 200 runs.)
    """
    codes = " or ".join(f'label_replace(vector({state.code}), "state", "{state.name}", "", "")' for state in STATES)
    return f"max by (cluster, run) ({on} * on (state) group_left () ({codes}))"


def state_or_unwatched(select: str) -> str:
    """The same, of a run that nobody watches UNWATCHED's number."""
    return f"({state_code(select)} or on (cluster, run) {UNWATCHED.code} * {unwatched(select)} ^ 0)"


def open_incidents(select: str, *labels: str) -> str:
    """Incidents that fire, with the severity's number as value."""
    terms = " or ".join(
        f'{code} * megatron_incident{{{select}, severity="{name}"}}' for name, (code, _) in SEVERITIES.items()
    )
    return f"{by(*labels)} ({terms}) > 0"


def last_known(metric: str, select: str, *labels: str) -> str:
    """The metric of each run, or its last value of a day where no daemon reports it: for boards of one run, or of
    metrics with one series a run.
    """
    return f"{value(metric, select, *labels)} or {by(*labels)} (last_over_time({metric}{{{select}}}[1d]))"


def unwatched(select: str, at: str = "") -> str:
    """Since when nobody has watched each run that was alive, Unix seconds: a recorded series, which needs the rules;
    without them the last progress of those whose last state in the shown range was no end. `at`: such as " @ end()".
    """
    recorded = f"max by (cluster, run) (run:megatron_unwatched_since_timestamp_seconds{{{select}}}{at})"
    states = f'megatron_run_state{{{select}, state!~"finished|crashed"}}[$__range]{at}'
    alive = f"max by (cluster, run) (last_over_time({states})) == 1"
    last = f"last_over_time(megatron_last_progress_timestamp_seconds{{{select}}}[$__range]{at})"
    progress = f"max by (cluster, run) ({last})"
    reported = f"max by (cluster, run) (megatron_run_state{{{select}}}{at})"
    return f"({recorded} or ({progress} and on (cluster, run) {alive}) unless on (cluster, run) {reported})"


def remembered(metric: str, select: str, *labels: str, **where: str) -> str:
    """What of each open incident a daemon exports, and while none shows the run what was exported last of those that the
    rules hold: nothing is resolved because nobody looks.
    """
    series, each = _series(metric, select, where), by("incident", *labels)
    held = f"{by('incident')} (run:megatron_incident:held{{{select}}}) == 1"
    known = f"{each} (last_over_time({series}[1d])) and on (cluster, run, incident) ({held})"
    return f"({each} ({series}) or {known} unless on (cluster, run) {value('megatron_run_info', select)})"


def deadline(select: str) -> str:
    """When the silence of each watched run becomes a hang, Unix seconds; of one that nobody watches the last one."""
    held = f"max by (cluster, run) (run:megatron_hang_deadline_timestamp_seconds:held{{{select}}}) < Inf"
    now = value("megatron_hang_deadline_timestamp_seconds", select)
    last = f"max by (cluster, run) (last_over_time(megatron_hang_deadline_timestamp_seconds{{{select}}}[1d]))"
    return f"({held} or {now} or {last} and on (cluster, run) {unwatched(select)})"


def at_most(expression: str, limit: str) -> str:
    """The expression, what lies above the limit at the limit: first iterations do not flatten an axis."""
    return f"({expression}) <= ({limit}) or on (cluster, run) ({limit}) and on (cluster, run) ({expression})"


def named(**parts: str) -> str:
    """Several expressions as one, each with its name as the label `series`."""
    return " or ".join(
        f'label_replace({expression}, "series", "{name.replace("_", " ")}", "", "")'
        for name, expression in parts.items()
    )


def largest(expression: str, metric: str, select: str, count: int = 12) -> str:
    """The expression for the runs whose metric was largest in the shown range: the same few at every step."""
    return (
        f"{expression} and on (cluster, run) "
        f"topk({count}, max by (cluster, run) (max_over_time({metric}{{{select}}}[$__range] @ end())))"
    )


def rate(metric: str, select: str, *labels: str, **where: str) -> str:
    """Per second, summed over daemons where they count themselves and the greatest where they count a run."""
    each = f" by ({', '.join(labels)})" if labels else ""
    return f"sum{each} (rate({_series(metric, select, where)}[$__rate_interval]))"


def increase(metric: str, select: str, *labels: str, over: str = "$__range") -> str:
    """How much a run's counter grew in the window."""
    return f"{by(*labels)} (increase({metric}{{{select}}}[{over}]))"


def grown(metric: str, select: str, *labels: str, over: str = "$__range") -> str:
    """How much a labelled counter grew in the window, a series born within it included: `increase` misses the first
    event of a cause, as the series begins at 1.
    """
    now = value(metric, select, *labels)
    before = f"{by(*labels)} ({metric}{{{select}}} offset {over})"
    return f"clamp_min({now} - ({before} or 0 * {now}), 0)"
