"""What a short command loads: half of a short run is importing, and that creeps back."""

import subprocess
from pathlib import Path

import pytest

from megatron_monitor.simulate import Scenario, write
from tests.programs import PYTHON, slack

ROOT = Path(__file__).parents[1]

NEVER = (
    "asyncio", "ssl", "http", "urllib.request", "socketserver", "email", "subprocess",  # servers
    "prometheus_client", "h11", "uvicorn", "jinja2", "bcrypt", "watchdog", "rich", "smtplib",  # the daemon's libraries
    "regex", "difflib",  # a configuration that says something
    "megatron_monitor.daemon", "megatron_monitor.notifiers", "megatron_monitor.outputs",
    "megatron_monitor.simulate", "megatron_monitor.reports", "megatron_monitor.store",
)  # fmt: skip
"""Modules that reading a log to its end must not load, with what is below them."""
COMMANDS = {
    "help": ("--help",),
    "run": ("run", "--once", "LOG"),
    "replay": ("replay", "LOG"),
    "json": ("report", "--json", "LOG"),
    "markdown": ("report", "LOG"),
}
"""One after the other in one process: what a command must not load, those before it must not either."""
PROGRAM = """\
import ast, sys
from megatron_monitor.cli import main
for name, arguments in ast.literal_eval(sys.argv.pop()).items():
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        assert not end.code, name
    print("loaded", name, *sys.modules, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The modules that are there when a command has ended."""
    log = tmp_path_factory.mktemp("start") / "train.log"
    with log.open("wb") as stream:
        write(Scenario(iterations=20), stream)
    commands = {name: [str(log) if one == "LOG" else one for one in words] for name, words in COMMANDS.items()}
    done = subprocess.run(
        [PYTHON, "-c", PROGRAM, repr(commands)], cwd=ROOT, capture_output=True, text=True, timeout=slack(60)
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = (line.split() for line in done.stderr.splitlines() if line.startswith("loaded "))
    return {name: set(modules) for _, name, *modules in lines}


def test_help_loads_no_command(loaded: dict[str, set[str]]) -> None:
    """Who asks what there is waits for none of it."""
    assert [module for module in loaded["help"] if module.startswith("megatron_monitor.commands.")] == []


@pytest.mark.parametrize("command", ["run", "replay"])
def test_one_reading_loads_what_it_needs(loaded: dict[str, set[str]], command: str) -> None:
    """No server, no client, no watcher, no configuration language."""
    modules = loaded[command]
    assert "megatron_monitor.parsers.reader" in modules
    assert [module for module in sorted(modules) if any(f"{module}.".startswith(f"{name}.") for name in NEVER)] == []


@pytest.mark.parametrize("form", ["json", "markdown"])
def test_a_report_loads_what_its_format_needs(loaded: dict[str, set[str]], form: str) -> None:
    """Neither the tables of a terminal nor the templates of a page for others."""
    assert not loaded[form] & {"rich", "jinja2"}
