"""The program as it is installed, or the tree's: `run ...`, each a fork (forks.py)."""

import sys
from pathlib import Path

from megatron_monitor import daemon  # noqa: F401 - what is imported here is not imported by each fork
from megatron_monitor.cli import main
from megatron_monitor.commands import run  # noqa: F401

sys.path.append(str(Path(__file__).parents[2]))
from tests.e2e.forks import forked

sys.path.pop()

if __name__ == "__main__":
    sys.argv[1:] = forked(int(sys.argv[1]))
    main()
