"""The arrows of ARCHITECTURE.md hold in the imports."""

import subprocess
import sys
from pathlib import Path

from tests.programs import slack

ROOT = Path(__file__).parents[1]


def test_arrows_point_down() -> None:
    """import-linter finds no import that goes up, and no file, clock or thread in parsers/."""
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=slack(120))
    assert done.returncode == 0, done.stdout + done.stderr
