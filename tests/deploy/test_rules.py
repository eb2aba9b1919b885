"""The rules by Prometheus's own tools, and that they, the catalogue and the runbook know the same things."""

import functools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from deploy.source.manifests import alerts, dashboards, site
from deploy.source.relay import written
from deploy.source.rules import files
from deploy.source.selection import Settings
from megatron_monitor.detectors import DETECTORS
from megatron_monitor.metrics import CATALOGUE, MONITOR_CATALOGUE
from megatron_monitor.run.phases import RUN_STATES
from tests.conftest import loaded
from tests.deploy.conftest import DEPLOY, RULES
from tests.grafana import lint
from tests.grafana.promql import fill

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
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)


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
def cases() -> list[dict[str, Any]]:
    """Every alert_rule_test of every file."""
    groups = [group for path in TESTS for group in loaded(path.read_text())["tests"]]
    return [case for group in groups for case in group.get("alert_rule_test", ())]


def test_the_watchdog_always_fires() -> None:
    """It has no condition, and so no silent case."""
    (watchdog,) = [rule for rule in ALERTS if rule["alert"] == "MegatronWatchdog"]
    assert (watchdog["expr"], "for" in watchdog) == ("vector(1)", False)


@pytest.mark.parametrize("alert", [rule["alert"] for rule in ALERTS if rule["alert"] != "MegatronWatchdog"])
def test_each_alert_has_a_firing_and_a_silent_case(alert: str) -> None:
    """At least one of each."""
    expected = [case["exp_alerts"] for case in cases() if case["alertname"] == alert]
    assert any(expected)
    assert not all(expected)


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


def test_the_relay_is_made_by_its_source() -> None:
    """`make rules` has been run: runs.yml has what incidents.yml makes, and what is missing there comes back."""
    text = (RULES / "runs.yml").read_text()
    assert written(text) == text
    emptied, found = re.subn(r"(# --- begin of the relay.*?\n).*(?=    # --- end)", r"\1", text, flags=re.DOTALL)
    assert found
    assert "MegatronNanLoss" not in emptied
    assert written(emptied.replace('incident!~"hang|', 'incident!~"')) == text


def test_without_settings_a_site_has_the_rules_as_they_are_written() -> None:
    """Each file, to the letter; the alert that wants a number of runs is a comment."""
    made = files(Settings())
    assert {DEPLOY / path for path in made} == set(RULES.glob("*.yml"))
    for path, text in made.items():
        assert (DEPLOY / path).read_text() == text, path


def test_a_site_gets_the_comments_too() -> None:
    """What people wrote beside the rules, with settings that change every one of them; and their order."""
    for path, text in files(Settings("https://g.example", selector='env="prod"')).items():
        written_by_people = r"^ *#.*|^ *- (?:alert|record|name): .*|^ *for: .*"
        shipped = (DEPLOY / path).read_text()
        assert text != shipped
        assert re.findall(written_by_people, text, re.MULTILINE) == re.findall(written_by_people, shipped, re.MULTILINE)


def test_the_objective_reaches_conditions_and_texts() -> None:
    """95 of 100: five times the loss that it allows is a quarter."""
    made = files(Settings(goodput=0.95))["prometheus/rules/goodput.yml"]
    fast, below = [rule for rule in loaded(made)["groups"][0]["rules"] if "alert" in rule]
    assert re.findall(r"> (0\.\d+)", fast["expr"]) == ["0.25", "0.25"]
    assert "ratio3d < 0.95 and" in below["expr"]
    assert "objective 95%" in fast["annotations"]["description"]
    assert "objective 95%" in below["annotations"]["summary"]
    assert "90%" not in made
    assert "allows to lose 5%" in made


@pytest.mark.prometheus
def test_settings_reach_every_rule(tmp_path: Path) -> None:
    """Addresses, the scrapes' name and matchers of a site: in each rule that has a place for them, and Prometheus takes
    them.
    """
    site = Settings("https://g.example", "https://r.example/book", "watch", 'env="prod"', runs=4)
    for path, text in files(site).items():
        assert "grafana.example" not in text
        assert "runbooks.example" not in text
        file = tmp_path / Path(path).name
        file.write_text(text)
        assert tool("promtool", "check", "rules", file).returncode == 0
        for rule in (rule for group in loaded(text)["groups"] for rule in group["rules"]):
            assert rule["labels"]["scope"] == "watch-env-prod"
            for found in re.finditer(r"(?<![:\w])(megatron_\w+|up)\b(.{0,30})", rule["expr"]):
                assert found[2].startswith('{job=~"watch", env="prod"'), rule["expr"]
            for words in (rule["expr"], *rule.get("annotations", {}).values()):
                for found in re.finditer(r"\b(?:\w+:megatron_|megatron:)\w+(?::\w+)?(.{0,30})", words):
                    assert found[1].startswith('{scope="watch-env-prod"'), words


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("cases", "sites"),
    [
        ("fewer-runs.yml", {"": Settings(runs=4)}),
        ("two-teams.yml", {f"{env}-": Settings(job="watch", selector=f'env="{env}"') for env in ("prod", "dev")}),
    ],
)
def test_the_rules_of_a_site(cases: str, sites: dict[str, Settings], tmp_path: Path) -> None:
    """Fewer runs than expected are told of; each of two teams in one Prometheus knows, remembers, counts its own."""
    for prefix, settings in sites.items():
        for path, text in files(settings).items():
            (tmp_path / f"{prefix}{Path(path).name}").write_text(text)
    (tmp_path / cases).write_text((Path(__file__).parent / cases).read_text())
    done = tool("promtool", "test", "rules", tmp_path / cases)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("settings", [Settings(), Settings(job="watch", selector='env="prod"', runs=4)])
def test_grafanas_own_alerts_say_the_same(settings: Settings) -> None:
    """Each alert has the name, query, duration, labels and texts of Prometheus's; the file in deploy/ is that one."""
    managed = loaded(alerts(settings))
    assert managed["apiVersion"] == 1
    given = {rule["uid"]: rule for group in managed["groups"] for rule in group["rules"]}
    texts = files(settings).values()
    wanted = [rule for text in texts for group in loaded(text)["groups"] for rule in group["rules"]]
    assert [rule["alert"] for rule in wanted if "alert" in rule] == list(given)  # each once: it is Grafana's key
    for rule in (rule for rule in wanted if "alert" in rule):
        one = given[rule["alert"]]
        assert one["title"] == rule["alert"]
        assert len(one["uid"]) <= 40  # Grafana takes no longer one
        assert one["data"][0]["model"]["expr"] == rule["expr"].strip()
        assert one["for"] == rule.get("for", "0s")
        assert one["labels"] == {name: text.replace("$labels.", ".Labels.") for name, text in rule["labels"].items()}
        assert one["annotations"] == {
            name: re.sub(r"\$value\b", "$values.A.Value", text) for name, text in rule["annotations"].items()
        }
        assert set(rule) <= {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
        assert one.get("keepFiringFor") == rule.get("keep_firing_for")
        assert [query["refId"] for query in one["data"]] == ["A", "B", one["condition"]]
    # what Prometheus cannot answer neither ends nor begins an alert, but ends the dead man's switch
    assert {name for name, one in given.items() if one["execErrState"] != "KeepLast"} == {"MegatronWatchdog"}
    assert {one["noDataState"] for one in given.values()} == {"OK"}
    if settings == Settings():
        assert (DEPLOY / "grafana" / "alerts.yaml").read_text() == alerts(settings)


def test_grafanas_own_alerts_lie_where_the_dashboards_do_and_not_where_both_would_tell() -> None:
    """In the dashboards' folder, on the provisioned data source; compose mounts what is provisioned, and tells once."""
    groups = loaded((DEPLOY / "grafana" / "alerts.yaml").read_text())["groups"]
    provisioning = DEPLOY.parent / "grafana" / "provisioning"
    (provider,) = loaded((provisioning / "dashboards" / "megatron.yaml").read_text())["providers"]
    (source,) = loaded((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert {group["folder"] for group in groups} == {provider["folder"]}
    assert {rule["data"][0]["datasourceUid"] for group in groups for rule in group["rules"]} == {source["uid"]}
    assert not (provisioning / "alerting").exists()
    seconds = {"10s": 10, "1m": 60, "2m": 120}  # Grafana's scheduler turns each ten seconds
    assert {group["interval"] for group in groups} <= set(seconds)


@pytest.mark.parametrize("wrong", [("--selector", 'env="prod'), ("--selector", "env=prod"), ("--job", "(watch")])
def test_settings_that_would_break_every_rule_are_refused(wrong: tuple[str, str], tmp_path: Path) -> None:
    """Before anything is written, with a sentence that names the option."""
    done = tool(sys.executable, "-m", "deploy.source", tmp_path / "site", *wrong)
    assert done.returncode == 2
    assert f"{wrong[0]} '{wrong[1]}' is no" in done.stderr
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize("where", [(), (DEPLOY,)])
def test_what_everybody_has_is_not_overwritten(where: tuple[Path, ...]) -> None:
    """A site's settings want a folder of its own: the rules in deploy/ are what they are put into."""
    before = {path: path.read_text() for path in RULES.glob("*.yml")}
    done = tool(sys.executable, "-m", "deploy.source", *where, "--selector", 'env="prod"')
    assert done.returncode == 2
    assert "folder" in done.stderr
    assert {path: path.read_text() for path in RULES.glob("*.yml")} == before


def test_settings_reach_every_query_of_the_dashboards() -> None:
    """Panels, annotations and variables: each series that is scraped has the matchers, each recorded one the scope,
    and every query parses.
    """
    scraped, recorded = 'job=~"watch", env="prod"', 'scope="watch-env-prod"'
    texts: list[str] = []
    for board in dashboards(Settings(runbook="https://r.example/book", job="watch", selector='env="prod"')).values():
        assert "runbooks.example" not in json.dumps(board)
        for _, text, _ in lint.expressions(board):
            promql_parser.parse(fill(text, lint.fillings(board)[0]))
            texts.append(text)
        variables = [one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"]
        texts += [str(lint.selector_of(query)) for query in variables]
    assert len(texts) > 150
    for text in texts:
        for found in re.finditer(r"(?<![:\w])((?:\w+:)?megatron_\w+(?::\w+)?)(.{0,30})", text):
            assert found[2].startswith("{" + (recorded if ":" in found[1] else scraped)), text


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


def test_the_panels_of_the_library_are_those_of_the_boards() -> None:
    """Each once, under a name and an id that Grafana's API takes, with the site's own addresses and series."""
    settings = Settings(runbook="https://r.example/runbook.md", selector='env="prod"')
    made = site(settings)
    library = json.loads(made["grafana/library.json"])
    boards = [json.loads(text) for path, text in made.items() if path.startswith("grafana/dashboards/")]
    panels = [one for board in boards for row in board["panels"] for one in (row, *row.get("panels", []))]
    assert [one["model"] for one in library] == [one for one in panels if one["type"] != "row"]
    for key in ("uid", "name"):
        assert len({one[key] for one in library}) == len(library) > 100
    assert all(re.fullmatch(r"[\w-]{1,40}", one["uid"]) and one["kind"] == 1 for one in library)
    assert "https://runbooks.example" not in made["grafana/library.json"]
