"""How the monitor reads logs: the rules of every format, and the patterns of the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import IO

from monitor.config import Config
from monitor.run.fold import used
from parsers.engine.memo import Memo
from parsers.engine.scan import Rule, Scanner
from parsers.events import Event, LogEvent, TimeShown
from parsers.reader import SourceReader
from parsers.registry import CLOCK_RULES, RULES

_CHUNK = 1 << 20


def custom_rules(config: Config) -> tuple[Rule, ...]:
    """One rule a pattern; the configuration has checked them already."""
    if not config.patterns:
        return ()
    from parsers.formats.custom import compile_patterns  # it brings the regex library, which few configurations need

    return compile_patterns(config.patterns)


def judged_reader(rules: Sequence[Rule]) -> SourceReader:
    """A reader of what the fold and the detectors have a use for; `rules` are the configuration's own."""
    return SourceReader(rules, memo=_memo())


@cache
def _memo() -> Memo:
    return Memo(Scanner(RULES), used)


def chunks_of(stream: IO[bytes], reader: SourceReader) -> Iterator[list[LogEvent]]:
    """The events of a stream, as its chunks and its end give them."""
    while chunk := stream.read(_CHUNK):
        yield reader.feed(chunk)
    yield reader.flush()


def dated_events(stream: IO[bytes], config: Config) -> Iterator[LogEvent]:
    """The events of a finished log that is to be judged on its own clock: every line that shows the time gives one."""
    for events in chunks_of(stream, SourceReader(custom_rules(config), memo=_dated_memo())):
        yield from events


@cache
def _dated_memo() -> Memo:
    return Memo(Scanner(CLOCK_RULES), _used_or_dated)


def _used_or_dated(event: Event) -> bool:
    return isinstance(event, TimeShown) or event.logged_at is not None or used(event)
