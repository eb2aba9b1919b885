"""What all tests share: hypothesis profiles, where real logs may be, and whether end-to-end tests are required."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
REAL_LOGS = ROOT.parent / "shared" / "logs"

# Derandomised, so that red means red; no deadline, so that a busy machine is no failure.
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--golden` writes the golden files anew."""
    parser.addoption("--golden", action="store_true", help="write the golden files anew")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that read real logs skip where there are none; the end-to-end tools may be required."""
    required = os.environ.get("MEGATRON_MONITOR_REQUIRE_E2E") == "1"
    for item in items:
        if item.get_closest_marker("real_logs") and not REAL_LOGS.is_dir():
            item.add_marker(pytest.mark.skip(reason="no real logs beside the project"))
        if item.get_closest_marker("promtool") and not shutil.which("promtool") and not required:
            item.add_marker(pytest.mark.skip(reason="promtool is not installed (Debian: prometheus)"))
        if item.get_closest_marker("prometheus") and not shutil.which("prometheus") and not required:
            item.add_marker(pytest.mark.skip(reason="prometheus is not installed (Debian: prometheus)"))
        if item.get_closest_marker("chromium") and not shutil.which("chromium") and not required:
            item.add_marker(pytest.mark.skip(reason="chromium is not installed"))
