"""No line costs more than 50 ms: a search for the worst 64 KiB line of every regular expression and every rule.

From the structure of each expression: what matches up to a repeat, the repeat's own text pumped up to 64 KiB, then
something that does not match. Beside these, each rule's anchors followed by long runs of what logs are made of.
"""

import importlib
import pkgutil
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from megatron_monitor import parsers
from megatron_monitor.parsers.declared.targets import PIECES
from megatron_monitor.parsers.engine.prefixes import segments, strip_prefixes
from megatron_monitor.parsers.engine.scan import Line, Rule
from megatron_monitor.parsers.formats import torchrun, tracebacks
from megatron_monitor.parsers.patterns import Lazy, filled
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.parsers.registry import RULES
from tests.test_formats import EXPRESSIONS

pytestmark = pytest.mark.nightly
SIZE = 64 * 1024
LIMIT = 0.05
PART = SIZE // 16
SUSPICIOUS = LIMIT / 320  # on a part of the line: what is slower there and grows with the square takes 40 ms on all
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
_NOT = "\x01\u20ac"
FRAGMENTS = (
    " ", "a", "0", "0.", "1e", "-", "|", ":", "=", "[", "(", ",", ": ", "| ", "a: ", "a=1, ", "1/1 ", "[a]", "'a': 1, ",
    "name: 1.0 | ", "\t", "\u20ac", "\\", '"', "'", "\x1b[0m", "2026-01-01 00:00:00 ", "rank 0 ", "a.b:",
    "/a", "x 1 ", "++",
)  # fmt: skip


def patterns() -> dict[str, list[re.Pattern[str]]]:
    """Every compiled expression that a module below parsers/ holds, in tuples and dicts too, by the module's name; and
    those of lines that are data, by their rule's.
    """

    def held(value: Any, depth: int = 0) -> Iterator[re.Pattern[str]]:
        if isinstance(value, Lazy):
            value = re.compile(value.pattern, value.flags)
        if isinstance(value, re.Pattern):
            if isinstance(value.pattern, str):
                yield value
        elif depth < 4 and isinstance(value, dict | list | tuple):
            for item in value.values() if isinstance(value, dict) else value:
                yield from held(item, depth + 1)

    found: dict[str, list[re.Pattern[str]]] = {}
    for module in pkgutil.walk_packages(parsers.__path__, "megatron_monitor.parsers."):
        if one := list(held(list(vars(importlib.import_module(module.name)).values()))):
            found[module.name] = one
    for name, spec in EXPRESSIONS:
        texts = (spec.regex, *spec.extras)
        found.setdefault(name, []).extend(re.compile(filled(text, PIECES)) for text in texts)
    return found


def one_of(items: Any) -> str:
    """A character of a set."""
    negated = items and items[0][0] is _constants.NEGATE
    if negated:
        excluded = {char for kind, value in items[1:] if kind is _constants.LITERAL for char in chr(value)}
        return next(char for char in "a 0|:=,x" if char not in excluded)
    kind, value = items[0]
    if kind is _constants.LITERAL:
        return chr(value)
    if kind is _constants.RANGE:
        return chr(value[0])
    return {"CATEGORY_DIGIT": "0", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "a"}.get(str(value), "-")


def example(tree: Any) -> str:
    """A text that a parsed expression matches, short; look-arounds are taken for granted."""
    return "".join(_example(kind, value) for kind, value in tree)


def _example(kind: Any, value: Any) -> str:
    if kind is _constants.LITERAL:
        return chr(value)
    if kind is _constants.NOT_LITERAL:
        return "a" if value != ord("a") else "b"
    if kind is _constants.ANY:
        return "a"
    if kind is _constants.IN:
        return one_of(value)
    if kind in _REPEATS:
        return example(value[2]) * max(1, value[0])
    if kind is _constants.SUBPATTERN:
        return example(value[3])
    if kind is _constants.ATOMIC_GROUP:
        return example(value)
    if kind is _constants.BRANCH:
        return example(value[1][0])
    return ""


def pumped(tree: Any, before: str = "") -> Iterator[str]:
    """Texts in which each repeat in turn is as long as it can be, inner ones and alternatives too."""
    for kind, value in tree:
        if kind in _REPEATS:
            body = example(value[2]) or "a"
            bodies = {body, body + " "}
            inner = list(value[2])
            if len(inner) == 1 and inner[0][0] is _constants.BRANCH:
                bodies |= {example(choice) or "a" for choice in inner[0][1][1]}
            for one in bodies:
                yield before + one * ((SIZE - len(before)) // len(one)) + _NOT
            yield from pumped(value[2], before)
        elif kind is _constants.SUBPATTERN:
            yield from pumped(value[3], before)
        elif kind is _constants.BRANCH:
            for choice in value[1]:
                yield from pumped(choice, before)
        before += _example(kind, value)
    if before:
        yield before * (SIZE // len(before)) + _NOT
        yield before[:-1] * (SIZE // max(1, len(before) - 1))


def cost(call: Any) -> float:
    """CPU seconds, the least of a few: others use this machine too. One that takes 2 s is stopped there."""
    best = 2.0
    for _ in range(3):
        signal.setitimer(signal.ITIMER_VIRTUAL, 2.0)
        began = time.process_time()
        try:
            call()
        except TimeoutError:
            return best
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        best = min(best, time.process_time() - began)
        if best < LIMIT:
            break
    return best


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    """The re module looks for signals now and then: an expression that explodes can be stopped."""

    def stop(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    yield
    signal.signal(signal.SIGVTALRM, before)


def worst_of_rules(text: str, rules: Sequence[Rule] = RULES) -> tuple[float, str]:
    """The dearest rule on a line."""
    segment = strip_prefixes(text)
    line = Line(segment[1], segment[0])
    raw = text.encode("utf-8", "surrogatepass")
    costs = [
        (cost(lambda rule=rule: list(rule.read(line))), rule.name)
        for rule in rules
        if not rule.anchors or any(anchor in raw for anchor in rule.anchors)
    ]
    return max(costs, default=(0.0, ""))


def check(text_of: Callable[[int], str], rules: Sequence[Rule]) -> None:
    """The line of 64 KiB that the function makes; itself only where its sixteenth and its eighth do not prove enough:
    what the eighth takes beyond two sixteenths grows with the square.
    """
    if worst_of_rules(text_of(PART), rules)[0] < SUSPICIOUS:
        return
    part = worst_of_rules(text_of(PART), rules)[0]
    growing = max(0.0, worst_of_rules(text_of(2 * PART), rules)[0] - 2 * part)
    if 16 * part + 120 * growing < LIMIT / 2:
        return
    text = text_of(SIZE)
    spent, rule = worst_of_rules(text, rules)
    assert spent < LIMIT, f"{rule}: {spent * 1000:.0f} ms on {text[:80]!r}...{text[-40:]!r}"


PATTERNS = patterns()
_NAMING = ("nccl", "pytorch", "megatron.checkpoint")
_NAMED = tuple(rule for rule in RULES if rule.name.startswith(_NAMING))
_USED_BY = {
    "megatron_monitor.parsers.declared.failures": (*tracebacks.RULES, *torchrun.RULES, *_NAMED),
    "megatron_monitor.parsers.declared.targets": _NAMED,
}
"""Their expressions read what the rules of several modules have found."""
_TRIED: set[tuple[str, str]] = set()
"""Rules and the texts that they were tried on: the expressions of several modules suggest the same."""
SHARED = "megatron_monitor.parsers.engine.fields"
"""Its expressions are used by the rules of every module."""
_OF_DATA = {name for name, _ in EXPRESSIONS}


@pytest.mark.parametrize(
    "name", sorted(name for name in PATTERNS if name in _OF_DATA or ".formats." in name or name in _USED_BY)
)
def test_expressions(name: str) -> None:
    """The rules of a module, or of data, on the worst lines that the structure of their expressions suggests."""
    if name in _OF_DATA:
        rules = tuple(rule for rule in RULES if rule.name == name)
    else:
        rules = getattr(importlib.import_module(name), "RULES", None) or _USED_BY[name]
    texts: set[str] = set()
    for pattern in {*PATTERNS[name], *PATTERNS[SHARED]}:
        tree = _parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)
        texts.update(text[: SIZE - 60] for text in pumped(tree))
    for rule in rules:
        anchors = [anchor.decode() for anchor in rule.anchors]
        for text in sorted(texts):
            if (rule.name, text) in _TRIED:
                continue
            _TRIED.add((rule.name, text))
            holds = any(anchor in text[:PART] for anchor in anchors)
            for before, after in [("", "")] if holds else [(anchors[0], ""), ("", anchors[0])]:
                check(lambda size: f"{before}{text[:size]}{_NOT * (size < SIZE)}{after}", (rule,))  # noqa: B023


def anchored() -> list[tuple[str, bytes]]:
    """Each rule with each of its anchors."""
    return [(rule.name, anchor) for rule in RULES for anchor in rule.anchors]


@pytest.mark.parametrize(("name", "anchor"), anchored(), ids=lambda part: str(part)[:40])
def test_rules(name: str, anchor: bytes) -> None:
    """Each anchor before, between and after long runs of what logs are made of."""
    word = anchor.decode("utf-8", "replace")
    own = tuple(rule for rule in RULES if rule.name == name)
    for fragment in FRAGMENTS:
        for before, run, after in ((word, fragment, ""), ("", fragment, word), ("", word + fragment, "")):
            check(lambda size: before + run * ((size - len(word)) // len(run)) + after, own)  # noqa: B023


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_prefixes_and_the_whole_reader(fragment: str) -> None:
    """What is done to every line: splitting into segments, stripping prefixes, the scan."""
    for head in ("", "[rank0]: ", "0: ", "[default0]:", "worker-1: [2026-01-01 00:00:00,000] [INFO] ", "iteration "):
        text = head + fragment * (SIZE // len(fragment))

        def read(text: str = text) -> None:
            for segment in segments(text):
                strip_prefixes(segment)

        spent = cost(read)
        assert spent < LIMIT, f"{spent * 1000:.0f} ms on {text[:60]!r}"
        data = text.replace("\r", "").encode() + b"\n"
        spent = cost(lambda data=data: SourceReader().feed(data))
        assert spent < 2 * LIMIT, f"reader: {spent * 1000:.0f} ms on {text[:60]!r}"
