"""`python -m deploy.source`: write the rules and the manifests (`make rules`)."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path

from deploy.source import daemon, goodput, runs
from deploy.source.manifests import dashboards, manifests
from deploy.source.rule import yaml_text
from deploy.source.settings import Settings

FOLDER = Path(__file__).parents[1]


FILES = {"runs": runs, "monitor": daemon, "goodput": goodput}


def files(settings: Settings) -> dict[str, str]:
    """Path below deploy/ -> text: what is committed."""
    return {
        f"prometheus/rules/{name}.yml": yaml_text(module.groups(settings), settings, module.HEAD)
        for name, module in FILES.items()
    }


def site(settings: Settings) -> dict[str, str]:
    """Path below a folder -> text: what a site copies, its dashboards with it."""
    boards = {
        f"grafana/dashboards/{name}.json": json.dumps(board, indent=2, sort_keys=True) + "\n"
        for name, board in dashboards(settings).items()
    }
    return files(settings) | boards


def kubernetes(settings: Settings) -> dict[str, str]:
    """Name -> text: a kustomize base, for `kubectl apply -k`."""
    return manifests([group for module in FILES.values() for group in module.groups(settings)], settings)


def main() -> None:
    """Write them below a folder."""
    parser = argparse.ArgumentParser(prog="python -m deploy.source", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="where to write (default: deploy/)")
    for one in fields(Settings):
        parser.add_argument(f"--{one.name}", type=type(one.default), default=one.default)
    parser.add_argument(
        "--kubernetes", action="store_true", help="write manifests into the folder, not the rules' files"
    )
    arguments = vars(parser.parse_args())
    folder: Path = arguments.pop("folder")
    own = folder.resolve() == FOLDER  # where the dashboards lie beside it already
    made = kubernetes if arguments.pop("kubernetes") else files if own else site
    for path, text in made(Settings(**arguments)).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


if __name__ == "__main__":
    main()
