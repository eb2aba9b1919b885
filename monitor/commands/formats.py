"""`formats`: list the built-in line formats; `formats NAME` prints one as a template for your own."""

from pkgutil import get_data

import click

from megatron_monitor.parsers.declared.schema import built_in


@click.command()
@click.argument("name", required=False)
def formats(name: str | None) -> None:
    """List the built-in line formats, or print the file of format NAME.

    \b
    Example:
      megatron-monitor formats torchtitan > formats/ours.yaml
      megatron-monitor check-config config.yaml      # with `formats: [formats/ours.yaml]` in it: runs the samples
    """
    summaries = {log_format.name: log_format.about for log_format in built_in()}
    if name is None:
        width = max(map(len, summaries))
        for format_name, summary in summaries.items():
            click.echo(f"{format_name:<{width}}  {summary}")
        return
    if name not in summaries:
        raise click.BadParameter(f"no format {name!r}; there are {', '.join(summaries)}", param_hint="NAME")
    click.echo((get_data("megatron_monitor.parsers.formats", f"{name}.yaml") or b"").decode(), nl=False)
