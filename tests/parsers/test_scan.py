"""The scanner gives each line the rules that may want it."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.parsers.engine.scan import Line, Rule, Scanner
from megatron_monitor.parsers.events import Event


def _nothing(_: Line) -> Iterable[Event]:
    return ()


ANCHORS = [(b"ab",), (b"b", b"cc"), (b"abc",), (b"cc",), (b"a7",)]
RULES = tuple(Rule(str(index), anchors, _nothing) for index, anchors in enumerate(ANCHORS))
shapes = st.lists(st.lists(st.sampled_from([b"a", b"b", b"c", b"0"]), max_size=8).map(b"".join), max_size=12)


@given(shapes)
def test_rules_of_finds_every_anchor(lines: list[bytes]) -> None:
    """Looking at all shapes at once gives the rules that looking for each anchor in each of them gives."""
    expected = [
        tuple(i for i, anchors in enumerate(ANCHORS) if any(a.replace(b"7", b"0") in line for a in anchors))
        for line in lines
    ]
    assert Scanner(RULES).rules_of(lines) == expected
