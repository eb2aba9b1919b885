"""The observer without its optional parts: they are removed from a copy, and it watches a log all the same."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest

from tests.lines import line
from tests.programs import TETHERED, free_port, get, slack, wait

ROOT = Path(__file__).parents[1]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
(RULE,) = (one for one in CONTRACTS if one["name"] == "the observer imports no optional part")
PARTS = [name.removeprefix("megatron_monitor.") for name in RULE["forbidden_modules"]]
"""As the import rule names them."""


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python that finds the program without its optional parts."""
    target = tmp_path_factory.mktemp("bare")
    ignored = shutil.ignore_patterns("__pycache__", "assets")
    shutil.copytree(ROOT / "src" / "megatron_monitor", target / "megatron_monitor", ignore=ignored)
    for name in PARTS:
        shutil.rmtree(target / "megatron_monitor" / name)
    return {**os.environ, "PYTHONPATH": str(target)}


ACTS = re.compile(r"\b(scancel|sbatch|requeuehold)\b|State=DRAIN|\"(requeue|release|update)\",")
STARTS = re.compile(r"import subprocess|system\.process import|os\.(exec|spawn|system)")


def test_the_observer_has_no_code_that_acts_on_jobs() -> None:
    """Outside the remediator no module that can start a program names what cancels, requeues, drains or submits, and
    only its own command imports it.
    """
    package = ROOT / "monitor"
    texts = {path.relative_to(package).as_posix(): path.read_text() for path in package.rglob("*.py")}
    observer = {name: text for name, text in texts.items() if not name.startswith("remediator/")}
    starts = {name for name, text in observer.items() if STARTS.search(text)} - {"system/process.py"}
    assert starts >= {"slurm/client.py"}
    assert [name for name in starts if ACTS.search(texts[name])] == []
    assert STARTS.search(texts["remediator/commands.py"])
    assert ACTS.search(texts["remediator/commands.py"])
    assert {name for name, text in observer.items() if "megatron_monitor.remediator" in text} == {
        "commands/remediate.py"
    }


def test_their_commands_are_not_there(without: dict[str, str]) -> None:
    """`--help` lists what works, and each of these commands can be loaded."""
    command = [sys.executable, "-m", "megatron_monitor"]
    done = subprocess.run([*command, "--help"], env=without, capture_output=True, text=True, timeout=slack(60))
    listed = set(re.findall(r"^  ([a-z][a-z-]+)  +\S", done.stdout, re.MULTILINE))
    assert {"run", "replay", "check-config"} <= listed
    assert listed.isdisjoint({"report", "simulate", "forward", "advise", "remediate"})
    for name in listed:
        done = subprocess.run(
            [*command, name, "--help"], env=without, capture_output=True, text=True, timeout=slack(60)
        )
        assert done.returncode == 0, done.stderr


def test_it_watches_a_log(without: dict[str, str], tmp_path: Path) -> None:
    """Follows, judges, serves, saves and goes on."""
    log, errors = tmp_path / "train.log", tmp_path / "errors"
    log.write_text("".join(line(number) for number in range(1, 11)))
    for _ in range(2):
        address = f"127.0.0.1:{free_port()}"
        settings = ("--set", f"state_dir={tmp_path / 'state'}", "--listen", address)
        command = [*TETHERED, sys.executable, "-m", "megatron_monitor", "run", *settings, str(log)]
        with errors.open("ab") as stream:
            daemon = subprocess.Popen(command, env=without, stdout=stream, stderr=stream)
        try:
            wait(partial(_counts, address), 20.0, errors.read_text)
            get(f"http://{address}/")
        finally:
            daemon.terminate()
            daemon.wait(timeout=slack(60))
    assert "Traceback" not in errors.read_text()


def _counts(address: str) -> bool:
    try:
        return 'megatron_iterations_total{run="train"} 10' in get(f"http://{address}/metrics")
    except OSError:
        return False
