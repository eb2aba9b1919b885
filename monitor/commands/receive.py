"""`receive`: write logs that agents push over the network to files, which `run` follows."""

import click

from megatron_monitor.commands.arguments import ConfigOptions, fail, with_config
from megatron_monitor.commands.log_lines import start_logging
from megatron_monitor.receiver.server import serve
from megatron_monitor.serve.tls import TlsError
from megatron_monitor.store import StateInUseError


@click.command()
@with_config
def receive(given: ConfigOptions) -> None:
    """Write logs that agents push (Loki, OTLP/HTTP) to files, which `run` with the same configuration follows.

    \b
    Examples:
      megatron-monitor receive --config config.yaml
      megatron-monitor receive --set receiver.listen=0.0.0.0:9844
    """
    config = given.configured(())
    if config.receiver.listen is None:
        fail("receiver.listen: set it, for example to 0.0.0.0:9844", code=2)
    start_logging(config)
    try:
        serve(config, lambda: given.load(()))
    except (OSError, StateInUseError, TlsError) as error:
        fail(f"cannot receive on {config.receiver.listen}: {error}")
