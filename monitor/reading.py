"""How the monitor reads logs: the rules of every format, and the dialects and patterns of the configuration."""

from collections.abc import Iterator
from functools import lru_cache
from typing import IO, NamedTuple

from megatron_monitor.config import Config
from megatron_monitor.parsers.engine.memo import Memo
from megatron_monitor.parsers.engine.scan import Rule, Scanner
from megatron_monitor.parsers.events import Event, LogEvent, TimeShown
from megatron_monitor.parsers.formats.custom import CustomReader
from megatron_monitor.parsers.patterns import Guarded
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.parsers.registry import CLOCK_RULES, RULES, rules_with
from megatron_monitor.run.fold import UNREAD, used

_CHUNK = 1 << 20


class Own(NamedTuple):
    """What a configuration adds: all rules, where it brings dialects of its own, and patterns, asked of every line."""

    rules: tuple[Rule, ...] = RULES
    patterns: tuple[Rule, ...] = ()


def own_rules(config: Config) -> Own:
    """The rules by which this configuration reads; it has been checked already."""
    patterns = tuple(
        Rule(one.name, (), CustomReader(one.name, one.kind, Guarded(one.match), one.contains, one.failure))
        for one in config.patterns
    )
    dialects = tuple(dialect for several in config.formats for dialect in several)
    return Own(rules_with(dialects) if dialects else RULES, patterns)


def full_reader(own: Own) -> SourceReader:
    """A reader that gives every event."""
    return SourceReader(own.patterns, memo=None if own.rules is RULES else Memo(Scanner(own.rules)))


def judged_reader(own: Own) -> SourceReader:
    """A reader of what the fold and the detectors have a use for."""
    return SourceReader(own.patterns, memo=_memo(own.rules))


_memos: list[tuple[tuple[Rule, ...], Memo]] = []


def _memo(rules: tuple[Rule, ...]) -> Memo:
    """By identity, for the last two configurations: to hash all rules takes a quarter of what an idle file costs."""
    for known, memo in _memos:
        if known is rules:
            return memo
    _memos[:] = [*_memos[-1:], (rules, Memo(Scanner(rules), used, UNREAD))]
    return _memos[-1][1]


def chunks_of(stream: IO[bytes], reader: SourceReader) -> Iterator[list[LogEvent]]:
    """The events of a stream, as its chunks and its end give them."""
    while chunk := stream.read(_CHUNK):
        yield reader.feed(chunk)
    yield reader.flush()


def dated_events(stream: IO[bytes], config: Config) -> Iterator[LogEvent]:
    """The events of a finished log that is to be judged on its own clock: every line that shows the time gives one."""
    own = own_rules(config)
    for events in chunks_of(stream, SourceReader(own.patterns, memo=_dated_memo(own.rules))):
        yield from events


@lru_cache(maxsize=2)
def _dated_memo(rules: tuple[Rule, ...]) -> Memo:
    return Memo(Scanner((*rules, *CLOCK_RULES[len(RULES) :])), _used_or_dated, UNREAD)


def _used_or_dated(event: Event) -> bool:
    return isinstance(event, TimeShown) or event.logged_at is not None or used(event)
