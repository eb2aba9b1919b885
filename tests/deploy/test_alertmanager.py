"""Routes and texts by Alertmanager's own word."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.conftest import DEPLOY

FILE = DEPLOY / "alertmanager" / "alertmanager.yml"

pytestmark = pytest.mark.prometheus


def amtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The output of amtool."""
    return subprocess.run(["amtool", *map(str, arguments)], capture_output=True, text=True, timeout=30)


def test_amtool_takes_the_file() -> None:
    """As shipped, and nothing is inhibited: an inhibited end is remembered as sent."""
    done = amtool("check-config", FILE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "inhibit_rules:" not in FILE.read_text()


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        ({"severity": "info", "alertname": "MegatronIncident", "run": "a", "incident": "configuration"}, "boards"),
        ({"severity": "warning", "alertname": "MegatronIncident", "run": "a", "incident": "slowdown"}, "chat"),
        ({"severity": "critical", "alertname": "MegatronIncident", "run": "a", "incident": "hang"}, "pager,chat"),
        ({"severity": "critical", "alertname": "MegatronDeadlinePassed", "run": "a"}, "pager,chat"),
        ({"severity": "warning", "alertname": "MegatronMonitorDown", "instance": "a"}, "chat"),
        ({"severity": "critical", "alertname": "MegatronMonitorBlind", "instance": "a"}, "pager,chat"),
        ({"severity": "info", "alertname": "MegatronWatchdog"}, "watchdog"),
        ({"severity": "warning", "alertname": "MegatronGoodputBurnsFast"}, "chat"),
    ],
)
def test_who_is_told(labels: dict[str, str], receivers: str) -> None:
    """`amtool config routes test`."""
    done = amtool("config", "routes", "test", f"--config.file={FILE}", *(f"{k}={v}" for k, v in labels.items()))
    assert done.stdout.strip() == receivers


def group(*runs: str, status: str = "firing", **annotations: str) -> dict[str, Any]:
    """What Alertmanager gives to a template: one group of alerts."""
    notes = {
        "summary": "{} hangs", "description": "Node n12. Do: dump stacks. Last line: <b>x</b>",
        "runbook_url": "https://r/#hang", "dashboard_url": "https://g/d/megatron-run?var-run=a&var-cluster=b",
        "page_url": "http://login-1:9843/runs/?name=a", **annotations,
    }  # fmt: skip
    alerts = [
        {
            "status": status, "labels": {"run": run}, "annotations": notes | {"summary": notes["summary"].format(run)},
            "startsAt": "2026-01-02T03:12:00Z", "endsAt": "2026-01-02T04:05:00Z",
        }
        for run in runs
    ]  # fmt: skip
    return {"status": status, "alerts": alerts, "commonAnnotations": notes}


def rendered(template: str, data: dict[str, Any], directory: Path) -> str:
    """What a template makes of a group of alerts."""
    file = directory / "data.json"
    file.write_text(json.dumps(data))
    done = amtool(
        "template", "render", f"--template.glob={FILE.parent / 'templates' / '*.tmpl'}", "--template.type=text",
        f"--template.data={file}", f'--template.text={{{{ template "{template}" . }}}}',
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_slack_takes_a_log_line_for_what_it_is(tmp_path: Path) -> None:
    """No mention, no link, no entity, nothing that turns the text round; in the title neither."""
    data = group("<!channel>&", description="Last line: <!here> a & b <https://x|y> \u202eabc")
    assert "&lt;!here&gt; a &amp; b &lt;https://x|y&gt; abc\n" in rendered("megatron.slack", data, tmp_path)
    assert rendered("megatron.slack.title", data, tmp_path) == "&lt;!channel&gt;&amp; hangs"


def test_a_message_has_a_size(tmp_path: Path) -> None:
    """Of forty runs ten are listed; the title is the event's own where the monitor gives one."""
    runs = [f"run-{number:02}" for number in range(40)]
    assert rendered("megatron.title", group(*runs), tmp_path) == (
        "run-00 hangs; run-01 hangs; run-02 hangs; 40 alerts in all"
    )
    assert rendered("megatron.title", group(*runs, headline="40 runs: crash"), tmp_path) == "40 runs: crash"
    for template in ("megatron.text", "megatron.slack"):
        text = rendered(template, group(*runs), tmp_path)
        assert len(re.findall(r"run-\d\d hangs", text)) == 10
        assert "40 alerts in all" in text


@pytest.mark.parametrize(
    ("template", "status", "expected"),
    [
        ("megatron.title", "firing", "a hangs; b hangs"),
        ("megatron.title", "resolved", "ended: a hangs; b hangs"),
        ("megatron.slack.title", "resolved", "ended: a hangs; b hangs"),
        ("megatron.text", "resolved", "Ended: a hangs, 03:12 to 04:05 UTC\nEnded: b hangs"),
        ("megatron.slack", "resolved", "Ended: a hangs, 03:12 to 04:05 UTC\n"),
        ("megatron.slack", "firing", "*a hangs* since 03:12 UTC: Node n12. "),
        ("megatron.slack", "firing", "<https://r/#hang|What to do> <https://g/d/megatron-run?var-run=a&amp;var-cluster"),
        ("megatron.text", "firing", "a hangs (since 03:12 UTC)\nNode n12. Do: dump stacks. Last line: <b>x</b>\n"
         "What to do: https://r/#hang\nBoard: https://g/d/megatron-run?var-run=a&var-cluster=b\n"
         "Monitor's page: http://login-1:9843/runs/?name=a\nb hangs"),
    ],
)  # fmt: skip
def test_what_people_read(template: str, status: str, expected: str, tmp_path: Path) -> None:
    """Each template on two alerts of a group."""
    assert expected in rendered(template, group("a", "b", status=status), tmp_path)


def test_what_is_not_known_has_no_line(tmp_path: Path) -> None:
    """A monitor without a public address, a runbook or a board."""
    data = group("a", page_url="", runbook_url="", dashboard_url="")
    assert rendered("megatron.text", data, tmp_path).count("\n") == 2
