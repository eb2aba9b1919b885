"""`check-config`: print every error of a configuration file with its path."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import click
from msgspec.structs import asdict

from megatron_monitor.commands.arguments import ConfigOptions, fail, set_option, warn
from megatron_monitor.config import Config


@click.command("check-config")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@set_option
def check_config(file: Path, overrides: tuple[str, ...]) -> None:
    """Check FILE: print every error with its path in the file.

    The TLS certificates are loaded, too. A missing file of a notifier is named and is no error, because it is read at
    each delivery.
    """
    config = ConfigOptions(file, overrides).configured(())
    if config.web.tls_server_config is not None:
        from megatron_monitor.serve.tls import Tls, TlsError  # loads OpenSSL

        try:
            Tls(config.web.tls_server_config)
        except TlsError as error:
            fail(f"{file}: web.tls_server_config: {error}", code=2)
    patterns = sum(len(watch.paths) for watch in config.runs)
    warn(*_missing_secrets(config))
    click.echo(f"{file}: good; {patterns} paths, {len(config.notifiers)} notifiers")
    if config.empty:
        click.echo("nothing to follow: `runs` is empty, so `run` needs a PATH as well")
    for log_format in config.formats:
        click.echo(f"format {log_format.name}: all {len(log_format.samples)} samples give the expected events")


def _missing_secrets(config: Config) -> Iterator[str]:
    """Yield a message for each missing file of a notifier, by the keys `..._file` and `header_files`."""
    for notifier in config.notifiers:
        keys = {key: value for key, value in asdict(notifier).items() if value and key.endswith(("_file", "_files"))}
        for key, value in keys.items():
            for path in value.values() if isinstance(value, Mapping) else [value]:
                if not Path(path).exists():
                    yield f"notifiers: {notifier.name}: {key}: {path}: No such file or directory"
