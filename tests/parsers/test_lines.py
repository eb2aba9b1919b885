"""Chunks to lines: the same lines whatever the cut, bounded, without NULs, numbered as editors do."""

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.parsers.engine.lines import LineSplitter

pieces = st.lists(
    st.sampled_from([b"a", b"iteration ", b"\n", b"\r", b"\r\n", b"\0", b"x" * 40, b"\xff", "é".encode()]), max_size=60
).map(b"".join)


def test_memory_is_bounded_while_a_line_is_thrown_away() -> None:
    """A file without line ends is not held."""
    splitter = LineSplitter(max_line_bytes=1000)
    for _ in range(1000):
        assert splitter.feed(b"x" * 1000) == []
    assert len(splitter.pending) == 0
    assert splitter.feed(b"\nnext\n") == [(1, 1_000_000), (2, b"next\n")]


def test_raw_pending_counts_what_a_resume_must_read() -> None:
    """NULs and the unfinished line are before the end of the file but behind the last line end."""
    splitter = LineSplitter()
    splitter.feed(b"one\ntw\0\0o")
    assert splitter.raw_pending == 5
    splitter.feed(b"\n")
    assert splitter.raw_pending == 0


def walk(chunks: list[bytes], bound: int) -> list[tuple[int, bytes | int]]:
    """(number, text) of every line as the reader finds them, (number, length) of one that was thrown away."""
    splitter = LineSplitter(max_line_bytes=bound)
    out: list[tuple[int, bytes | int]] = []
    for first, part in [*(piece for chunk in chunks for piece in splitter.feed(chunk)), *splitter.flush()]:
        if isinstance(part, int):
            out.append((first, part))
        else:
            number = first
            for line in part.splitlines(keepends=True):
                out.append((number, line.rstrip(b"\r\n")))
                number += line.endswith(b"\n")
    return out


def split(data: bytes, bound: int) -> list[tuple[int, bytes | int]]:
    """The lines of the whole, empty ones included, by one regular expression."""
    data = data.replace(b"\0", b"")
    out: list[tuple[int, bytes | int]] = []
    position = 0
    for match in re.finditer(rb"\r\n|\r|\n|\Z", data):
        text = data[position : match.start()]
        if text or match[0]:
            out.append((1 + data.count(b"\n", 0, position), text if len(text) <= bound else len(text)))
        position = match.end()
    return out


@given(pieces, st.lists(st.integers(0, 400), max_size=8), st.sampled_from([0, 1, 3, 50]))
def test_empty_lines_are_lines(data: bytes, cuts: list[int], bound: int) -> None:
    r"""`\r\n` is one line end in any cut and around any hole, and a blank line stays one."""
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert walk([data[a:b] for a, b in itertools.pairwise(bounds)], bound) == split(data, bound)


def test_lines_around_the_bound_in_every_cut() -> None:
    """Lines of the bound, one more and three times as much, with each line end, in chunks of every size."""
    for end in (b"\n", b"\r", b"\r\n", b"\0\r\0\n"):
        data = b"".join(b"x" * length + end for length in (9, 10, 11, 30, 0, 10, 31)) + b"last"
        for size in range(1, len(data) + 1):
            chunks = [data[at : at + size] for at in range(0, len(data), size)]
            assert walk(chunks, 10) == split(data, 10), (end, size)
