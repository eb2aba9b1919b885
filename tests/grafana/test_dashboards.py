"""The dashboards are in canonical form, clean by the lint, and use what the catalogue has."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatron_monitor.run.phases import RUN_STATES
from tests.conftest import loaded
from tests.grafana import lint
from tests.grafana.lint import BOARDS, FOLDER, load

PROVISIONING = FOLDER.parent / "provisioning"
Mutation = Callable[[dict[str, Any]], None]


@pytest.mark.parametrize("name", BOARDS)
def test_the_json_is_in_canonical_form(name: str) -> None:
    """As the command of grafana/README.md writes it: keys sorted, two spaces, so that a change is a small diff."""
    command = (sys.executable, "-m", "json.tool", "--indent=2", "--sort-keys", "--no-ensure-ascii")
    done = subprocess.run([*command, FOLDER / f"{name}.json"], capture_output=True, check=True)
    assert (FOLDER / f"{name}.json").read_bytes() == done.stdout
    assert " ".join(command[1:]) in (FOLDER.parent / "README.md").read_text()


@pytest.mark.parametrize("name", BOARDS)
def test_the_lint_finds_nothing(name: str) -> None:
    """Zero findings of every rule."""
    assert lint.findings(load(name)) == []


def test_every_state_has_one_colour_everywhere() -> None:
    """Each state of a run, and that of one that nobody watches, is drawn in a colour of its own on all panels."""
    colours: dict[str, set[str]] = {}
    for panel in (panel for name in BOARDS for panel in lint.panels(load(name))):
        mappings = panel["fieldConfig"]["defaults"].get("mappings", [])
        for change in panel["fieldConfig"].get("overrides", []):
            for one in change["properties"]:
                mappings = [*mappings, *(one["value"] if one["id"] == "mappings" else ())]
                if one["id"] == "color" and one["value"]["mode"] == "fixed":
                    colours.setdefault(change["matcher"]["options"], set()).add(one["value"]["fixedColor"])
        for result in (r for one in mappings if one["type"] == "value" for r in one["options"].values()):
            colours.setdefault(result["text"], set()).add(result.get("color", ""))
    found = [colours[state] for state in (*RUN_STATES, "unwatched")]
    assert all(len(one) == 1 for one in found)
    assert len(set.union(*(colours[state] for state in RUN_STATES))) == len(RUN_STATES)


def test_provisioning_leads_to_the_dashboards() -> None:
    """The data source sets the scrape interval, so that $__rate_interval fits; the provider reads the folder."""
    source = loaded((PROVISIONING / "datasources" / "prometheus.yaml").read_text())
    (prometheus,) = source["datasources"]
    assert source["apiVersion"] == 1
    assert prometheus["type"] == "prometheus"
    assert "isDefault" not in prometheus  # the site has its own default
    assert prometheus["jsonData"]["timeInterval"] == "15s"
    provider = loaded((PROVISIONING / "dashboards" / "megatron.yaml").read_text())
    (folder,) = provider["providers"]
    assert folder["type"] == "file"
    assert folder["allowUiUpdates"] is False
    assert Path(folder["options"]["path"]).name == "dashboards"


@pytest.mark.parametrize("name", BOARDS)
def test_an_import_by_hand_asks_for_the_data_source_and_names_what_it_needs(name: str) -> None:
    """What is asked for is used, every kind of panel is required, and nothing that Grafana 10 lacks."""
    dashboard = load(name)
    (asked,) = dashboard["__inputs"]
    chosen = next(v for v in dashboard["templating"]["list"] if v["name"] == "datasource")
    assert chosen["current"]["value"] == f"${{{asked['name']}}}"
    needed = {(item["type"], item["id"]) for item in dashboard["__requires"]}
    assert {("panel", panel["type"]) for panel in lint.panels(dashboard)} <= needed
    assert ("grafana", "grafana") in needed
    assert dashboard["id"] is None
    assert dashboard["description"]


def _first(dashboard: dict[str, Any], kind: str = "timeseries") -> dict[str, Any]:
    return next(panel for panel in dashboard["panels"] if panel["type"] == kind)


def _query(expression: str) -> Mutation:
    return lambda d: _first(d)["targets"][0].update(expr=expression)


def _default(key: str, value: Any) -> Mutation:
    return lambda d: _first(d)["fieldConfig"]["defaults"].update({key: value})


RUN = 'run="$run", cluster=~"$cluster"'
BROKEN: list[tuple[str, Mutation]] = [
    ("template_datasource", lambda d: d["templating"]["list"].pop(0)),
    ("template_queries", lambda d: d["templating"]["list"][1].update(refresh=1)),
    ("template_queries", lambda d: d["templating"]["list"][2]["query"].update(query="metrics(run)")),
    ("variables_are_used", lambda d: d["templating"]["list"].append({"name": "rank", "type": "textbox"})),
    ("panel_datasource", lambda d: _first(d).update(datasource={"type": "prometheus", "uid": "abc"})),
    ("panel_datasource", lambda d: _first(d)["targets"][0].update(datasource={"type": "prometheus", "uid": "abc"})),
    ("panel_words", lambda d: _first(d).update(description="Loss.")),
    ("panel_words", lambda d: _first(d)["fieldConfig"]["defaults"].pop("noValue")),
    ("panel_units", _default("unit", "furlong")),
    ("panel_units", _default("unit", "percentunit")),
    ("target_rate_interval", _query(f"rate(megatron_iterations_total{{{RUN}}}[5m])")),
    ("shared_settings", lambda d: d.update(editable=False)),
    ("explicit_looks", lambda d: _first(d)["options"].pop("tooltip")),
    ("explicit_looks", lambda d: _first(d)["fieldConfig"]["defaults"].pop("thresholds")),
    ("links_resolve", lambda d: d["links"][0].update(url="/d/megatron-cluster")),
    ("links_resolve", lambda d: d["links"][0].update(keepTime=False)),
    ("unique_and_in_place", lambda d: _first(d).update(id=2)),
    ("unique_and_in_place", lambda d: _first(d)["gridPos"].update(x=20)),
    ("unique_and_in_place", lambda d: _first(d)["gridPos"].update(w=3)),
    ("few_queries", lambda d: _first(d)["targets"].extend([{**_first(d)["targets"][0], "refId": f"Q{i}"} for i in range(30)])),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "mutate"), BROKEN, ids=[f"{rule}-{i}" for i, (rule, _) in enumerate(BROKEN)])
def test_each_rule_of_the_lint_finds_its_fault(rule: str, mutate: Mutation) -> None:
    """A lint that cannot fail proves nothing: each fault is found by its own rule."""
    dashboard = load("run")
    mutate(dashboard)
    checked = next(each for each in lint.RULES if each.__name__ == rule)
    assert list(checked(dashboard))


def test_every_rule_has_such_a_fault() -> None:
    """The list above covers the lint."""
    assert {rule.__name__ for rule in lint.RULES} == {rule for rule, _ in BROKEN}
