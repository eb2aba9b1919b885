"""`explain`: show which rule reads a line and the event it gives, or why no rule does."""

import json
import sys
from collections.abc import Iterator, Sequence

import click

from megatron_monitor.commands.arguments import ConfigOptions, with_config
from megatron_monitor.parsers.engine.prefixes import segments, strip_prefixes
from megatron_monitor.parsers.engine.scan import Line, Rule
from megatron_monitor.parsers.events import ANSI, Event, to_fields
from megatron_monitor.parsers.registry import RULES
from megatron_monitor.reading import own_rules


@click.command()
@click.argument("line", nargs=-1)
@with_config
def explain(line: tuple[str, ...], given: ConfigOptions) -> None:
    """Show how LINE is read (standard input, line by line, if no LINE is given).

    \b
    Example:
      megatron-monitor explain ' iteration 10/ 100 | elapsed time per iteration (ms): 250.0 | lm loss: 2.5E+00 |'
    """
    texts = [" ".join(line)] if line else (text.rstrip("\r\n") for text in sys.stdin)
    rules = own_rules(given.configured(()))
    for text in texts:
        for answer in explanation(text, rules):
            click.echo(answer)


def explanation(text: str, rules: Sequence[Rule] = RULES) -> Iterator[str]:
    """Yield the answer for one physical line: sentences and JSON objects."""
    clean = ANSI.sub("", text)
    for segment in segments(clean):
        prefix, rest = strip_prefixes(segment)
        settings = {
            name: value
            for name in ("task", "local_rank", "rank", "node", "logged_at", "location")
            if (value := getattr(prefix, name)) is not None
        }
        if settings:
            yield f"prefix: {json.dumps(settings)}"
        yield from _rules(Line(rest, prefix), segment.encode("utf-8", "replace"), rules)


def _rules(line: Line, raw: bytes, rules: Sequence[Rule]) -> Iterator[str]:
    candidates = [rule for rule in rules if any(anchor in raw for anchor in rule.anchors)]
    for rule in candidates:
        items = list(rule.items(line))
        if not items:
            continue
        for item in items:
            if isinstance(item, Event):
                yield f"{rule.name}: {json.dumps(to_fields(item), ensure_ascii=False)}"
            else:
                yield f"{rule.name}: begins a block of several lines; the event needs the lines after it"
        return
    if candidates:
        yield f"no event: tried {', '.join(rule.name for rule in candidates)}; none reads this line"
    elif line.text.strip():
        yield "no event: the line holds no text that a rule looks for"
    else:
        yield "no event: the line is empty after its prefix"
