"""`export`: write the package's dashboards, rules, manifests and configuration into a directory."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import click

from megatron_monitor.commands.arguments import fail, warn

_ASSETS = Path(__file__).parents[1] / "assets"
"""Links in a checkout, files in an installed package."""
_GRAFANA = "https://grafana.example"
_RUNBOOK = "https://runbooks.example/megatron-monitor/runbook.md"


def _address(_: click.Context, __: click.Parameter, url: str) -> str:
    """Return the address. It is written between quotes of YAML and JSON, also where Prometheus expands a template."""
    if not re.fullmatch(r"https?://[\w.~:/?#@&=+%-]+", url, re.ASCII):
        raise click.BadParameter("expected an http or https address without quotes, spaces and braces")
    return url.rstrip("/")


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@click.option(
    "--grafana", default=_GRAFANA, metavar="URL", callback=_address, help="Address of Grafana, for links in alerts."
)
@click.option(
    "--runbook", default=_RUNBOOK, metavar="URL", callback=_address, help="Address of your copy of deploy/runbook.md."
)
@click.option("--force", is_flag=True, help="Overwrite files that differ.")
def export(directory: Path, grafana: str, runbook: str, force: bool) -> None:
    """Write the configuration, dashboards, rules and manifests of the installed package into DIR.

    Rules, dashboards and the chart's values contain the addresses of --grafana and --runbook. If a file in DIR differs
    from the package's, the file is named and nothing is written.

    \b
    Examples:
      megatron-monitor export site --grafana https://grafana.example --runbook https://wiki.example/runbook.md
      helm install megatron-monitor site/deploy/helm -n megatron-monitor --create-namespace
    """
    addresses = {_GRAFANA.encode(): grafana.encode(), _RUNBOOK.encode(): runbook.encode()}
    assets = {directory / name: _with(addresses, name, data) for name, data in _files()}
    differing = [
        path for path, data in assets.items() if path.exists() and (not path.is_file() or path.read_bytes() != data)
    ]
    if differing and not force:
        warn(*(f"{path}: differs from the package's" for path in differing))
        fail("nothing written; --force overwrites these files")
    for path, data in assets.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o755 if data.startswith(b"#!") else 0o644)
    click.echo(f"{len(assets)} files written to {directory}")


def _with(addresses: dict[bytes, bytes], name: str, data: bytes) -> bytes:
    """Return the file with these addresses. The chart has them in its values, and puts them into its own copies."""
    if name.startswith("deploy/helm/") and not name.endswith("/values.yaml"):
        return data
    for placeholder, address in addresses.items():
        data = data.replace(placeholder, address)
    return data


def _files() -> Iterator[tuple[str, bytes]]:
    """Yield each file's relative path and content."""
    for folder, _, names in sorted(os.walk(_ASSETS, followlinks=True)):
        for path in (Path(folder, name) for name in sorted(names)):
            if path.name != "Dockerfile":
                yield str(path.relative_to(_ASSETS)), path.read_bytes()
