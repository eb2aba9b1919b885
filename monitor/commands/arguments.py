"""What several commands take: --config and --set, PATH arguments, durations, counts."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

import click
import msgspec

from megatron_monitor.config import Config, ConfigError, Watch, load
from megatron_monitor.follow.discovery import find
from megatron_monitor.follow.mounts import read_mounts
from megatron_monitor.follow.os_layer import OsLayer
from megatron_monitor.follow.patterns import WatchedPath as Pattern
from megatron_monitor.follow.patterns import has_magic
from megatron_monitor.follow.pipes import STDIN, is_pipe
from megatron_monitor.identity import named
from megatron_monitor.identity.naming import watch_of
from megatron_monitor.scalars import one_line
from megatron_monitor.system.clock import SystemClock
from megatron_monitor.units import LONGEST_SECONDS, positive_seconds_of, seconds_of

_SCALES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}

set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one key, e.g. detectors.hang.minimum=2s."
)


json_option = click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")


def print_json(value: object) -> None:
    """One JSON object, on a line of its own."""
    click.echo(json.dumps(value, ensure_ascii=False))


class ConfigOptions(NamedTuple):
    """What the command line says of the configuration: a file, and keys on top of it."""

    file: Path | None = None
    overrides: tuple[str, ...] = ()

    def load(self, paths: Sequence[str], name: str | None = None) -> Config:
        """The file's configuration, or the defaults, with overrides; PATHS are followed beside what the file names, as
        one run if it is given a name.

        Raises ConfigError with every problem.
        """
        config = load(self.file if self.file is not None else "", self.overrides)
        if paths:
            own = [_watched_as(path, config, name) for path in map(absolute_of, paths)]
            config = msgspec.structs.replace(config, runs=(*config.runs, *own))
            if self.file is None and not any(key.startswith("run_retention=") for key in self.overrides):
                # whoever names a log by hand wants to see it, however long ago it ended
                config = msgspec.structs.replace(config, run_retention=LONGEST_SECONDS)
        return config

    def configured(self, paths: Sequence[str], name: str | None = None) -> Config:
        """As load; prints every problem and exits with 2 if there is one."""
        try:
            return self.load(paths, name)
        except ConfigError as error:
            fail(error, code=2)


def _watched_as(path: str, config: Config, name: str | None) -> Watch:
    """One path of the command line; what the configuration names keeps that name."""
    known = watch_of(path, config.runs).watch if name is None else None
    if known is not None and (known.name or known.name_from):
        return msgspec.structs.replace(known, paths=(path,))
    return Watch(paths=(path,), name=name)


def with_config(command: Callable[..., None]) -> Callable[..., None]:
    """--config and --set, which the command takes as `given`."""

    @wraps(command)
    def called(config_file: Path | None, overrides: tuple[str, ...], **others: Any) -> None:
        command(given=ConfigOptions(config_file, overrides), **others)

    file = click.Path(dir_okay=False, path_type=Path)
    return click.option("--config", "config_file", type=file, help="Configuration file (YAML).")(set_option(called))


def say(text: str) -> None:
    """A message on standard error. It may hold a file's name, and that any character."""
    click.echo(one_line(text), err=True)


def warn(*messages: object) -> None:
    """Messages of ours on standard error, one a line or as their lines stand."""
    for message in messages:
        click.echo(str(message), err=True)


def fail(*messages: object, code: int = 1) -> NoReturn:
    """The messages, and the end: 1 failed while working, 2 wrong usage or configuration."""
    warn(*messages)
    sys.exit(code)


@contextmanager
def spooled(paths: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The paths, with a file for as long as this lasts in place of what can be read but once: standard input, where `-`
    names it, as `stdin`, and a FIFO.
    """
    once = [path for path in paths if path == "-" or is_pipe(path, OsLayer())]
    if not once:
        yield tuple(paths)
        return
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory(prefix="megatron-monitor-") as folder:
        copies = {path: os.path.join(folder, "stdin" if path == "-" else os.path.basename(path)) for path in once}
        for path, copy in copies.items():
            with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as stream, open(copy, "wb") as file:
                shutil.copyfileobj(stream, file)
        yield tuple(copies.get(path, path) for path in paths)


def files_of(paths: tuple[str, ...]) -> Iterator[str]:
    """Every file once named, in order; a pattern that matches nothing is named on standard error."""
    for path in paths:
        if path == "-":
            yield path
            continue
        found = sorted(
            one.path for one in find([Pattern(path)], read_mounts(), OsLayer())
        )  # what the daemon would follow
        if not found and not has_magic(path):
            found = [path]  # so that opening it gives the reason
        elif not found:
            say(f"{path}: no file matches")
        yield from found


def open_log(path: str) -> IO[bytes]:
    """The file's bytes; standard input's where `-` names it."""
    return sys.stdin.buffer if path == "-" else open(path, "rb")


def absolute_of(path: str) -> str:
    """As the core knows it; standard input, where `-` names it, by its device."""
    return STDIN if path == "-" else os.path.abspath(os.path.expanduser(path))


def run_of(path: str, config: Config) -> str:
    """The run that a file's lines are of."""
    return named(absolute_of(path), config.runs).name


def by_run(paths: tuple[str, ...], config: Config) -> dict[str, list[str]]:
    """The files of each run, in the order in which the runs are named."""
    runs: dict[str, list[str]] = {}
    for path in files_of(paths):
        runs.setdefault(run_of(path, config), []).append(path)
    return runs


def written_at(paths: Iterable[str]) -> dict[str, float]:
    """By absolute path when each file was last written, Unix seconds; now for what is no file."""
    found = {}
    for path in paths:
        try:
            found[absolute_of(path)] = os.stat(path).st_mtime
        except OSError:
            found[absolute_of(path)] = SystemClock().wall()
    return found


def _duration(read: Callable[[object], float]) -> Callable[[object], float]:
    """`90s`, `1h30m`, or seconds. What an option's type is called is how its value is shown in the help."""

    def duration(value: object) -> float:
        try:
            return read(value)
        except ValueError as error:
            raise click.BadParameter(f"{value!r}: {error}") from error

    return duration


DURATION, POSITIVE_DURATION = _duration(seconds_of), _duration(positive_seconds_of)


def count(value: object) -> int:
    """`104B`, `1.3B`, `350M`, or a plain count."""
    text = str(value).strip().upper()
    scale = _SCALES.get(text[-1:])
    try:
        number = float(text[:-1]) * scale if scale else float(text)
    except ValueError:
        number = 0.0
    if not 1 <= number < 1e18:
        raise click.BadParameter(f"{value!r} is no count; write 104B, 350M or 104e9")
    return round(number)


def pairs(_ctx: click.Context, option: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE of an option that may stand several times."""
    if bad := [text for text in given if text.find("=") < 1]:
        raise click.UsageError(f"{option.opts[0]} {bad[0]}: expected NAME=VALUE")
    return dict(text.split("=", 1) for text in given)


POSITIVE = click.IntRange(1)
