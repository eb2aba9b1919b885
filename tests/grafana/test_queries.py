"""Every query of every dashboard on a real Prometheus that holds a day with five kinds of trouble."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from grafana.source import compare, fleet, queries
from grafana.source.__main__ import DASHBOARDS, FOLDER
from tests.grafana import lint
from tests.grafana.conftest import END, Prometheus
from tests.grafana.promql import fill
from tests.grafana.runs import CRASHES, scenes

pytestmark = [pytest.mark.prometheus, pytest.mark.promtool]
RUNS = [scene.run for scene in scenes()]
EMPTY_IS_GOOD = {
    "megatron-monitor": {"Rotations and truncations B"},  # no log was truncated
}
CRASHED_AT = END + CRASHES[1][0] + 300  # five minutes after the second crash
MOMENTS = (END, CRASHED_AT)
METRIC_OF_AXIS = {"iteration": "iteration", "samples": "consumed_samples", "tokens": "consumed_tokens"}
ALL = {"cluster": ".*", "run": ".*"}


def load(name: str) -> dict[str, Any]:
    """A committed dashboard."""
    made: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return made


def answers(prometheus: Prometheus, target: dict[str, Any], expression: str) -> bool:
    """Whether the query gives a series that is not NaN throughout; an error fails."""
    if target.get("instant"):
        numbers = [float(series["value"][1]) for at in MOMENTS for series in prometheus.at(expression, at)]
    else:
        numbers = [float(value) for series in prometheus.over(expression) for _, value in series["values"]]
    return any(not math.isnan(number) for number in numbers)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_query_answers(prometheus: Prometheus, name: str) -> None:
    """No error for any run or value of a variable, and data for some run: no panel is empty on every history."""
    dashboard = load(name)
    chosen = [{"run": run} for run in RUNS] if name == "run" else [{"baseline": "gpt-13b-base"}]
    silent = []
    for where, expression, target in lint.expressions(dashboard):
        found = False
        for filling in lint.fillings(dashboard):
            for choice in chosen:
                found |= answers(prometheus, target, fill(expression, {**filling, **choice}))
        if not found:
            silent.append(where)
    assert set(silent) == EMPTY_IS_GOOD.get(dashboard["uid"], set())


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_variable_finds_its_values(prometheus: Prometheus, name: str) -> None:
    """Grafana asks for the label's values of the selected series."""
    for variable in load(name)["templating"]["list"]:
        if variable["type"] != "query":
            continue
        query = fill(variable["query"]["query"], {**ALL, "job": ".*"})
        selector, label = lint.selector_of(query), query.rsplit(", ", 1)[1].rstrip(")")
        window = {"start": "1762913600", "end": "1763000000"}
        values = prometheus.api(f"label/{label}/values", **{"match[]": str(selector), **window})
        expected = {
            "cluster": [],
            "run": sorted(RUNS),
            "job": ["megatron-monitor"],
            "instance": ["login1:9843", "login2:9843", "login3:9843"],
        }
        assert sorted(values) == expected[label], variable["name"]


def expression_of(name: str, title: str, place: int = 0, **values: str) -> str:
    """One query of one panel, filled in."""
    panel = next(panel for panel in lint.panels(load(name)) if panel["title"] == title)
    return fill(panel["targets"][place]["expr"], {**ALL, **values})


@pytest.mark.parametrize(
    ("title", "expected"),
    [("Running", 4), ("Hung", 1), ("Crashed", 0), ("Not seen", 1), ("Critical", 2), ("Idle GPUs", 1024)],
)
def test_the_headline_of_the_fleet(prometheus: Prometheus, title: str, expected: float) -> None:
    """One hung, one diverging, one whose daemon died, one finished: and the run with two daemons counts once."""
    assert prometheus.one(expression_of("fleet", title)) == expected


def test_the_fleet_names_the_broken_runs_and_their_causes(prometheus: Prometheus) -> None:
    """The table answers: which run, what, and what it did before it stopped."""
    table = prometheus.values(expression_of("fleet", "What needs a person now"), "run", "incident", "state")
    assert table == {
        ("gpt-70b-pretrain", "hang", "evaluating"): 3,
        ("gpt-1b-fp16-lr6e4", "divergence", "training"): 3,
        ("llama-8b-longctx", "slowdown", "training"): 2,
        ("gpt-3b-ablation-b", "not reported", ""): 2,
    }
    silent = prometheus.values(expression_of("fleet", "What needs a person now", 1), "run")
    assert silent["gpt-70b-pretrain"] == pytest.approx(2400, abs=130)
    ratio = prometheus.values(expression_of("fleet", "What needs a person now", 3), "run")
    assert ratio["llama-8b-longctx"] == pytest.approx(1.05, abs=0.015)


def test_the_fleet_names_a_crash_while_it_lasts(prometheus: Prometheus) -> None:
    """Five minutes after a crash: the run, what it did before, and what it died of, the newer failure first."""
    where = "What needs a person now"
    table = {
        tuple(series["metric"].get(label) for label in ("run", "incident", "state")): float(series["value"][1])
        for series in prometheus.at(expression_of("fleet", where), CRASHED_AT)
    }
    assert table[("moe-8x7b", "crash", "training")] == 3
    (died,) = prometheus.at(expression_of("fleet", where, 5), CRASHED_AT)
    assert died["metric"]["failure"] == "nccl"


def test_failures_that_are_the_first_of_their_kind_are_counted(prometheus: Prometheus) -> None:
    """`increase` would miss them: such a series begins at 1."""
    causes = prometheus.values(expression_of("fleet", "Failures, by cause"), "failure")
    assert causes == {"ecc": 1, "nccl": 1}
    plain = 'sum by (failure) (increase(megatron_failures_total{run=~".*"}[86400s]))'
    assert set(prometheus.values(plain, "failure").values()) == {0}
    restarts = prometheus.values(expression_of("fleet", "Restarts, the 12 worst runs"), "run")
    assert restarts == {"moe-8x7b": pytest.approx(2, abs=0.05)}


def test_the_state_timeline_shows_each_state_as_its_number(prometheus: Prometheus) -> None:
    """At the end of the day, and when the crashed run was down."""
    code = {state.name: state.code for state in queries.STATES}
    states = prometheus.values(expression_of("fleet", "State of each run"), "run")
    assert states["gpt-70b-pretrain"] == code["hung"]
    assert states["gpt-3b-ablation-a"] == code["finished"]
    assert "gpt-3b-ablation-b" not in states
    (moe,) = prometheus.over(expression_of("run", "State and incidents", run="moe-8x7b"), 4 * 3600, 60)
    seen = {int(value) for _, value in moe["values"]}
    assert {code["crashed"], code["starting"], code["training"]} <= seen


def test_the_run_that_hangs(prometheus: Prometheus) -> None:
    """Silence is 2.7 budgets, and no tokens flow although the gauge stands still."""
    run = "gpt-70b-pretrain"
    assert prometheus.one(expression_of("run", "Silence / limit", run=run)) == pytest.approx(2400 / 900, abs=0.15)
    assert prometheus.at(expression_of("run", "Tokens per second", run=run)) == []
    assert prometheus.one(f'megatron_tokens_per_second{{run="{run}"}}') > 0


def test_where_the_time_goes_adds_up(prometheus: Prometheus) -> None:
    """The shares of the states are one whole, also for the run with two daemons."""
    for run in ("gpt-13b-base", "moe-8x7b"):
        shares = prometheus.values(expression_of("run", "Time in each state", run=run), "state")
        assert sum(shares.values()) == pytest.approx(1.0, abs=1e-6)
        assert 0.85 < shares["training"] < 0.97


@pytest.mark.parametrize(("place", "axis"), list(enumerate(compare.X_AXES)))
def test_loss_by_iteration_pairs_each_loss_with_its_x(prometheus: Prometheus, place: int, axis: str) -> None:
    """The trick with count_values: each point's x is the run's own value at that moment, and its y the loss."""
    asked = expression_of("compare", "Loss by $x", x=str(place))
    points = {}
    for series in prometheus.over(asked, 3600, 600):
        for at, loss in series["values"]:
            points[(series["metric"]["run"], float(at))] = (float(series["metric"]["x"]), float(loss))
    assert len(points) >= 6 * 6
    for (run, at), (x, loss) in list(points.items())[::5]:
        (true_x,) = prometheus.at(f'max(megatron_{METRIC_OF_AXIS[axis]}{{run="{run}"}})', at)
        (true_loss,) = prometheus.at(f'max(megatron_lm_loss{{run="{run}"}})', at)
        assert x == pytest.approx(float(true_x["value"][1]), rel=1e-9)
        assert loss == pytest.approx(float(true_loss["value"][1]))


def test_scaling_is_measured_against_the_baseline(prometheus: Prometheus) -> None:
    """The baseline is 100 %; the 70B run on four times the GPUs keeps 92 %."""
    title = "Scaling efficiency against the baseline"
    found = prometheus.values(expression_of("compare", title, baseline="gpt-13b-base"), "run")
    assert found["gpt-13b-base"] == pytest.approx(1.0)
    assert found["gpt-70b-pretrain"] == pytest.approx(371 / 402, abs=0.01)


def test_a_daemon_that_died_is_seen(prometheus: Prometheus) -> None:
    """Down is one, and its runs are the ones that the fleet calls not seen."""
    values = {"job": ".*", "instance": ".*"}
    assert prometheus.one(expression_of("monitor", "Down", **values)) == 1
    assert prometheus.one(expression_of("monitor", "Up", **values)) == 2
    gone = prometheus.values(fill(fleet.GONE, ALL), "run")
    assert set(gone) == {"gpt-3b-ablation-b"}
