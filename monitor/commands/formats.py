"""`formats`: the line formats that are built in; `formats NAME` prints one's file, to start an own one from."""

from pkgutil import get_data

import click

from megatron_monitor.parsers.declared.schema import built_in


@click.command()
@click.argument("name", required=False)
def formats(name: str | None) -> None:
    r"""List the line formats that are built in, or print the file of NAME.

    \b
    Example:
      megatron-monitor formats torchtitan > formats/ours.yaml
      megatron-monitor check-config config.yaml      # with `formats: [formats]` in it: runs the samples
    """
    known = {each.name: each.about for each in built_in()}
    if name is None:
        width = max(map(len, known))
        for each, about in known.items():
            click.echo(f"{each:<{width}}  {about}")
        return
    if name not in known:
        raise click.BadParameter(f"no format {name!r}; there are {', '.join(known)}", param_hint="NAME")
    click.echo((get_data("megatron_monitor.parsers.formats", f"{name}.yaml") or b"").decode(), nl=False)
