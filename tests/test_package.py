"""One package is installed: importing it changes no `sys.path` and takes nobody's `monitor` or `parsers` away."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.programs import PYTHON, slack

FOREIGN = ("monitor", "parsers")
IMPORTING = """
import sys
path = list(sys.path)
{first}
from megatron_monitor.archive import read_run
import megatron_monitor.parsers.reader
{last}
assert sys.path == path, sys.path
assert monitor.OWNER == parsers.OWNER == "training", (monitor, parsers)
assert read_run.__module__.startswith("megatron_monitor.")
"""


@pytest.mark.parametrize("first", [True, False], ids=["theirs before ours", "ours before theirs"])
@pytest.mark.parametrize("named", ["current directory", "PYTHONPATH"])
def test_a_training_keeps_its_own_packages(tmp_path: Path, first: bool, named: str) -> None:
    """A notebook of a training that has a `monitor` and a `parsers` of its own."""
    for name in FOREIGN:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('OWNER = "training"\n')
    theirs = "import monitor, parsers"
    program = IMPORTING.format(first=theirs if first else "", last="" if first else theirs)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if named == "PYTHONPATH":
        environment["PYTHONPATH"] = str(tmp_path)
    cwd = tmp_path if named == "current directory" else tmp_path / "monitor"
    done = subprocess.run(
        [PYTHON, "-c", program], cwd=cwd, env=environment, capture_output=True, text=True, timeout=slack(60)
    )
    assert done.returncode == 0, done.stderr
