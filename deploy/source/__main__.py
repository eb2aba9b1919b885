"""`python -m deploy.source FOLDER`: write what a site copies. Without a folder: the relay in deploy/prometheus/rules
and Grafana's form of all alerts anew (`make rules`).
"""

import argparse
from dataclasses import fields
from pathlib import Path

from deploy.source.manifests import alerts, helm, kubernetes, site
from deploy.source.relay import written
from deploy.source.rules import RULES
from deploy.source.selection import Settings, problem


def main() -> None:
    """Write them below a folder."""
    parser = argparse.ArgumentParser(prog="python -m deploy.source", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="where to write")
    for one in fields(Settings):
        parser.add_argument(f"--{one.name}", type=type(one.default), default=one.default)
    kinds = parser.add_mutually_exclusive_group()
    for made, what in ((kubernetes, "a kustomize base"), (helm, "a Helm chart")):
        text = f"write {what} into the folder instead"
        kinds.add_argument(f"--{made.__name__}", action="store_const", dest="made", const=made, default=site, help=text)
    arguments = vars(parser.parse_args())
    folder: Path | None = arguments.pop("folder")
    made = arguments.pop("made")
    settings = Settings(**arguments)
    if wrong := problem(settings):
        parser.error(wrong)
    if folder is None and (settings != Settings() or made is not site):
        parser.error("name a folder: what is in deploy/ is everybody's")
    if folder and folder.resolve() == RULES.parents[1]:
        parser.error(f"{folder} holds what it is made of: name another folder")
    if folder is None:
        (RULES / "runs.yml").write_text(written((RULES / "runs.yml").read_text()))
    texts = made(settings) if folder else {"grafana/alerts.yaml": alerts(settings)}
    for path, text in texts.items():
        file = (folder or RULES.parents[1]) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
