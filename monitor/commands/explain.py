"""`explain`: which rule read a line and what it gave, or why none did."""

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
from megatron_monitor.run.restarts import printed_job


@click.command()
@click.argument("line", nargs=-1)
@with_config
def explain(line: tuple[str, ...], given: ConfigOptions) -> None:
    r"""Show how LINE is read (standard input, line by line, if no LINE is given).

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
    """The answer for one physical line, a sentence or a JSON object a line."""
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
    asked: list[Rule] = [rule for rule in rules if any(anchor in raw for anchor in rule.anchors)]
    for rule in asked:
        items = list(rule.items(line))
        if not items:
            continue
        for item in items:
            if isinstance(item, Event):
                yield f"{rule.name}: {json.dumps(to_fields(item), ensure_ascii=False)}"
                if printed_job(item):
                    yield "identity: the run's job, where it stands before the first iteration of an attempt; else text"
            else:
                yield f"{rule.name}: begins a fact of several lines; the lines after it are needed"
        return
    if asked:
        names = ", ".join(rule.name for rule in asked)
        yield f"no event: asked {names}, and none of them knows this line"
    elif line.text.strip():
        yield "no event: the line holds no literal that a rule looks for"
    else:
        yield "no event: nothing stands behind the prefix"
