"""`completion`: print the script by which a shell completes commands and options."""

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

_SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options in SHELL. Bash must be 4.4 or later.

    \b
    Examples:
      eval "$(megatron-monitor completion bash)"        # in ~/.bashrc; zsh: in ~/.zshrc
      megatron-monitor completion fish | source         # in ~/.config/fish/config.fish
    """
    click.echo(
        _SHELLS[shell](context.find_root().command, {}, "megatron-monitor", "_MEGATRON_MONITOR_COMPLETE").source()
    )
