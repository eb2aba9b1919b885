"""`python -m deploy.source`: write the rules and the manifests (`make rules`)."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path

from deploy.source import daemon, goodput, runs
from deploy.source.chart import chart, marked
from deploy.source.manifests import dashboards, manifests
from deploy.source.rule import yaml_text
from deploy.source.selection import problem
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


def helm(settings: Settings) -> dict[str, str]:
    """Path -> text: a chart, for `helm install`."""
    marks = marked(settings)
    return chart([group for module in FILES.values() for group in module.groups(marks)], settings)


def main() -> None:
    """Write them below a folder."""
    parser = argparse.ArgumentParser(prog="python -m deploy.source", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="where to write (default: deploy/)")
    for one in fields(Settings):
        parser.add_argument(f"--{one.name}", type=type(one.default), default=one.default)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--kubernetes", action="store_true", help="write a kustomize base into the folder instead")
    kinds.add_argument("--helm", action="store_true", help="write a Helm chart into the folder instead")
    arguments = vars(parser.parse_args())
    folder: Path = arguments.pop("folder")
    own = folder.resolve() == FOLDER  # where the dashboards lie beside it already
    made = files if own else site
    for name, other in (("kubernetes", kubernetes), ("helm", helm)):
        made = other if arguments.pop(name) else made
    settings = Settings(**arguments)
    if wrong := problem(settings):
        parser.error(wrong)
    for path, text in made(settings).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


if __name__ == "__main__":
    main()
