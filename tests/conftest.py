"""What all tests share: hypothesis profiles, where real logs may be, and whether end-to-end tests are required."""

import functools
import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, settings
from msgspec import inspect
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from megatron_monitor.cli import GARBAGE
from megatron_monitor.core.aside import Aside
from tests import simulated as simulated  # further forms of timers, for all tests

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
REAL_LOGS = SHARED / "logs"
FIELD_LOGS = SHARED / "field-logs"
"""Logs that others wrote, beside the project; tests that read them are marked `real_logs` and `field_logs`."""
TOOLS = {
    "promtool": ("promtool",),
    "chromium": ("chromium",),
    "prometheus": ("prometheus", "promtool", "prometheus-alertmanager", "amtool"),
    "outputs": ("prometheus-node-exporter", "prometheus-pushgateway", "victoria-metrics", "vmalert"),
    "shellcheck": ("shellcheck",),
    "systemd": ("systemd-analyze",),
    "compose": ("docker-compose",),
    "helm": ("helm",),
    "slurm": ("sbatch", "srun", "scontrol"),
}
"""Programs that the tests of a marker start; Debian's packages are listed in .ci/run, which also brings Helm."""

# Derandomised, so that red means red; no deadline, so that a busy machine is no failure.
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


# Seven thousand tests are objects that stay: while they are made nothing is garbage, and afterwards no collection looks
# at them.
gc.disable()
# What a configuration is made of takes 5 ms to find out. The program reads one in its life, the tests read thousands.
inspect.type_info = functools.cache(inspect.type_info)
# Prometheus's tools and the like live for seconds, of which a fifth went into Go's collector.
os.environ.setdefault("GOGC", "400")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """The tests are there: from now on what they leave is collected, as often as the program does it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE)
    gc.enable()


def loaded(text: str) -> Any:
    """What a YAML text says, by the parser in C: that in Python takes ten times as long."""
    return yaml.load(text, Loader=yaml.CSafeLoader)


WAITING = (
    "test_alert_path.py", "test_slurm.py", "test_page.py", "test_nobody_looks.py", "test_daemon.py", "test_demo.py",
    "test_outputs.py", "test_scenarios.py", "test_kafka.py", "test_queries.py", "test_rules.py", "test_files.py",
)  # fmt: skip
"""Files that wait for real programs for longer than others."""
COMPUTING = ("test_corpus.py", "test_bounded_numbers.py", "test_redos.py", "test_launches.py")
"""Files that take the processor for longer than others."""


def _place(item: pytest.Item) -> tuple[int, int]:
    """The place of its file in the order: what waits first, what computes last, what takes longest at both ends."""
    name = item.path.name
    if name in COMPUTING:
        return 2, COMPUTING.index(name)
    waits = item.path.relative_to(ROOT).parts[1] in ("deploy", "e2e", "grafana", "slurm")
    return 0 if waits else 1, WAITING.index(name) if waits and name in WAITING else len(WAITING)


class BothEnds(LoadFileScheduling):
    """A file is one worker's, so that its servers are started once. Every third worker takes files from the end of the
    order: it computes while the others wait.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        if int(node.gateway.id.removeprefix("gw")) % 3 == 1:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """As `make test` asks for it; any other distribution is pytest-xdist's own."""
    return BothEnds(config, log) if config.getvalue("dist") == "loadfile" else None


SUMMARY: pytest.StashKey[list[str]] = pytest.StashKey()
"""Lines that a test wants to see at the end of the session."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """What the core puts aside (monitor/core/aside.py) is a bug that it hides: of each test but those of that room."""
    failed: list[Exception] = []
    note = Aside.note

    def noted(self: Aside, room: Any, name: str, error: Exception) -> str:
        failed.append(error)
        return note(self, room, name, error)

    if item.path.name != "test_aside.py":
        Aside.note = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        Aside.note = note  # type: ignore[method-assign]
    if failed:
        raise failed[0]


def pytest_configure(config: pytest.Config) -> None:
    """Nothing is said yet."""
    config.stash[SUMMARY] = []


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands its lines over."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["summary"] = session.config.stash[SUMMARY]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker's lines; one that crashed has none."""
    node.config.stash[SUMMARY] += getattr(node, "workeroutput", {}).get("summary", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """All lines, before pytest's own last one."""
    for row in config.stash[SUMMARY]:
        terminalreporter.write_line(row)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--golden` writes the golden files anew."""
    parser.addoption("--golden", action="store_true", help="write the golden files anew")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that read real logs skip where there are none; the end-to-end tools may be required. In order of time."""
    items.sort(key=_place)
    absent = {name for name, place in (("real_logs", REAL_LOGS), ("field_logs", FIELD_LOGS)) if not place.is_dir()}
    required = os.environ.get("MEGATRON_MONITOR_REQUIRE_E2E") == "1"
    lacking = {marker: [tool for tool in tools if not shutil.which(tool)] for marker, tools in TOOLS.items()}
    for item in items:
        if any(item.get_closest_marker(name) for name in absent):
            item.add_marker(pytest.mark.skip(reason="no real logs beside the project"))
        for marker, missing in lacking.items():
            if missing and not required and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"not installed: {', '.join(missing)}"))
