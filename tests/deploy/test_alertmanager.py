"""Routes, examples and inhibition by Alertmanager's own word."""

import json
import re
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.conftest import DEPLOY, with_example
from tests.deploy.test_rules import ALERTS
from tests.programs import get, slack, wait

FILE = DEPLOY / "alertmanager" / "alertmanager.yml"
EXAMPLES = ("slack", "mail", "webhook", "pagerduty", "watchdog")

pytestmark = pytest.mark.prometheus


def amtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The output of amtool."""
    return subprocess.run(["amtool", *map(str, arguments)], capture_output=True, text=True, timeout=slack(30))


@pytest.mark.parametrize("name", ["", *EXAMPLES])
def test_amtool_takes_the_file_and_each_example(name: str, tmp_path: Path) -> None:
    """As shipped, and with each commented receiver taken into use."""
    text = FILE.read_text()
    file = tmp_path / "alertmanager.yml"
    file.write_text(with_example(text, name) if name else text)
    done = amtool("check-config", file)
    assert done.returncode == 0, done.stdout + done.stderr
    if name:
        kind = {"mail": "email", "watchdog": "webhook"}.get(name, name)
        assert f"\n    {kind}_configs:" in file.read_text()


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        ({"severity": "info", "alertname": "MegatronConfiguration", "run": "a"}, ["nobody"]),
        ({"severity": "warning", "alertname": "MegatronSlowdown", "run": "a"}, ["chat"]),
        ({"severity": "critical", "alertname": "MegatronHang", "run": "a"}, ["pager", "chat"]),
        ({"severity": "critical", "alertname": "MegatronHangDeadlinePassedWhileDown", "run": "a"}, ["pager", "chat"]),
        ({"severity": "warning", "alertname": "MegatronMonitorDown", "instance": "a"}, ["chat"]),
        ({"severity": "critical", "alertname": "MegatronMonitorStuck", "instance": "a"}, ["pager", "chat"]),
        ({"severity": "info", "alertname": "MegatronMonitorMalformedLines", "instance": "a"}, ["nobody"]),
        ({"severity": "info", "alertname": "MegatronWatchdog"}, ["watchdog"]),
        ({"severity": "warning", "alertname": "MegatronRunsUnwatched", "instance": "a"}, ["chat"]),
        ({"severity": "warning", "alertname": "MegatronIncidentEnded", "run": "a", "was": "warning"}, ["chat"]),
        (
            {"severity": "warning", "alertname": "MegatronIncidentEnded", "run": "a", "was": "critical"},
            ["pager", "chat"],
        ),
        ({"severity": "warning", "alertname": "MegatronGoodputBurnsFast"}, ["chat"]),
    ],
)
def test_who_is_told(labels: dict[str, str], receivers: list[str]) -> None:
    """`amtool config routes test`."""
    done = amtool("config", "routes", "test", f"--config.file={FILE}", *(f"{k}={v}" for k, v in labels.items()))
    assert done.stdout.split() == [",".join(receivers)]


def alert_data(*runs: str) -> dict[str, Any]:
    """What Alertmanager gives to a template: one group of alerts."""
    notes = {
        "summary": "{} hangs since 03:12 UTC", "description": "Node n12. Do: dump stacks. Last line: <b>x</b>",
        "runbook_url": "https://r/#hang", "dashboard_url": "https://g/d/megatron-run?var-run=a&var-cluster=b",
        "page_url": "http://login-1:9843/runs/?name=a",
    }  # fmt: skip
    alerts = [
        {"status": "firing", "labels": {"alertname": "MegatronHang", "run": run},
         "annotations": notes | {"summary": notes["summary"].format(run)}}
        for run in runs
    ]  # fmt: skip
    return {"status": "firing", "alerts": alerts, "commonAnnotations": notes}


def rendered(template: str, kind: str, data: dict[str, Any], directory: Path) -> str:
    """What a template makes of a group of alerts."""
    file = directory / "data.json"
    file.write_text(json.dumps(data))
    done = amtool(
        "template", "render", f"--template.glob={FILE.parent / 'templates' / '*.tmpl'}", f"--template.type={kind}",
        f"--template.data={file}", f'--template.text={{{{ template "{template}" . }}}}',
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_slack_takes_a_log_line_for_what_it_is(tmp_path: Path) -> None:
    """No mention, no link, no entity, nothing that turns the text round; in the title neither."""
    data = alert_data("<!channel>&")
    data["alerts"][0]["annotations"]["description"] = "Last line: <!here> a & b <https://x|y> \u202eabc"
    assert "&lt;!here&gt; a &amp; b &lt;https://x|y&gt; abc\n" in rendered("megatron.slack", "text", data, tmp_path)
    assert rendered("megatron.slack.title", "text", data, tmp_path).startswith("&lt;!channel&gt;&amp; hangs")


def test_a_dead_daemon_s_page_names_it_and_the_worst_runs_and_has_a_size(tmp_path: Path) -> None:
    """Not the first of the alphabet; of forty runs ten are listed."""
    data = alert_data(*(f"run-{number:02}" for number in range(40)))
    for alert in data["alerts"]:
        alert["annotations"] = alert["annotations"] | {"together": "Monitor a:9843 is gone: run-33 for 7m"}
    assert rendered("megatron.title", "text", data, tmp_path) == "Monitor a:9843 is gone: run-33 for 7m (40 alerts)"
    for template, kind in (("megatron.text", "text"), ("megatron.slack", "text"), ("megatron.mail", "html")):
        text = rendered(template, kind, data, tmp_path)
        assert text.count("hangs since") == 10
        assert "40 alerts in all" in text


@pytest.mark.parametrize(
    ("labels", "severity"),
    [
        ({"alertname": "MegatronHang", "severity": "critical"}, "critical"),
        ({"alertname": "MegatronIncidentEnded", "severity": "warning"}, "info"),
        ({"alertname": "MegatronHang"}, "error"),  # several at once
    ],
)
def test_pagerduty_is_told_how_severe_it_is(labels: dict[str, str], severity: str, tmp_path: Path) -> None:
    """In its own four words; an end wakes nobody."""
    assert rendered("megatron.severity", "text", alert_data("a") | {"commonLabels": labels}, tmp_path) == severity


@pytest.mark.parametrize(
    ("template", "kind", "expected"),
    [
        ("megatron.title", "text", "a hangs since 03:12 UTC (2 alerts)"),
        ("megatron.text", "text", "a hangs since 03:12 UTC\nNode n12. Do: dump stacks. Last line: <b>x</b>\n"
         "What to do: https://r/#hang\nBoard: https://g/d/megatron-run?var-run=a&var-cluster=b\n"
         "Monitor's page: http://login-1:9843/runs/?name=a\nb hangs"),
        ("megatron.slack", "text", "<https://r/#hang|What to do> · <https://g/d/"),
        ("megatron.mail", "html", "<h3>b hangs since 03:12 UTC</h3>\n<p>Node n12. Do: dump stacks. Last "
         "line: &lt;b&gt;x&lt;/b&gt;</p>"),
    ],
)  # fmt: skip
def test_what_people_read(template: str, kind: str, expected: str, tmp_path: Path) -> None:
    """Each template on two alerts of a group; a log's line is no markup in a mail."""
    assert expected in rendered(template, kind, alert_data("a", "b"), tmp_path)


def post(address: str, alerts: list[dict[str, str]]) -> None:
    """Alerts as Prometheus sends them."""
    request = urllib.request.Request(
        f"http://{address}/api/v2/alerts", data=json.dumps([{"labels": labels} for labels in alerts]).encode(),
        headers={"Content-Type": "application/json"}, method="POST",
    )  # fmt: skip
    urllib.request.urlopen(request, timeout=slack(5)).close()


def inhibited(address: str) -> dict[str, set[tuple[str, str]]]:
    """Run or instance -> (alert, severity) that are kept back."""
    found: dict[str, set[tuple[str, str]]] = {}
    alerts: list[dict[str, Any]] = json.loads(get(f"http://{address}/api/v2/alerts"))
    for alert in alerts:
        labels = alert["labels"]
        kept = found.setdefault(labels.get("run") or labels["instance"], set())
        if alert["status"]["inhibitedBy"]:
            kept.add((labels["alertname"], labels["severity"]))
    return found


@dataclass(frozen=True)
class Fired:
    """An alert, short: of a run, or of a daemon by its address; whether it is kept back."""

    name: str
    severity: str = "critical"
    kept_back: bool = False
    cluster: str = "one"


SILENCES = {
    "crashed": [
        Fired("Crash"), Fired("NanLoss"), Fired("Hang", kept_back=True), Fired("Slowdown", "warning", kept_back=True),
        Fired("HangDeadlinePassedWhileDown", kept_back=True),
    ],
    "elsewhere": [Fired("Hang"), Fired("Crash", cluster="two")],
    "hung": [
        Fired("Hang"), Fired("SourceLost", "warning"), Fired("HangDeadlinePassed", kept_back=True),
        Fired("HangDeadlinePassedWhileDown", kept_back=True),
    ],
    "looping": [Fired("CrashLoop"), Fired("Crash", kept_back=True)],
    "worse": [Fired("Slowdown"), Fired("Slowdown", "warning", kept_back=True)],
    "blocking": [Fired("LaunchBlocking", "warning"), Fired("Slowdown", "warning", kept_back=True)],
    "noted": [Fired("LaunchBlocking", "info"), Fired("Slowdown", "warning")],
    "away": [Fired("Divergence"), Fired("LossSpike", "warning", kept_back=True)],
    "a:9843": [Fired("MonitorDown", "warning"), Fired("MonitorBehind", "warning", kept_back=True)],
    "b:9843": [Fired("MonitorBehind", "warning")],
    "c:9843": [Fired("MonitorStuck"), Fired("MonitorReadsNothing", "warning", kept_back=True)],
}  # fmt: skip


def test_what_silences_what(alertmanager: str) -> None:
    """The cause is notified, its consequences are not; another run's, and another cluster's, are."""
    expected, alerts = {}, []
    for whose, fired in SILENCES.items():
        expected[whose] = {(f"Megatron{one.name}", one.severity) for one in fired if one.kept_back}
        for one in fired:
            of = {"instance": whose} if ":" in whose else {"run": whose, "cluster": one.cluster}
            alerts.append({"alertname": f"Megatron{one.name}", "severity": one.severity, **of})
    post(alertmanager, alerts)
    wait(lambda: inhibited(alertmanager) == expected, 10.0, "the inhibitions")


def test_every_alert_that_a_rule_of_inhibition_names_exists() -> None:
    """A name that was changed in the rules would silence nothing."""
    names = {rule["alert"] for rule in ALERTS}
    text = FILE.read_text().partition("inhibit_rules:")[2].partition("receivers:")[0]
    for pattern in re.findall(r'alertname (?:=~|=) "?([\w|.*()]+)"?', text):
        for part in re.split(r"\|(?![^(]*\))", pattern):
            assert any(re.fullmatch(part, name) for name in names), part
        inner = re.search(r"\((.*)\)", pattern)
        for part in inner[1].split("|") if inner else ():
            assert f"MegatronMonitor{part}" in names
