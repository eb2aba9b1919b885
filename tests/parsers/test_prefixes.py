"""What launchers put before a line: stripped in any nesting, and what each tells."""

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.parsers.engine.prefixes import Prefix, iso_time, segments, strip_prefixes
from tests.conftest import loaded

_DATA = loaded(Path(__file__).with_name("prefixes.yaml").read_text())


@pytest.mark.parametrize("case", _DATA["prefixes"], ids=lambda case: case["line"][:40])
def test_prefix(case: dict[str, Any]) -> None:
    """Each prefix is taken off and told; the program's own blanks stay."""
    assert strip_prefixes(case["line"]) == (Prefix(**case["gives"]), case["rest"])


def test_rank_in_the_world() -> None:
    """A srun label is a rank, but under torchrun's tee it is a node."""
    assert Prefix(task=9).global_rank == 9
    assert Prefix(task=9, local_rank=3).global_rank is None
    assert Prefix(task=9, local_rank=3, rank=39).global_rank == 39
    assert Prefix(task=9, local_rank=3).key != Prefix(task=8, local_rank=3).key


def test_iso_time() -> None:
    """Printed times become ISO 8601, and no zone is added."""
    assert iso_time("2023-10-19 23:07:45,931") == "2023-10-19T23:07:45.931"
    assert iso_time("20251202 06:56:28") == "2025-12-02T06:56:28"


@pytest.mark.parametrize("case", _DATA["segments"], ids=lambda case: case["line"][:40])
def test_segments(case: dict[str, Any]) -> None:
    """A tee label in the middle of a line starts another writer's text, and so does the end of a bar."""
    assert segments(case["line"]) == case["parts"]


@given(st.lists(st.one_of(st.sampled_from(["[default3]:", "7: ", "[rank1]:", " ", "n1: ", "x"]), st.text(max_size=4))))
def test_segments_lose_nothing(pieces: list[str]) -> None:
    """The segments of a line are the line."""
    text = "".join(pieces)
    assert "".join(segments(text)) == text
    prefix, rest = strip_prefixes(text)
    assert text.endswith(rest)
    assert prefix.global_rank is None or prefix.global_rank >= 0


@pytest.mark.parametrize(
    "form",
    [
        "[default{}]:x",
        "[rank{}]:x",
        "[1,{}]<stdout>:x",
        "2023-10-26 21:31:16,318 [Rank {}]: x",
        "[2023-10-19 23:07:45,931] [INFO] [a:1:b] [Rank {}] x",
        "[20251202 06:56:28][rank-{}/8][INFO ] x",
        "{}: x",
    ],
)
def test_absurd_ranks(form: str) -> None:
    """More digits than Python turns into an int are no rank, and no error."""
    assert strip_prefixes(form.format("1" * 5000))[0].global_rank is None


def test_hostile_lines_cost_no_time() -> None:
    """Prefix characters without end are read in linear time."""
    started = time.process_time()
    for filler in ("[a1", "[default1]:", "[", "1", "a", " ", "a.", "7: ", "[rank", "]:", "[default1"):
        text = filler * (65_536 // len(filler))
        for line in (text, "[a" + text, "x" + text + "]:", "[default" + text):
            segments(line)
            strip_prefixes(line)
    assert time.process_time() - started < 5
