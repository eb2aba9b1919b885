"""Readers of logs with the rules of the built-in formats and of the configuration."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import IO, TypeAlias

from megatron_monitor.config import Config
from megatron_monitor.parsers.engine.memo import Memo
from megatron_monitor.parsers.engine.scan import Rule
from megatron_monitor.parsers.events import Event, LogEvent, TimeShown
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.parsers.registry import CLOCK_RULES, RULES, rules_with
from megatron_monitor.run.fold import used

_CHUNK = 1 << 20


Rules: TypeAlias = tuple[Rule, ...]


def own_rules(config: Config) -> Rules:
    """Return the rules of a checked configuration."""
    return rules_with(config.formats) if config.formats else RULES


def evaluated_reader(rules: Rules) -> SourceReader:
    """Return a reader of the events that `fold` and the rules use."""
    return SourceReader(memo=_memo(rules))


_memos: list[tuple[tuple[Rule, ...], Memo]] = []


def _memo(rules: tuple[Rule, ...]) -> Memo:
    """Return the cached memo of these rules, compared by identity: a hash of all rules is expensive."""
    for known, memo in _memos:
        if known is rules:
            return memo
    _memos[:] = [*_memos[-1:], (rules, Memo(rules, used))]
    return _memos[-1][1]


def dated_events(
    stream: IO[bytes], config: Config, advance: Callable[[float], object] = lambda _: None
) -> Iterator[LogEvent]:
    """Yield the events of a finished log for replay; every line with a time yields an event. `advance` is called with
    the number of bytes after each read.
    """
    reader = SourceReader(memo=_dated_memo(own_rules(config)))
    while chunk := stream.read(_CHUNK):
        advance(len(chunk))
        yield from reader.feed(chunk)
    yield from reader.flush()


@lru_cache(maxsize=2)
def _dated_memo(rules: tuple[Rule, ...]) -> Memo:
    return Memo((*rules, *CLOCK_RULES[len(RULES) :]), _used_or_dated)


def _used_or_dated(event: Event) -> bool:
    return isinstance(event, TimeShown) or event.logged_at is not None or used(event)
