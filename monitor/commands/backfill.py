"""`backfill`: the history of finished logs as OpenMetrics with time stamps, for promtool."""

import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from megatron_monitor.backfill import Moment, Spool, UndatedError, history
from megatron_monitor.commands.arguments import (
    POSITIVE_DURATION,
    Given,
    absolute_of,
    by_run,
    say,
    spooled,
    with_config,
    written_at,
)
from megatron_monitor.commands.progress import tracked
from megatron_monitor.config import Config
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.reading import dated_events


def zone(value: str) -> tzinfo:
    """`UTC`, `Europe/Paris`: of the system's time zone data."""
    try:
        return UTC if value.upper() == "UTC" else ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise click.BadParameter(f"{value!r} is no time zone that this system knows") from error


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier() or not name.isascii() or name.startswith("__") or name == "run":
        raise click.BadParameter(f"{text!r}: write NAME=VALUE, and not run", param_hint="--label")
    return name, value


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File; standard output if none.")
@click.option(
    "--step",
    type=POSITIVE_DURATION,
    default="15s",
    show_default=True,
    help="As often as Prometheus would have scraped: what dashboards expect of live data.",
)
@click.option("--timezone", "zone", type=zone, default="UTC", show_default=True, help="Zone of the times in the logs.")
@click.option("--start", help="When logs that print no times began: ISO 8601 (in --timezone) or Unix seconds.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label more, such as job=megatron.")
@with_config
def backfill(
    paths: tuple[str, ...], output: Path | None, step: float, zone: tzinfo, start: str | None, labels: tuple[str, ...],
    given: Given,
) -> None:  # fmt: skip
    r"""Write the history of finished logs as OpenMetrics with time stamps, for `promtool tsdb create-blocks-from`.

    \b
    Examples:
      megatron-monitor backfill /logs/tr11 -o history.om --timezone Europe/Paris --label job=megatron
      promtool tsdb create-blocks-from openmetrics history.om /var/lib/prometheus
      megatron-monitor backfill old.log --start 2022-03-11T11:42:00 -o history.om     a log without times

    A Prometheus deletes what is older than its retention time, backfilled or not.
    """
    extra = dict(_label(text) for text in labels)
    began = _instant(start, zone) if start is not None else None
    with spooled(paths) as files, tempfile.TemporaryDirectory(prefix="megatron-monitor-") as folder:
        config = given.configured(files)
        spool = Spool(Path(folder), extra)
        complete, runs = True, by_run(files, config)
        for name, logs in tracked(runs.items(), len(runs)):
            sources = {absolute_of(path): _read(path, config) for path in logs}
            moments = history(config, sources, step, zone, began, written_at(logs))
            complete = _fill(spool, name, moments) and complete
        with output.open("w", encoding="utf-8") if output is not None else nullcontext(sys.stdout) as stream:
            spool.write(stream)
    if spool.first is not None and spool.last is not None:
        ends = [datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds") for at in (spool.first, spool.last)]
        click.echo(f"{spool.points} samples from {ends[0]} to {ends[1]}", err=True)
    sys.exit(0 if complete and spool.points else 1)


def _fill(spool: Spool, name: str, moments: Iterable[Moment]) -> bool:
    """One run's history into the spool; False, with a message, where it cannot be read or dated."""
    shown = 0
    try:
        for moment in moments:
            spool.add(moment.run, moment.at, moment.samples)
            shown += 1
    except UndatedError:
        say(f"{name}: no line prints a time; give --start")
        return False
    except OSError as error:
        say(f"{error.filename or name}: {error.strerror or error}")
        return False
    if not shown:
        say(f"{name}: no training line")
    return True


def _read(path: str, config: Config) -> Iterator[LogEvent]:
    with open(path, "rb") as stream:
        yield from dated_events(stream, config)


def _instant(text: str, zone: tzinfo) -> float:
    with suppress(ValueError):
        return float(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no time; write 2022-03-11T11:42:00", param_hint="--start") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()
