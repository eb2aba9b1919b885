"""The console script, and `python -m megatron_monitor`: puts our packages before everything else, then runs.

A training repository often has a `monitor/` or `parsers/` of its own, and stands in PYTHONPATH or is where people
are. So what PYTHONPATH and the current directory hold comes last: it may add modules, as clusters do, and hides none
of ours, of our dependencies' or of Python's.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_HERE = Path(__file__).resolve().parent
ROOT = _HERE if (_HERE / "monitor").is_dir() else _HERE.parent  # installed, or the repository
"""The directory that holds `monitor` and `parsers`."""


def search_path(path: Sequence[str], environment: Mapping[str, str], root: str, here: str) -> list[str]:
    """`sys.path` for us: `root`, then what is installed, then PYTHONPATH and `here`, the current directory."""
    named = environment.get("PYTHONPATH")
    foreign = {os.path.abspath(part) for part in (named.split(os.pathsep) if named else ())} | {here}
    last = [part for part in path if os.path.abspath(part) in foreign]
    return [root, *(part for part in path if part not in last and part != root), *last]


def main() -> None:
    """Run the command line."""
    try:
        here = os.getcwd()
    except OSError:  # it was deleted
        here = ""
    sys.path[:] = search_path(sys.path, os.environ, str(ROOT), here)
    from monitor.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
