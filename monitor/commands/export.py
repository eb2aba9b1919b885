"""`export`: write the package's dashboards, rules, manifests and configuration into a directory."""

import os
from collections.abc import Iterator
from pathlib import Path

import click

from megatron_monitor.commands.arguments import fail, warn

_ASSETS = Path(__file__).parents[1] / "assets"
"""Links in a checkout, files in an installed package."""


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@click.option("--force", is_flag=True, help="Overwrite files that differ.")
def export(directory: Path, force: bool) -> None:
    """Write the configuration, dashboards, rules and manifests of the installed package into DIR.

    If a file in DIR differs from the package's, the file is named and nothing is written.
    """
    assets = {directory / name: data for name, data in _files()}
    differing = [
        path for path, data in assets.items() if path.exists() and (not path.is_file() or path.read_bytes() != data)
    ]
    if differing and not force:
        warn(*(f"{path}: differs from the package's" for path in differing))
        fail("nothing written; --force overwrites these files")
    try:
        for path, data in assets.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o755 if data.startswith(b"#!") else 0o644)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    click.echo(f"{len(assets)} files written to {directory}")


def _files() -> Iterator[tuple[str, bytes]]:
    """Yield each file's relative path and content."""
    for folder, _, names in sorted(os.walk(_ASSETS, followlinks=True)):
        for path in (Path(folder, name) for name in sorted(names)):
            if path.name != "Dockerfile":
                yield str(path.relative_to(_ASSETS)), path.read_bytes()
