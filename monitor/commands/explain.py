"""`explain`: which rule read a line and what it gave, or why none did."""

import json
import sys
from collections.abc import Iterator, Sequence

import click

from megatron_monitor import identity
from megatron_monitor.commands.arguments import Given, with_config
from megatron_monitor.config import Config
from megatron_monitor.follow.patterns import absolute
from megatron_monitor.parsers.engine.prefixes import segments, strip_prefixes
from megatron_monitor.parsers.engine.scan import Line, Rule
from megatron_monitor.parsers.events import ANSI, EnvironmentVariableSeen, Event, to_fields
from megatron_monitor.parsers.registry import RULES
from megatron_monitor.reading import own_rules


@click.command()
@click.argument("line", nargs=-1)
@click.option("--path", multiple=True, help="A log: which run and job it belongs to, and why. May be repeated.")
@with_config
def explain(line: tuple[str, ...], path: tuple[str, ...], given: Given) -> None:
    r"""Show how LINE is read (standard input, line by line, if no LINE is given).

    \b
    Example:
      megatron-monitor explain ' iteration 10/ 100 | elapsed time per iteration (ms): 250.0 | lm loss: 2.5E+00 |'
      megatron-monitor explain --config config.yaml --path /logs/tr11/slurm-77.out
    """
    config = given.configured(())
    for one in path:
        for answer in belonging(absolute(one), config):
            click.echo(answer)
    if path and not line:
        return
    texts = [" ".join(line)] if line else (text.rstrip("\r\n") for text in sys.stdin)
    rules = own_rules(config).rules
    for text in texts:
        for answer in explanation(text, rules):
            click.echo(answer)


def belonging(path: str, config: Config) -> Iterator[str]:
    """Which run and job the log at `path` is of, as far as the path tells, a sentence a line."""
    named, key = identity.named(path, config.runs), identity.key_of(path, config.slurm.job_from)
    yield f"run: {named.name} (by {named.why}, pattern {named.pattern})"
    member = identity.Member(named.name, named.why)
    member.take_key(key)
    asked = identity.candidate(member, path, config.slurm.job_from)
    if asked is None and key.id:
        yield f"job: {key.id} ({key.why})"
    elif asked is not None and asked.proven:
        yield f"job: {asked.id} ({key.why})"
    elif asked is not None:
        yield f"job: {asked.id}, if Slurm says that this file is its output, or the set-up prints it"
    else:
        yield f"job: none in the path; {identity.JOB_VARIABLE}=... before the first iteration tells it"


def explanation(text: str, rules: Sequence[Rule] = RULES) -> Iterator[str]:
    """The answer for one physical line, a sentence or a JSON object a line."""
    clean = ANSI.sub("", text)
    for segment in segments(clean):
        prefix, rest = strip_prefixes(segment)
        told = {
            name: value
            for name in ("task", "local_rank", "rank", "node", "logged_at", "location")
            if (value := getattr(prefix, name)) is not None
        }
        if told:
            yield f"prefix: {json.dumps(told)}"
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
                if isinstance(item, EnvironmentVariableSeen) and item.name == identity.JOB_VARIABLE:
                    yield "identity: the run's job, where it stands before the first iteration of a launch; else text"
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
