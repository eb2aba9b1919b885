"""`parse`: the events of logs, in the files' order, one JSON object a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import click

from monitor.commands.files import files_of
from monitor.commands.settings import config_option, configured, set_option
from monitor.config import Config, run_name
from monitor.follow.patterns import absolute
from monitor.rules import custom_rules
from parsers.events import LogEvent, to_fields
from parsers.reader import SourceReader

_CHUNK = 1 << 20


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line instead of text.")
@config_option
@set_option
def parse(paths: tuple[str, ...], as_json: bool, config_file: Path | None, overrides: tuple[str, ...]) -> None:
    """Print the events of PATH (files, directories, globs; - is standard input) as they stand, copies included."""
    config = configured(config_file, overrides, paths)
    failed = False
    for path in files_of(paths):
        try:
            with _open(path) as stream:
                run = "-" if path == "-" else run_name(absolute(path), absolute(path), config.runs)
                for entry in events_of(stream, config):
                    sys.stdout.write(_line(path, run, entry, as_json))
        except BrokenPipeError:
            sys.stderr.close()  # the reader has gone away: nothing more to say, not even at exit
            sys.exit(0)
        except OSError as error:
            click.echo(f"{path}: {error.strerror or error}", err=True)
            failed = True
    sys.exit(1 if failed else 0)


def _open(path: str) -> IO[bytes]:
    return sys.stdin.buffer if path == "-" else open(path, "rb")


def events_of(stream: IO[bytes], config: Config) -> Iterator[LogEvent]:
    """Every event of one stream."""
    reader = SourceReader(custom_rules(config))
    while chunk := stream.read(_CHUNK):
        yield from reader.feed(chunk)
    yield from reader.flush()


def _line(path: str, run: str, entry: LogEvent, as_json: bool) -> str:
    fields: dict[str, Any] = to_fields(entry.event)
    if as_json:
        kind = fields.pop("event")
        # nan and inf stand as Python's json writes them: the log says them, and null would say "absent".
        record = {"event": kind, "source": path, "line": entry.line, "run": run, **fields}
        return json.dumps(record, ensure_ascii=False) + "\n"
    kind = fields.pop("event")
    values = "  ".join(f"{name}={_short(value)}" for name, value in fields.items())
    return f"{path}:{entry.line}: {kind:<18} {values}\n"


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."
