"""`parse`: print the events of logs in the order of the files, as text or one JSON object a line."""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import click
import msgspec

from megatron_monitor.commands.arguments import (
    ConfigOptions,
    files_of,
    json_option,
    open_log,
    run_of,
    warn_of_file,
    with_config,
)
from megatron_monitor.parsers.events import IterationLogged, LogEvent, to_fields
from megatron_monitor.reading import chunks_of, full_reader, own_rules
from megatron_monitor.scalars import one_line


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@json_option
@with_config
def parse(paths: tuple[str, ...], as_json: bool, given: ConfigOptions) -> None:
    """Print the events of PATH (files, directories, globs; - is standard input) in order, repeats included."""
    config = given.configured(paths)
    failed = found = False
    for path in files_of(paths):
        try:
            with open_log(path) as stream:
                line = _json_lines(path, run_of(path, config)) if as_json else partial(_text_line, one_line(path))
                for entries in chunks_of(stream, full_reader(own_rules(config))):
                    sys.stdout.write("".join(map(line, entries)))
            found = True
        except BrokenPipeError:
            sys.stderr.close()  # no error at exit: the reader of the pipe has gone
            sys.exit(0)
        except OSError as error:
            warn_of_file(f"{path}: {error.strerror or error}")
            failed = True
    sys.exit(1 if failed or not found else 0)


def _json_lines(path: str, run: str) -> Callable[[LogEvent], str]:
    source, named, encode = _json(path), _json(run), msgspec.json.encode
    usual = _json(IterationLogged(iteration=0).format)

    def line(entry: LogEvent) -> str:
        event = entry.event
        head = f'{{"event":"{event.kind}","source":{source},"line":{entry.line},"run":{named}'
        if isinstance(event, IterationLogged):  # msgspec omits absent fields and the default format
            fields = encode(event).decode()
            if "null" not in fields:
                program = "" if '"format"' in fields else f',"format":{usual}'
                return f"{head},{fields.partition(',')[2][:-1]}{program}}}\n"  # the first field is the event's name
        fields = _json({name: value for name, value in to_fields(event).items() if name != "event"})
        return f"{head},{fields[1:]}\n" if len(fields) > 2 else head + "}\n"

    return line


def _json(value: Any) -> str:
    """Return JSON, with NaN and Infinity as Python writes them: msgspec's null would mean "absent"."""
    text = msgspec.json.encode(value).decode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if "null" in text else text


def _text_line(shown: str, entry: LogEvent) -> str:
    fields = to_fields(entry.event)
    kind = fields.pop("event")
    values = "  ".join(f"{name}={_short(value)}" for name, value in fields.items())
    return f"{shown}:{entry.line}: {kind:<18} {one_line(values)}\n"


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."
