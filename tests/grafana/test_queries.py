"""Every query of every dashboard on a real Prometheus that holds a day with five kinds of trouble."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.grafana import lint
from tests.grafana.conftest import END, Prometheus
from tests.grafana.history import RECORDED
from tests.grafana.lint import BOARDS, fill, load
from tests.grafana.runs import CRASHED_AT, DEAD_SINCE, runs

pytestmark = [pytest.mark.prometheus, pytest.mark.promtool]
RUNS = [run.name for run in runs()]
EMPTY_IS_GOOD = {"megatron-monitor": {"Notifications and actions B"}}
"""Nothing of the kind on that day."""
CRASHED = END + CRASHED_AT + 300  # five minutes after the second crash
MOMENTS = (END, CRASHED, END - 5.5 * 3600)
CODE = {
    result["text"]: int(code)
    for panel in lint.panels(load("run"))
    if panel["title"] == "State"
    for mapping in panel["fieldConfig"]["defaults"]["mappings"]
    if mapping["type"] == "value"
    for code, result in mapping["options"].items()
}
ALL = {"cluster": ".*", "run": ".*", "smoothing": "1s", "scale": "·", "loss": "1 *"}
ROOT = Path(__file__).parents[2]


def answers(prometheus: Prometheus, target: dict[str, Any], expression: str, step: float) -> bool:
    """Whether the query gives a series that is not NaN throughout; an error fails."""
    if target.get("instant"):
        numbers = [float(series["value"][1]) for at in MOMENTS for series in prometheus.at(expression, at)]
    else:
        numbers = [float(value) for series in prometheus.over(expression, step=step) for _, value in series["values"]]
    return any(not math.isnan(number) for number in numbers)


@pytest.mark.parametrize("name", BOARDS)
def test_every_query_answers(prometheus: Prometheus, name: str) -> None:
    """No error for any run or value of a variable, and data for some run: no panel is empty on every history."""
    dashboard = load(name)
    first, *others = lint.fillings(dashboard)
    chosen = [*({**first, "run": run} for run in RUNS), *others] if name == "run" else [first, *others]
    silent = []
    for where, expression, target in lint.expressions(dashboard):
        asked = {fill(expression, filling) for filling in chosen}
        found = sum(answers(prometheus, target, one, 900.0) for one in asked)
        if not found and not any(answers(prometheus, target, one, 120.0) for one in asked):
            silent.append(where)
    assert set(silent) == EMPTY_IS_GOOD.get(dashboard["uid"], set())


@pytest.mark.parametrize("name", BOARDS)
def test_every_variable_finds_its_values(prometheus: Prometheus, name: str) -> None:
    """Grafana asks for the label's values of the selected series."""
    for variable in load(name)["templating"]["list"]:
        if variable["type"] != "query":
            continue
        query = fill(variable["query"]["query"], {**ALL, "job": ".*"})
        selector, label = lint.selector_of(query), query.rsplit(", ", 1)[1].rstrip(")")
        window = {"start": "1762978400", "end": "1763000000"}
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
    [("Running", 6), ("Hung", 1), ("Crashed", 1), ("Unobserved", 1), ("Critical", 5), ("Idle GPUs", 1024 + 512)],
)
def test_the_headline_of_the_fleet(prometheus: Prometheus, title: str, expected: float) -> None:
    """A hung run, one that crashed and did not end, one whose daemon died; the run with two daemons counts once."""
    assert prometheus.one(expression_of("fleet", title)) == expected


def rows_of(
    prometheus: Prometheus, name: str, title: str, *labels: str, place: int = 0, **values: str
) -> dict[Any, float]:
    """One column of a table of troubles, by run and incident."""
    return prometheus.values(expression_of(name, title, place, **values), "run", "incident", *labels)


def test_the_fleet_says_what_since_when_where_and_what_it_costs(prometheus: Prometheus) -> None:
    """One row a trouble: incidents, and the run that nobody watches, critical as its deadline is over."""
    where = "Active incidents"
    found = rows_of(prometheus, "fleet", where, "phase", "cause", "where", "section")
    assert found[("gpt-70b-pretrain", "hang", "evaluating", "", "", "hang")] == 3
    assert found[("gpt-40b-no-exit", "crash", "crashed", "ecc", "rank 17", "crash")] == 3
    assert found[("gpt-40b-no-exit", "crash_without_exit", "crashed", "ecc", "", "crash-without-exit")] == 3
    assert found[("llama-8b-longctx", "slowdown", "training", "", "", "slowdown")] == 2
    assert found[("gpt-1b-fp16-lr6e4", "divergence", "training", "", "", "divergence")] == 3
    assert found[("gpt-3b-ablation-b", "unwatched", "", "", "", "monitor-down")] == 3
    assert found[("gpt-3b-ablation-b", "slowdown", "training", "", "", "slowdown")] == 2  # the rules hold it
    since = rows_of(prometheus, "fleet", where, place=1)
    assert since[("gpt-3b-ablation-b", "unwatched")] == 1000 * (END - DEAD_SINCE)
    assert since[("gpt-40b-no-exit", "crash")] == 1000 * (END - 2100)
    assert set(since) == {key[:2] for key in found}
    cost = rows_of(prometheus, "fleet", where, place=3)
    lost = prometheus.one('megatron_incident_lost_seconds{run="gpt-40b-no-exit",incident="crash"}')
    assert lost > 600  # the work since its last checkpoint, as the daemon's own messages count it
    assert cost[("gpt-40b-no-exit", "crash")] == pytest.approx(512 * (2100 + lost) / 3600)
    ratio = prometheus.one('megatron_slowdown_ratio{run="llama-8b-longctx"}')
    assert ratio == pytest.approx(1.1, abs=0.02)
    slow = END - since[("llama-8b-longctx", "slowdown")] / 1000
    assert cost[("llama-8b-longctx", "slowdown")] == pytest.approx(128 * slow / 3600 * (1 - 1 / ratio))


def test_the_fleet_says_what_is_known_and_leads_to_the_page(prometheus: Prometheus) -> None:
    """The summary of the incident, the address of a daemon that shows the run and has the rest."""
    where = "Incident details"
    found = rows_of(prometheus, "fleet", where, "summary")
    (crash,) = [summary for run, kind, summary in found if (run, kind) == ("gpt-40b-no-exit", "crash")]
    assert "ecc" in crash
    pages = rows_of(prometheus, "fleet", where, "url", place=1)
    assert ("gpt-70b-pretrain", "hang", "http://login1:9843/") in pages


def test_the_board_of_a_run_whose_daemon_is_dead(prometheus: Prometheus) -> None:
    """It shows unwatched, since when, and the last known values, also without recording rules."""
    run = {"run": "gpt-3b-ablation-b"}
    assert prometheus.one(expression_of("run", "State", **run)) == CODE["unwatched"]
    assert prometheus.one(expression_of("run", "Unwatched", **run)) == 1000 * (END - DEAD_SINCE)
    assert prometheus.one(expression_of("run", "Silence", **run)) > 5
    last = prometheus.one('last_over_time(megatron_slowdown_ratio{run="gpt-3b-ablation-b"}[1h])')
    assert prometheus.one(expression_of("run", "× normal", **run)) == last
    bare = expression_of("run", "Unwatched", **run).replace("run:megatron_unwatched_since", "run:no_rules")
    assert prometheus.one(bare) == pytest.approx(1000 * (END - DEAD_SINCE), abs=120e3)
    for name in ("gpt-13b-base", "gpt-3b-ablation-a"):  # watched, and finished
        assert prometheus.at(expression_of("run", "Unwatched", run=name)) == []
        assert prometheus.one(expression_of("run", "State", run=name)) != CODE["unwatched"]


def test_what_the_rules_record_is_what_the_dashboards_read() -> None:
    """By name: a rule that is renamed would leave a board empty."""
    text = "".join(path.read_text() for path in (ROOT / "deploy/prometheus/rules").glob("*.yml"))
    assert [name for name in RECORDED if f"record: {name}" not in text] == []


def test_failures_that_are_the_first_of_their_kind_are_counted(prometheus: Prometheus) -> None:
    """`increase` would miss them: such a series begins at 1."""
    causes = prometheus.values(expression_of("fleet", "Failures, by cause"), "cause")
    assert causes == {"ecc": 2}
    plain = 'sum by (cause) (increase(megatron_failures_total{run=~".*"}[21600s]))'
    assert set(prometheus.values(plain, "cause").values()) == {0}
    restarts = prometheus.values(expression_of("fleet", "Restarts, the 12 worst runs"), "run")
    assert restarts["moe-8x7b"] == pytest.approx(2, abs=0.05)


def test_the_state_timeline_shows_the_bad_ones_first(prometheus: Prometheus) -> None:
    """At the end of the day, and when the crashed run was down."""
    worst = prometheus.values(expression_of("fleet", "State of each run"), "run")
    assert worst == {
        "gpt-70b-pretrain": CODE["hung"],
        "gpt-40b-no-exit": CODE["crashed"],
        "gpt-3b-ablation-b": CODE["unwatched"],
    }
    others = prometheus.values(expression_of("fleet", "State of each run", 1), "run")
    assert others["gpt-13b-base"] == CODE["training"]
    assert not set(others) & set(worst)
    found = prometheus.over(expression_of("run", "State and incidents", run="moe-8x7b"), 5.5 * 3600, 60)
    (states,) = [series for series in found if series["metric"]["incident"] == "state"]
    seen = {int(value) for _, value in states["values"]}
    assert {CODE["crashed"], CODE["starting"], CODE["training"]} <= seen


def test_curves_end_where_the_run_ended(prometheus: Prometheus) -> None:
    """A gauge keeps its last value for as long as the daemon shows the run; a chart of it would go on."""
    always = ("Loss", "Gradient norm", "Learning rate", "Time per iteration", "Global batch size")
    for title in (*always, "Parts of an iteration", "Rank skew (max-min)"):
        assert prometheus.over(expression_of("run", title, run="gpt-40b-no-exit"))
        assert not prometheus.at(expression_of("run", title, run="gpt-40b-no-exit")), title
        assert not prometheus.at(expression_of("run", title, run="gpt-70b-pretrain")), title
        assert prometheus.at(expression_of("run", title, run="gpt-13b-base" if title in always else "moe-8x7b")), title


def test_the_scale_and_the_loss_are_chosen(prometheus: Prometheus) -> None:
    """Smoothing takes the mean of what came before, perplexity is e to the loss."""
    run = {"run": "gpt-13b-base"}
    at = END - 4.5 * 3600
    plain, smooth, perplexity = (
        {
            series["metric"]["series"]: float(series["value"][1])
            for series in prometheus.at(expression_of("run", "Loss", **run, **chosen), at)
        }
        for chosen in (
            {"smoothing": "1s", "loss": "1 *"}, {"smoothing": "1h", "loss": "1 *"}, {"smoothing": "1s", "loss": "exp"}
        )
    )  # fmt: skip
    assert smooth["training"] > plain["training"] + 0.05
    assert perplexity["training"] == pytest.approx(math.exp(plain["training"]))


def test_a_daemon_that_died_is_seen_and_foreign_targets_are_not(prometheus: Prometheus) -> None:
    """Down is one of the project's own: without All's own value Grafana puts in what the variable found."""
    values = {"job": "megatron-monitor", "instance": "login1:9843|login2:9843|login3:9843"}
    assert prometheus.one(expression_of("monitor", "Down", **values)) == 1
    assert prometheus.one(expression_of("monitor", "Up", **values)) == 2
    for variable in load("monitor")["templating"]["list"]:
        assert "allValue" not in variable or variable["allValue"] != ".*", variable["name"]
