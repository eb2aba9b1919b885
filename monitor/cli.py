"""The command line. Exit 0 done, 1 failed while working, 2 wrong usage or configuration."""

from __future__ import annotations

import click

from monitor import __version__
from monitor.commands.check_config import check_config
from monitor.commands.demo import demo
from monitor.commands.explain import explain
from monitor.commands.parse import parse
from monitor.commands.replay import replay_command
from monitor.commands.run import run
from monitor.commands.simulate import simulate


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="megatron-monitor")
def main() -> None:
    r"""Tail Megatron-DeepSpeed training logs, tell hangs, export Prometheus metrics.

    \b
    Start here:
      megatron-monitor demo                     a simulated run with a fault, and the page to open
      megatron-monitor run /logs/tr11/main.txt  follow a log; http://127.0.0.1:9843/ shows it
      megatron-monitor run --once LOG           read to the end, print the metrics
    """


for command in (run, demo, replay_command, simulate, parse, explain, check_config):
    main.add_command(command)
