"""The rules by Prometheus's own tools, and that they, the catalogue and the runbook know the same things."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from megatron_monitor import detectors
from megatron_monitor.metrics import CATALOGUE, MONITOR_CATALOGUE
from megatron_monitor.run.phases import RUN_STATES
from tests.conftest import loaded
from tests.deploy.conftest import DEPLOY, RULES
from tests.programs import slack

PROMETHEUS = DEPLOY / "prometheus"
TESTS = sorted((PROMETHEUS / "tests").glob("*.yml"))
ELSEWHERE = {"up", "process_start_time_seconds"}
"""Metrics that are Prometheus's or the client library's."""


def rules() -> list[dict[str, Any]]:
    """Every rule of every file."""
    groups = [group for path in sorted(RULES.glob("*.yml")) for group in loaded(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = [rule for rule in rules() if "alert" in rule]
TROUBLES = {
    trouble
    for rule in ALERTS
    for trouble in re.findall(r'"trouble", "([a-z-]+)"', rule["expr"])
}  # fmt: skip


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


WRONG: list[list[str]] = loaded((Path(__file__).parent / "wrong_rules.yaml").read_text())
LONG = "half of the time is lost"  # in a day, which takes three seconds
FIRST = {case: place for place, (_, case, _, _) in reversed(list(enumerate(WRONG))) if case != LONG}.values()


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("name", "case", "right", "wrong"),
    [pytest.param(*row, marks=() if place in FIRST else pytest.mark.nightly) for place, row in enumerate(WRONG)],
)
def test_the_unit_tests_can_fail(name: str, case: str, right: str, wrong: str, tmp_path: Path) -> None:
    """A rule made wrong is found by the file's unit tests, by those with `case` in their names; one a case in
    `make test`.
    """
    text = (RULES / f"{name}.yml").read_text()
    assert text.count(right) == 1
    (tmp_path / "rules").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "rules" / f"{name}.yml").write_text(text.replace(right, wrong))
    cases = loaded((PROMETHEUS / "tests" / f"{name}.yml").read_text())
    cases["tests"] = [one for one in cases["tests"] if case in one["name"]]
    (tmp_path / "tests" / "cases.yml").write_text(yaml.safe_dump(cases))
    done = tool("promtool", "test", "rules", tmp_path / "tests" / "cases.yml")
    assert done.returncode != 0
    assert "got:" in done.stdout + done.stderr  # it is a rule, and another one's answer was expected


@pytest.mark.parametrize("rule", ALERTS, ids=[rule["alert"] for rule in ALERTS])
def test_an_alert_says_what_is_needed(rule: dict[str, Any]) -> None:
    """Severity, summary, description, a section of the runbook, a dashboard; which event it belongs to."""
    assert rule.get("labels", {}).get("severity", "critical") in ("info", "warning", "critical")
    assert rule["alert"] == "MegatronIncident" or "Goodput" in rule["alert"] or rule["labels"]["event"]
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url"}
    assert all(rule["annotations"].values())


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


def test_the_runbook_has_a_section_for_each_alert_and_no_other() -> None:
    """Of each incident, of each rule, of each trouble of a monitor; what raises no alert needs none."""
    linked = {kind.replace("_", "-") for kind in detectors.RULES} | {f"monitor-{trouble}" for trouble in TROUBLES}
    for rule in ALERTS:
        page, _, section = rule["annotations"]["runbook_url"].partition("#")
        assert page == "https://runbooks.example/megatron-monitor/runbook.md"
        linked |= set() if "{{" in section else {section}
    sections = re.findall(r"^### (.+)$", (DEPLOY / "runbook.md").read_text(), re.MULTILINE)
    assert {section.lower().replace(" ", "-") for section in sections} == linked


def test_each_section_of_the_runbook_says_what_to_do() -> None:
    """What it means, what to do; of an incident what to check first, and a case."""
    incidents = {kind.replace("_", " ") for kind in detectors.RULES}
    for section in re.split(r"^### ", (DEPLOY / "runbook.md").read_text(), flags=re.MULTILINE)[1:]:
        text = section.split("\n## ")[0]
        words = ["**Means**:", "**Do**:"]
        if text.split("\n")[0].lower() in incidents:
            words += ["**Check first**:", "**Case**:"]
        for word in words:
            assert text.count(word) == 1, (word, section)


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
