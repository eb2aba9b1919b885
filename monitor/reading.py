"""How the monitor reads logs: the rules of every format, and the patterns of the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import IO

from monitor.config import Config
from monitor.run.fold import used
from parsers.engine.memo import Memo
from parsers.engine.scan import Rule, Scanner
from parsers.events import LogEvent
from parsers.reader import SourceReader
from parsers.registry import RULES

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


def judged_events(stream: IO[bytes], config: Config) -> Iterator[LogEvent]:
    """The events of a stream that is to be judged."""
    for events in chunks_of(stream, judged_reader(custom_rules(config))):
        yield from events
