"""`check-config`: print every error of a configuration file with its path."""

from pathlib import Path

import click

from megatron_monitor.commands.arguments import fail, set_option
from megatron_monitor.config import ConfigError, load


@click.command("check-config")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@set_option
def check_config(file: Path, overrides: tuple[str, ...]) -> None:
    """Check FILE: print every error with its path in the file.

    The TLS certificates are loaded, too.
    """
    try:
        config = load(file, overrides)
    except ConfigError as error:
        fail(error, code=2)
    if config.web.tls_server_config is not None:
        from megatron_monitor.serve.tls import Tls, TlsError  # loads OpenSSL

        try:
            Tls(config.web.tls_server_config)
        except TlsError as error:
            fail(f"{file}: web.tls_server_config: {error}", code=2)
    patterns = sum(len(watch.paths) for watch in config.runs)
    click.echo(f"{file}: good; {patterns} paths, {len(config.notifiers)} notifiers")
    if config.empty:
        click.echo("nothing to follow: `runs` is empty, so `run` needs a PATH as well")
    for log_format in config.formats:
        click.echo(f"format {log_format.name}: all {len(log_format.samples)} samples give the expected events")
