"""Arguments that several commands share: --config and --set, PATH, durations, counts."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click
import msgspec

from megatron_monitor.config import Config, ConfigError, Watch, load
from megatron_monitor.follow.pipes import STDIN
from megatron_monitor.identity.naming import watch_of
from megatron_monitor.scalars import LONGEST_SECONDS, one_line, positive_seconds_of, seconds_of

set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one key, e.g. detectors.hang.minimum=2s."
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    click.echo(json.dumps(value, ensure_ascii=False))


class ConfigOptions(NamedTuple):
    """The configuration as the command line gives it: a file, and keys that override it."""

    file: Path | None = None
    overrides: tuple[str, ...] = ()

    def load(self, paths: Sequence[str], name: str | None = None) -> Config:
        """Return the file's configuration (or the defaults) with the overrides.

        `paths` are followed in addition to the file's runs, as one run if `name` is given. Raises ConfigError with
        every problem.
        """
        config = load(self.file if self.file is not None else "", self.overrides)
        if paths:
            added = [_watch(absolute_of(path), config, name) for path in paths]
            config = msgspec.structs.replace(config, runs=(*config.runs, *added))
            if self.file is None and not any(key.startswith("run_retention=") for key in self.overrides):
                # a log that is named by hand is shown, however long ago it ended
                config = msgspec.structs.replace(config, run_retention=LONGEST_SECONDS)
        return config

    def configured(self, paths: Sequence[str], name: str | None = None) -> Config:
        """Like load, but print every problem and exit with 2."""
        try:
            return self.load(paths, name)
        except ConfigError as error:
            fail(*str(error).splitlines(), code=2)


def _watch(path: str, config: Config, name: str | None) -> Watch:
    """Return the entry of `runs` for one path; a path that the configuration names keeps that name."""
    configured = watch_of(path, config.runs).watch if name is None else None
    if configured is not None and (configured.name or configured.name_from):
        return msgspec.structs.replace(configured, paths=(path,))
    return Watch(paths=(path,), name=name)


def with_config(command: Callable[..., None]) -> Callable[..., None]:
    """Add --config and --set to a command, which receives them as `given`."""

    @wraps(command)
    def called(config_file: Path | None, overrides: tuple[str, ...], **others: Any) -> None:
        command(given=ConfigOptions(config_file, overrides), **others)

    file = click.Path(dir_okay=False, path_type=Path)
    return click.option("--config", "config_file", type=file, help="Configuration file (YAML).")(set_option(called))


def warn(*messages: object) -> None:
    """Print each message as one line on standard error: the name of a file may hold any character."""
    for message in messages:
        click.echo(one_line(str(message)), err=True)


def fail(*messages: object, code: int = 1) -> NoReturn:
    """Print the messages and exit: 1 for a failure at work, 2 for wrong usage or configuration."""
    warn(*messages)
    sys.exit(code)


@contextmanager
def spooled(paths: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the paths; standard input (`-`) and FIFOs, which can be read only once, are copied to temporary files."""
    read_once = [path for path in paths if path == "-" or Path(path).is_fifo()]
    if not read_once:
        yield tuple(paths)
        return
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory(prefix="megatron-monitor-") as folder:
        copies = {path: os.path.join(folder, "stdin" if path == "-" else os.path.basename(path)) for path in read_once}
        for path, copy in copies.items():
            with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as stream, open(copy, "wb") as file:
                shutil.copyfileobj(stream, file)
        yield tuple(copies.get(path, path) for path in paths)


def absolute_of(path: str) -> str:
    """Return the path as the core names it; standard input (`-`) by its device."""
    return STDIN if path == "-" else os.path.abspath(os.path.expanduser(path))


def _duration(read: Callable[[object], float]) -> Callable[[object], float]:
    """Return the option type for `90s`, `1h30m` or seconds. The help shows the inner function's name."""

    def duration(value: object) -> float:
        try:
            return read(value)
        except ValueError as error:
            raise click.BadParameter(f"{value!r}: {error}") from error

    return duration


DURATION, POSITIVE_DURATION = _duration(seconds_of), _duration(positive_seconds_of)


def pairs(_ctx: click.Context, option: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """Return the NAME=VALUE pairs of a repeatable option."""
    if bad := [text for text in given if text.find("=") < 1]:
        raise click.UsageError(f"{option.opts[0]} {bad[0]}: expected NAME=VALUE")
    return dict(text.split("=", 1) for text in given)


POSITIVE = click.IntRange(1)
