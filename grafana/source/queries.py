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
ALIVE = "starting|training|evaluating|saving"
SEVERITIES = {"info": (1, "blue"), "warning": (2, "dark-yellow"), "critical": (3, "red")}


def value(metric: str, select: str, *labels: str, **where: str) -> str:
    """The metric of each run, one series a run (and a value of `labels`); `where` are label matchers (regex)."""
    matchers = "".join(f', {name}=~"{pattern}"' for name, pattern in where.items())
    by = ", ".join(("cluster", "run", *labels))
    return f"max by ({by}) ({metric}{{{select}{matchers}}})"


def in_state(select: str, states: str) -> str:
    """The runs that are in one of the states (a regular expression), each with the value 1."""
    return f"({value('megatron_run_state', select, state=states)} == 1)"


def while_alive(expression: str, select: str) -> str:
    """The expression where the run is alive: a gauge keeps its last value when a run hangs or ends."""
    return f"{expression} and on (cluster, run) {in_state(select, ALIVE)}"


def state_code(select: str) -> str:
    """The number of each run's state: the states that are on, times a table of numbers by state. (A chain of `or` over
    all states takes twelve times as long for 200 runs.)
    """
    codes = " or ".join(f'label_replace(vector({state.code}), "state", "{state.name}", "", "")' for state in STATES)
    return f"max by (cluster, run) ((megatron_run_state{{{select}}} == 1) * on (state) group_left () ({codes}))"


def open_incidents(select: str, *labels: str) -> str:
    """Incidents that fire, with the severity's number as value."""
    terms = " or ".join(
        f'{code} * megatron_incident{{{select}, severity="{name}"}}' for name, (code, _) in SEVERITIES.items()
    )
    by = ", ".join(("cluster", "run", *labels))
    return f"max by ({by}) ({terms}) > 0"


def incidents_with_phase(select: str) -> str:
    """Incidents that fire, with the label `state`: what the run last did before; without it where that is unknown."""
    incidents = open_incidents(select, "incident")
    return (
        f"({incidents}) * on (cluster, run) group_left (state) ({last_phase(select)}) ^ 0 "
        f"or on (cluster, run, incident) ({incidents})"
    )


def largest(expression: str, metric: str, select: str, count: int = 12) -> str:
    """The expression for the runs whose metric was largest in the shown range: the same few at every step."""
    return (
        f"{expression} and on (cluster, run) "
        f"topk({count}, max by (cluster, run) (max_over_time({metric}{{{select}}}[$__range] @ end())))"
    )


def rate(metric: str, select: str, *labels: str, **where: str) -> str:
    """Per second, summed over daemons where they count themselves and the greatest where they count a run."""
    matchers = "".join(f', {name}=~"{pattern}"' for name, pattern in where.items())
    by = f" by ({', '.join(labels)})" if labels else ""
    return f"sum{by} (rate({metric}{{{select}{matchers}}}[$__rate_interval]))"


def increase(metric: str, select: str, *labels: str, over: str = "$__range") -> str:
    """How much a run's counter grew in the window."""
    by = ", ".join(("cluster", "run", *labels))
    return f"max by ({by}) (increase({metric}{{{select}}}[{over}]))"


def grown(metric: str, select: str, *labels: str, over: str = "$__range") -> str:
    """How much a labelled counter grew in the window, a series born within it included: `increase` misses the first
    event of a cause, as the series begins at 1.
    """
    by = ", ".join(("cluster", "run", *labels))
    now = f"max by ({by}) ({metric}{{{select}}})"
    before = f"max by ({by}) ({metric}{{{select}}} offset {over})"
    return f"clamp_min({now} - ({before} or 0 * {now}), 0)"


def last_phase(select: str, states: str = ALIVE, over: str = "12h:2m") -> str:
    """What a run last did before it hung or crashed: the series of the state that was on last, its label names it."""
    when = f'max_over_time(timestamp(megatron_run_state{{{select}, state=~"{states}"}} == 1)[{over}])'
    return f"topk by (cluster, run) (1, max by (cluster, run, state) ({when}))"
