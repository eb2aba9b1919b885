"""What a short command loads: half of a short run is importing, and that creeps back."""

import subprocess
from pathlib import Path

import pytest

from megatron_monitor.simulate import Scenario, write
from tests.programs import INSTALLED, PYTHON, slack

ROOT = Path(__file__).parents[1]

NEVER = (
    "asyncio", "ssl", "http", "urllib.request", "socketserver", "email", "subprocess",  # servers
    "prometheus_client", "h11", "uvicorn", "jinja2", "bcrypt", "watchdog", "rich", "apprise",  # the daemon's libraries
    "regex", "difflib",  # a configuration that says something
    *(("yaml", "tempfile") if INSTALLED else ()),  # a checkout reads its formats from YAML files
    "megatron_monitor.daemon", "megatron_monitor.notifiers", "megatron_monitor.outputs",
    "megatron_monitor.simulate", "megatron_monitor.reports", "megatron_monitor.store",
)  # fmt: skip
"""Modules that reading a log to its end must not load, with what is below them."""


def loaded(*arguments: str) -> set[str]:
    """The modules that a command has loaded as it ends."""
    program = (
        "import sys, atexit\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from megatron_monitor.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [PYTHON, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=slack(60)
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Twenty iterations."""
    path = tmp_path / "train.log"
    with path.open("wb") as stream:
        write(Scenario(iterations=20), stream)
    return str(path)


def test_one_reading_loads_what_it_needs(log: str) -> None:
    """No server, no client, no watcher, no configuration language."""
    modules = loaded("run", "--once", log)
    assert "megatron_monitor.parsers.reader" in modules
    assert [module for module in sorted(modules) if any(f"{module}.".startswith(f"{name}.") for name in NEVER)] == []


def test_what_is_loaded_late_is_there_when_it_is_needed(log: str) -> None:
    """The same reading with a pattern of one's own."""
    pattern = "patterns=[{name: own, match: 'iteration', kind: progress}]"
    modules = loaded("run", "--once", "--set", pattern, log)
    assert {"yaml", "regex", "megatron_monitor.parsers.formats.custom"} <= modules


def test_a_replay_loads_no_more(log: str) -> None:
    """The same for the other long readings."""
    for arguments in (("replay", log), ("parse", log)):
        modules = loaded(*arguments)
        assert [module for module in modules if any(f"{module}.".startswith(f"{name}.") for name in NEVER)] == []


@pytest.mark.parametrize(("form", "library"), [("csv", None), ("json", None), ("markdown", None), ("html", "jinja2")])
def test_a_report_loads_what_its_format_needs(log: str, form: str, library: str | None) -> None:
    """Neither the tables of a terminal nor the templates of a page for others."""
    assert loaded("report", "--format", form, log) & {"rich", "jinja2"} == ({library} if library else set())


def test_help_loads_no_command() -> None:
    """Who asks what there is waits for none of it."""
    assert [module for module in loaded("--help") if module.startswith("megatron_monitor.commands.")] == []
