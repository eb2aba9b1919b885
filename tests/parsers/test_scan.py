"""The scanner finds exactly the lines that hold an anchor, with the rules that want them, in order."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from parsers.engine.lines import line_end, next_line
from parsers.engine.prefixes import Prefix
from parsers.engine.scan import Line, Rule, Scanner
from parsers.events import Event


def _nothing(_: Line) -> Iterable[Event]:
    return ()


RULES = tuple(
    Rule(str(index), anchors, _nothing) for index, anchors in enumerate([(b"ab",), (b"b", b"cc"), (b"abc",), (b"cc",)])
)
blocks = st.lists(st.sampled_from([b"a", b"b", b"c", b"\n", b"\r", b"\r\n"]), max_size=60).map(
    lambda parts: b"".join(parts) + b"\n"
)


def naive(data: bytes) -> list[tuple[int, int, tuple[int, ...]]]:
    """Every line that holds an anchor, found by looking at every line."""
    found, position = [], 0
    while position < len(data):
        end = line_end(data, position, True)
        wanted = tuple(
            index for index, rule in enumerate(RULES) if any(anchor in data[position:end] for anchor in rule.anchors)
        )
        if wanted:
            found.append((position, end, wanted))
        position = next_line(data, end)
    return found


@given(blocks)
def test_after_jumps_from_candidate_to_candidate(data: bytes) -> None:
    """Jumping gives the lines and rules that looking at every line gives."""
    candidates = Scanner(RULES).candidates(data)
    found, position = [], 0
    while (step := candidates.after(position)) is not None:
        found.append(step)
        position = next_line(data, step[1])
    assert found == naive(data)


@given(blocks, st.lists(st.booleans(), min_size=200, max_size=200))
def test_walking_and_jumping_mix(data: bytes, walks: list[bool]) -> None:
    """A gatherer that opens and closes in between, which makes the reader walk, changes no line's rules."""
    candidates = Scanner(RULES).candidates(data)
    found, position = [], 0
    for walk in walks:
        if position >= len(data):
            break
        if walk:
            end = line_end(data, position, True)
            step = (position, end, candidates.within(position, end))
            if step[2]:
                found.append(step)
        else:
            jumped = candidates.after(position)
            if jumped is None:
                break
            step = jumped
            found.append(step)
        position = next_line(data, step[1])
    assert found == naive(data)


def test_origin() -> None:
    """A line hands to its events what its prefixes told."""
    line = Line("text", Prefix(task=3, node="n1", logged_at="2026-01-01T00:00:00"), 5)
    assert line.origin == {"rank": 3, "node": "n1", "logged_at": "2026-01-01T00:00:00"}
