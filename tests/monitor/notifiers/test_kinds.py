"""Which messages a notifier wants; commands."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from megatron_monitor.config import ConfigError, load
from megatron_monitor.notifiers import Notifier
from megatron_monitor.notifiers.command import Command
from megatron_monitor.notifiers.message import message_id
from tests.monitor.notifiers.receiver import HANG, built, failure


@pytest.mark.parametrize(
    ("minimum", "runs", "changes", "wanted"),
    [
        ("warning", (), {}, True),
        ("critical", (), {"severity": "warning"}, False),
        ("warning", (), {"severity": "info"}, False),
        ("info", (), {"severity": "info"}, True),
        ("info", ("tr11-*",), {}, True),
        ("info", ("tr12-*", "*-176B"), {}, True),
        ("info", ("tr12-*",), {}, False),
        ("info", (), {"display_only": True}, False),
        ("critical", (), {"status": "resolved"}, True),
    ],
)
def test_filter(minimum: Any, runs: tuple[str, ...], changes: dict[str, Any], wanted: bool) -> None:
    """Severity and run decide; a quiet message goes to nobody, and who hears of trouble hears of its end."""
    notifier = Notifier(name="a", minimum_severity=minimum, runs=runs)
    assert notifier.wants(replace(HANG, **changes)) is wanted


def test_only_the_kinds_that_are_asked_for() -> None:
    """`incidents:` keeps a stack dump for hangs; a kind that does not exist is refused with its path."""
    notifier = built("type: command, command: [a], incidents: [hang]")
    assert notifier.wants(HANG)
    assert not notifier.wants(replace(HANG, incident="crash"))
    with pytest.raises(ConfigError, match=r"notifiers\.0\.incidents\.0: expected one of .*hang"):
        load("notifiers: [{type: command, name: x, command: [a], incidents: [hangs]}]")


# --- command --------------------------------------------------------------------------------------------------------


def test_a_program_is_given_the_object_and_the_facts(tmp_path: Path) -> None:
    """JSON on standard input, the main facts in the environment, its arguments as written."""
    out = tmp_path / "out.json"
    code = (
        "import json,os,sys;json.dump({'in':json.load(sys.stdin),'argv':sys.argv[1:],"
        "'env':{k:v for k,v in os.environ.items()"
        " if k.startswith('MEGATRON_') and not k.startswith('MEGATRON_MONITOR_')}},"
        f"open({str(out)!r},'w'))"
    )
    notifier = built(f"type: command, command: [{sys.executable}, -c, {json.dumps(code)}, '$(touch x)']")
    assert isinstance(notifier, Command)
    notifier.send(HANG)
    sent = json.loads(out.read_text())
    assert sent["in"]["evidence"]["silence_seconds"] == 321.5
    assert sent["argv"] == ["$(touch x)"]
    assert sent["env"] == {
        "MEGATRON_RUN": "tr11-176B", "MEGATRON_INCIDENT": "hang", "MEGATRON_STATUS": "firing",
        "MEGATRON_SEVERITY": "critical", "MEGATRON_ITERATION": "4100", "MEGATRON_MESSAGE_ID": message_id(HANG),
    }  # fmt: skip


@pytest.mark.parametrize(("code", "permanent"), [(3, True), (75, False)])
def test_a_program_says_by_its_exit_whether_to_try_again(code: int, permanent: bool) -> None:
    """75 is sysexits' word for a temporary failure."""
    shell = f"echo no pager >&2; exit {code}"
    assert failure(built(f"type: command, command: [sh, -c, {shell!r}]")) == (f"exit {code}: no pager", permanent)


def test_a_program_that_is_not_there() -> None:
    """Said with its name, tried once."""
    assert failure(built("type: command, command: [/no/such/program]")) == (
        "/no/such/program cannot be started: No such file or directory", True,
    )  # fmt: skip


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """The timeout ends the whole group: a child that holds the pipe open holds nobody up."""
    pid = tmp_path / "pid"
    script = f"sleep 60 & echo $! > {pid}; wait"
    assert failure(built(f"type: command, timeout: 500ms, command: [sh, -c, {script!r}]")) == (
        "sh had not ended after 0.5 s and was killed", True,
    )  # fmt: skip
    stat = Path("/proc") / pid.read_text().strip() / "stat"
    for _ in range(1000):  # a process that was sent SIGKILL dies when a core has time for it
        if not _runs(stat):
            return
        time.sleep(0.01)
    pytest.fail("the child still runs after 10 s")


def _runs(stat: Path) -> bool:
    """Whether the process of this /proc/PID/stat is neither gone nor a zombie."""
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False
