"""What all tests share: hypothesis profiles, where real logs may be, and whether end-to-end tests are required."""

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, settings

from megatron_monitor.core.quarantine import Quarantine

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("MEGATRON_MONITOR_SHARED", ROOT.parent / "shared"))
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
settings.register_profile("fuzz", deadline=None, max_examples=2000, suppress_health_check=list(HealthCheck))
settings.load_profile("default")


def examples(count: int) -> settings:
    """For a property that takes so many examples by default, and twenty times as many with the profile `fuzz`."""
    return settings(max_examples=count * settings().max_examples // 100)


def spread(rows: Sequence[Any], every: int) -> list[Any]:
    """Parameters of a test: of these rows one in so many is in `make test`, the others are in `make nightly`."""
    marks = [() if place % every == 0 else pytest.mark.nightly for place in range(len(rows))]
    tuples = (row if isinstance(row, list | tuple) else (row,) for row in rows)
    return [pytest.param(*row, marks=mark) for row, mark in zip(tuples, marks, strict=True)]


# Prometheus's tools and the like live for seconds, of which a fifth went into Go's collector.
os.environ.setdefault("GOGC", "400")


def loaded(text: str) -> Any:
    """What a YAML text says, by the parser in C: that in Python takes ten times as long."""
    return yaml.load(text, Loader=yaml.CSafeLoader)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """What the core puts aside (monitor/core/quarantine.py) is a bug that it hides: of each test but those of that
    room.
    """
    failed: list[Exception] = []
    note = Quarantine.note

    def noted(self: Quarantine, room: Any, name: str, error: Exception) -> str:
        failed.append(error)
        return note(self, room, name, error)

    if item.path.name != "test_quarantine.py":
        Quarantine.note = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        Quarantine.note = note  # type: ignore[method-assign]
    if failed:
        raise failed[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--golden` writes the golden files anew."""
    parser.addoption("--golden", action="store_true", help="write the golden files anew")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that read real logs skip where there are none; the end-to-end tools may be required."""
    absent = {name for name, place in (("real_logs", REAL_LOGS), ("field_logs", FIELD_LOGS)) if not place.is_dir()}
    required = os.environ.get("MEGATRON_MONITOR_REQUIRE_E2E") == "1"
    lacking = {marker: [tool for tool in tools if not shutil.which(tool)] for marker, tools in TOOLS.items()}
    for item in items:
        if any(item.get_closest_marker(name) for name in absent):
            item.add_marker(pytest.mark.skip(reason="no real logs beside the project"))
        for marker, missing in lacking.items():
            if missing and not required and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"not installed: {', '.join(missing)}"))
