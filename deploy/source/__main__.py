"""`python -m deploy.source`: write the rules (`make rules`)."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from deploy.source import daemon, runs
from deploy.source.rule import Settings, yaml_text

FOLDER = Path(__file__).parents[1]


def files(settings: Settings) -> dict[str, str]:
    """Path below deploy/ -> text."""
    return {
        "prometheus/rules/runs.yml": yaml_text(runs.groups(settings), settings, runs.HEAD),
        "prometheus/rules/monitor.yml": yaml_text(daemon.groups(settings), settings, daemon.HEAD),
    }


def main() -> None:
    """Write them below a folder."""
    parser = argparse.ArgumentParser(prog="python -m deploy.source", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="where to write (default: deploy/)")
    for one in fields(Settings):
        parser.add_argument(f"--{one.name}", type=type(one.default), default=one.default)
    arguments = vars(parser.parse_args())
    folder: Path = arguments.pop("folder")
    for path, text in files(Settings(**arguments)).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


if __name__ == "__main__":
    main()
