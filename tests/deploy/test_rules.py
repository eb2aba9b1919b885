"""The rules by Prometheus's own tools, and that they, the catalogue and the runbook know the same things."""

import functools
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from megatron_monitor.detectors import DETECTORS
from megatron_monitor.metrics import CATALOGUE, MONITOR_CATALOGUE
from megatron_monitor.run.phases import RUN_STATES
from tests.conftest import loaded
from tests.deploy.conftest import DEPLOY, RULES
from tests.programs import slack

PROMETHEUS = DEPLOY / "prometheus"
TESTS = sorted((PROMETHEUS / "tests").glob("*.yml"))
ELSEWHERE = {"up", "process_start_time_seconds"}
"""Metrics that are Prometheus's or the client library's."""


def rules_of(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of all groups."""
    return [rule for group in groups for rule in group["rules"]]


@functools.cache
def rules() -> list[dict[str, Any]]:
    """Every rule of every file."""
    return [rule for path in sorted(RULES.glob("*.yml")) for rule in rules_of(loaded(path.read_text())["groups"])]


def name_of(rule: dict[str, Any]) -> str:
    """What an expression calls what comes of it."""
    return str(rule.get("record") or rule["alert"])


def reached(rules: list[dict[str, Any]]) -> Callable[[str], set[str]]:
    """Which rules an expression, or an alert of that name, is answered by: those that it names, and that they name."""
    names, alerts = {name_of(rule) for rule in rules}, {rule["alert"] for rule in rules if "alert" in rule}

    def named(text: str) -> set[str]:
        return alerts if "ALERTS{alertstate=" in text else names.intersection(re.findall(r"[\w:]+", text))

    ways: dict[str, set[str]] = {name: set() for name in names}
    for rule in rules:
        ways[name_of(rule)] |= named(str(rule))

    def search(text: str) -> set[str]:
        found, new = set(), named(text)
        while new:
            found |= new
            new = set().union(*(ways[name] for name in new)) - found
        return found

    return search


ALERTS = [rule for rule in rules() if "alert" in rule]


def tool(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """A program's outcome."""
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=slack(300))


SHIPPED: dict[str, tuple[str | Path, ...]] = {
    "prometheus": ("check", "config", PROMETHEUS / "prometheus.yml"),
    "file-sd": ("check", "config", PROMETHEUS / "file-sd.yml"),
    "agent": ("check", "config", "--agent", PROMETHEUS / "agent.yml"),
    # the rules lie elsewhere in the container
    "compose": ("check", "config", "--syntax-only", DEPLOY / "container" / "prometheus.yml"),
    "rules": ("check", "rules", "--lint=all", "--lint-fatal", *sorted(RULES.glob("*.yml"))),
    "unit tests": ("test", "rules", *TESTS),
}


@pytest.mark.prometheus
@pytest.mark.parametrize("arguments", SHIPPED.values(), ids=SHIPPED)
def test_promtool_takes_what_is_shipped(arguments: tuple[str | Path, ...]) -> None:
    """Configurations with the rules that they name, the rules' syntax and lint, and the rules' own unit tests."""
    done = tool("promtool", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


WRONG = yaml.safe_load((Path(__file__).parent / "wrong_rules.yaml").read_text())


@pytest.mark.prometheus
@pytest.mark.parametrize(("tests", "case", "right", "wrong"), WRONG)
def test_the_unit_tests_can_fail(tests: str, case: str, right: str, wrong: str, tmp_path: Path) -> None:
    """A rule made wrong is found, by the cases with `case` in their name: all of them take ten times as long. Of each
    case the questions that the rule reaches, with the rules that they are answered by: no other has a part in it.
    """
    groups, changed = [], set()
    for path in RULES.glob("*.yml"):
        text = path.read_text()
        shipped, group = loaded(text)["groups"], loaded(text.replace(right, wrong))["groups"]
        changed |= {name_of(new) for old, new in zip(rules_of(shipped), rules_of(group), strict=True) if old != new}
        groups += group
    assert len(changed) == (4 if "lost_seconds" in right else 1)  # of four kinds it is the cost
    cases = loaded((PROMETHEUS / "tests" / f"{tests}.yml").read_text())
    cases["tests"] = [one for one in cases["tests"] if case in one["name"]]
    asked, answered_by = set[str](), reached(rules_of(groups))
    for one in cases["tests"]:
        for kind, words in (("alert_rule_test", "alertname"), ("promql_expr_test", "expr")):
            one[kind] = [each for each in one.get(kind, ()) if changed & answered_by(each[words])]
            asked = asked.union(*(answered_by(each[words]) for each in one[kind]))
    assert asked
    for group in groups:
        group["rules"] = [rule for rule in group["rules"] if name_of(rule) in asked]
    cases["rule_files"] = ["rules.yml"]
    (tmp_path / "rules.yml").write_text(yaml.dump({"groups": groups}, Dumper=yaml.CSafeDumper))
    (tmp_path / "cases.yml").write_text(yaml.dump(cases, Dumper=yaml.CSafeDumper))
    done = tool("promtool", "test", "rules", tmp_path / "cases.yml")
    assert done.returncode != 0
    assert "got:" in done.stdout + done.stderr  # it is a rule, and another one's answer was expected


@functools.cache
def outcomes(alert: str) -> list[bool]:
    """Whether the alert fires, in each question of the unit tests about it."""
    found = []
    for group in (group for path in TESTS for group in loaded(path.read_text())["tests"]):
        found += [bool(one["exp_alerts"]) for one in group.get("alert_rule_test", ()) if one["alertname"] == alert]
        asked = [one for one in group.get("promql_expr_test", ()) if one["expr"].startswith("ALERTS{alertstate=")]
        fired = [f'alertname="{alert}"' in str(one["exp_samples"]) for one in asked]
        found += fired if any(fired) else []
    return found


def test_the_watchdog_always_fires() -> None:
    """It has no condition, and so no silent case."""
    (watchdog,) = [rule for rule in ALERTS if rule["alert"] == "MegatronWatchdog"]
    assert (watchdog["expr"], "for" in watchdog) == ("vector(1)", False)


@pytest.mark.parametrize("alert", [rule["alert"] for rule in ALERTS if rule["alert"] != "MegatronWatchdog"])
def test_each_alert_has_a_firing_and_a_silent_case(alert: str) -> None:
    """At least one of each."""
    assert set(outcomes(alert)) == {True, False}


def test_every_incident_kind_is_relayed() -> None:
    """Each kind of the closed set by an alert of its own, and no kind falls between them and the one for the rest."""
    relays = {}
    for rule in ALERTS:
        match = re.match(r'run:megatron_incident:held\{incident="(\w+)".*\} == 1( unless|$)', rule["expr"])
        if match:
            relays[match[1]] = rule
    assert set(relays) == set(DETECTORS)
    for kind, rule in relays.items():
        assert rule["alert"] == "Megatron" + kind.replace("_", " ").title().replace(" ", "")
        assert rule["labels"]["severity"] == "{{ $labels.severity }}"
        assert rule["annotations"]["runbook_url"].endswith("#" + kind.replace("_", "-"))
    (rest,) = [rule for rule in ALERTS if rule["alert"] == "MegatronIncident"]
    left_out = re.search(r'incident!~"([\w|]+)"', rest["expr"])
    assert left_out
    assert set(left_out[1].split("|")) == set(DETECTORS)


@pytest.mark.parametrize("rule", ALERTS, ids=[rule["alert"] for rule in ALERTS])
def test_an_alert_says_what_is_needed(rule: dict[str, Any]) -> None:
    """Severity, summary, description, a section of the runbook, a dashboard with its variable set."""
    assert rule["labels"]["severity"] in ("info", "warning", "critical", "{{ $labels.severity }}")
    notes = rule["annotations"]
    elsewhere = ("MegatronMonitor", "MegatronWatchdog", "MegatronRunsUnwatched", "MegatronGoodput")
    about_a_run = not rule["alert"].startswith(elsewhere)
    needed = {"summary", "description", "runbook_url", "dashboard_url"}
    assert set(notes) - {"together"} == needed | ({"page_url"} if about_a_run else set())
    assert ("together" in notes) == (rule["alert"] == "MegatronHangDeadlinePassedWhileDown")
    assert all(notes.values())
    assert notes["runbook_url"].startswith("https://runbooks.example/megatron-monitor/runbook.md#")
    if rule["alert"].startswith("MegatronMonitor"):
        assert notes["dashboard_url"].startswith("https://grafana.example/d/megatron-monitor")
    elif about_a_run:
        assert notes["dashboard_url"] == (
            "https://grafana.example/d/megatron-run"
            "?var-cluster={{ $labels.cluster | urlquery }}&var-run={{ $labels.run | urlquery }}"
        )


@pytest.mark.prometheus
def test_fewer_runs_than_expected_are_told_of(tmp_path: Path) -> None:
    """By the alert that is a comment until a site has put its number in."""
    text, begin, rule = (RULES / "goodput.yml").read_text().partition("    # - alert: MegatronFewerRuns")
    rule = re.sub("(?m)^    # ", "    ", begin + rule).replace("RUNS", "4")
    (tmp_path / "goodput.yml").write_text(text + rule)
    cases = tmp_path / "cases.yml"
    cases.write_text((Path(__file__).parent / "fewer-runs.yml").read_text())
    done = tool("promtool", "test", "rules", cases)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_links_lead_to_dashboards_that_exist() -> None:
    """Each uid is one that is shipped, each variable one that it has."""
    boards = [json.loads(path.read_text()) for path in (DEPLOY.parent / "grafana" / "dashboards").glob("*.json")]
    variables = {board["uid"]: {one["name"] for one in board["templating"]["list"]} for board in boards}
    for rule in ALERTS:
        page, _, query = rule["annotations"]["dashboard_url"].partition("?")
        assert set(re.findall(r"var-(\w+)=", query)) <= variables[page.rpartition("/")[2]]


def test_each_section_of_the_runbook_says_four_things() -> None:
    """What it means, what to do, a case; and what to look at, unless what to do covers it."""
    for section in re.split(r"^### ", (DEPLOY / "runbook.md").read_text(), flags=re.MULTILINE)[1:]:
        text = section.split("\n## ")[0]
        assert text.count("**Means**:") == text.count("**Do**:") == text.count("**Case**:") == 1, section


def test_the_runbook_has_a_section_for_each_alert_and_no_other() -> None:
    """What raises no alert needs no section."""
    linked = {rule["annotations"]["runbook_url"].partition("#")[2] for rule in ALERTS}
    sections = re.findall(r"^### (.+)$", (DEPLOY / "runbook.md").read_text(), re.MULTILINE)
    assert {section.lower().replace(" ", "-") for section in sections} == linked


def test_the_rules_know_only_metrics_that_exist() -> None:
    """Each metric is in the catalogue, is recorded here, or comes from elsewhere; so do labels and states."""
    catalogue = {row.name: set(row.labels) for row in (*CATALOGUE, *MONITOR_CATALOGUE)}
    known = set(catalogue) | {rule["record"] for rule in rules() if "record" in rule} | ELSEWHERE
    for rule in rules():
        # what a metric selects, without strings, label lists and keywords
        for name in re.findall(r"[a-z_]+:megatron\w+:\w+|(?<!:)\bmegatron_\w+|\bup\b|\bprocess_\w+", rule["expr"]):
            assert name in known, f"{name} in {rule}"
        for name, matchers in re.findall(r"(megatron_\w+)\{([^}]*)\}", rule["expr"]):
            used = set(re.findall(r"(\w+)\s*[=!]~?\s*\"", matchers))
            assert used <= catalogue.get(name, used) | {"run"}, f"{used} of {name}"
        for states in re.findall(r'megatron_run_state\{state=~"([^"]+)"', rule["expr"]):
            assert set(states.split("|")) <= set(RUN_STATES)
