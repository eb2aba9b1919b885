"""`notify --test NAME`: send one test message to a configured notifier and print the receiver's answer."""

import click

from megatron_monitor.commands.arguments import ConfigOptions, fail, with_config
from megatron_monitor.notifiers import DeliveryError
from megatron_monitor.system.clock import SystemClock


@click.command()
@click.option("--test", "name", required=True, metavar="NAME", help="The notifier's `name:` in the configuration.")
@with_config
def notify(name: str, given: ConfigOptions) -> None:
    """Send one test message to a notifier and print the answer. It fails unless the receiver accepts it.

    The severity of the message is the notifier's `minimum_severity`.

    \b
    Example:
      megatron-monitor notify --config config.yaml --test on-call
    """
    config = given.configured(())
    notifier = next((candidate for candidate in config.notifiers if candidate.name == name), None)
    if notifier is None:
        names = ", ".join(configured.name for configured in config.notifiers) or "none"
        fail(f"no notifier is called {name}; configured: {names}", code=2)
    try:
        click.echo(f"{name}: {notifier.send(notifier.test_message(SystemClock().wall()))}")
    except DeliveryError as error:
        fail(f"{name}: {error}", *error.rest.splitlines())
