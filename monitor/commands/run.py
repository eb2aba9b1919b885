"""`run`: start the daemon; `run --once`: read the logs to the end and print the metrics."""

import logging
import sys
from contextlib import nullcontext
from functools import partial

import click

from megatron_monitor.commands.arguments import ConfigOptions, fail, spooled, warn, with_config
from megatron_monitor.commands.log_lines import start_logging

_log = logging.getLogger(__name__)


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH_OR_GLOB]...")
@with_config
@click.option("--listen", help="Address of the page and the metrics, e.g. 0.0.0.0:9843.")
@click.option("--name", help="Follow all PATHs as one run of this name.")
@click.option("--once", is_flag=True, help="Read the logs to the end, print the metrics, exit.")
def run(paths: tuple[str, ...], given: ConfigOptions, listen: str | None, name: str | None, once: bool) -> None:
    """Follow training logs, judge the runs, serve the metrics and the page. `-` is standard input.

    \b
    Examples:
      megatron-monitor run '/logs/**/*.out'
      megatron-monitor run --config config.yaml
      megatron-monitor run --once finished.log | grep megatron_iteration
      kubectl logs -f train-worker-0 | megatron-monitor run -
    """
    if listen is not None:
        given = given._replace(overrides=(*given.overrides, f"listen={listen}"))
    if name is not None:  # a job's name may hold characters that a run's name may not
        name = "".join(char if char.isprintable() else "_" for char in name).strip()[:200].strip() or None
    with spooled(paths) if once else nullcontext(paths) as files:
        _run(given, files, name, once=once)


def _run(given: ConfigOptions, paths: tuple[str, ...], name: str | None, *, once: bool) -> None:
    config = given.configured(paths, name)
    if config.empty or (once and not config.runs):
        fail("nothing to follow: give a PATH, or set `runs` in the configuration (see config.yaml)", code=2)
    if once:
        from megatron_monitor.once import metrics_page

        page, problems, unreadable = metrics_page(config)
        warn(*problems)
        click.echo(page, nl=False)
        sys.exit(1 if unreadable else 0)
    start_logging(config)
    from megatron_monitor.daemon import StartError, serve  # slow to import; --once needs none of it

    try:
        serve(config, partial(given.load, paths, name))
    except StartError as error:
        fail(error)
