"""Slurm's node lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.run.nodes import MOST, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("r6i4n[5-8]", ["r6i4n5", "r6i4n6", "r6i4n7", "r6i4n8"]),
        ("nid[006913-006914,006920],login", ["nid006913", "nid006914", "nid006920", "login"]),
        ("n[08-11]-ib", ["n08-ib", "n09-ib", "n10-ib", "n11-ib"]),
        ("", []),
        ("n[x-2]", []),
    ],
)
def test_expand(text: str, names: list[str]) -> None:
    """Ranges keep their zeros."""
    assert expand(text) == names


@given(st.text(alphabet="abn[]-,0123456789", max_size=60))
def test_any_text_is_bounded(text: str) -> None:
    """Never raises, never more than a machine has."""
    assert len(expand(text)) <= MOST
