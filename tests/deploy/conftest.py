"""Real Prometheus, Alertmanager and their like on loopback, made from the files in deploy/, ended by their fixture."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import start  # noqa: F401 - the fixture that starts the daemon
from tests.e2e.test_daemon import training  # noqa: F401 - the fixture that writes a log
from tests.programs import Prometheus, prometheus, running

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules"


Attempt = Callable[..., str]


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempt]:
    """Start a program with `attempt(*command, listen=OPTION, ready=PATH)`; gives its address."""
    with ExitStack() as stack:
        yield lambda *command, **options: stack.enter_context(running(tmp_path, *command, **options))


StartPrometheus = Callable[..., Prometheus]


@pytest.fixture
def start_prometheus(tmp_path: Path) -> Iterator[StartPrometheus]:
    """Start Prometheus on a configuration, with options of its own if need be."""
    with ExitStack() as stack:
        yield lambda config, *options: stack.enter_context(
            prometheus(tmp_path, yaml.safe_dump(config, sort_keys=False), *options)
        )


def environment() -> dict[str, str]:
    """Of a program that must not read the user's own files."""
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
