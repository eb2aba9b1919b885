"""`export`: dashboards, rules, manifests and the configuration out of the installed package, into a directory."""

import os
from collections.abc import Iterator
from pathlib import Path

import click

from megatron_monitor.commands.arguments import fail, warn

_ASSETS = Path(__file__).parents[1] / "assets"
"""Links in a checkout, files in an installed package."""


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@click.option("--force", is_flag=True, help="Write over files that differ.")
def export(directory: Path, force: bool) -> None:
    """Write the configuration, dashboards, rules and manifests of the installed package into DIR.

    A file that is there and differs is left, and named; then nothing is written.
    """
    found = dict(_files())
    there = {name: directory / name for name in found if (directory / name).exists()}
    differing = [name for name, path in there.items() if not path.is_file() or path.read_bytes() != found[name]]
    if differing and not force:
        warn(*(f"{directory / name}: differs from ours" for name in differing))
        fail("nothing written; --force writes over them")
    try:
        for name, data in found.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o755 if data.startswith(b"#!") else 0o644)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    click.echo(f"{len(found)} files written to {directory}")


def _files() -> Iterator[tuple[str, bytes]]:
    """Name below the directory, and content."""
    for folder, _, names in sorted(os.walk(_ASSETS, followlinks=True)):
        for path in (Path(folder, name) for name in sorted(names)):
            if path.name != "Dockerfile":
                yield str(path.relative_to(_ASSETS)), path.read_bytes()
