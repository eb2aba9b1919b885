"""Every input of the corpus, in four modes, as it is recorded. `make corpus ARGS=--record` records anew."""

from typing import Any

import pytest
import yaml

from tests.corpus.inputs import groups, inputs
from tests.corpus.record import HERE, difference, expected, record_of


@pytest.mark.parametrize("group", groups())
def test_a_group_is_judged_as_recorded(group: str) -> None:
    """A difference shows each fact that is gone (-) and each that is new (+)."""
    lines = difference(expected(group), record_of(inputs(group)))
    assert not lines, "\n" + "\n".join(lines)


@pytest.mark.parametrize(
    "entry", yaml.load((HERE / "disagreements.yaml").read_text(), yaml.CSafeLoader), ids=lambda one: one["what"]
)
def test_a_disagreement_stands(entry: dict[str, Any]) -> None:
    """Each input that an entry names has facts of that kind in which modes differ: what was corrected is no entry."""
    for name in entry["inputs"]:
        group, _, title = name.partition(": ")
        facts = [fact.partition(" | ")[2] for fact in expected(group)[title]]
        held = {fact.rsplit("[", 1)[1].rstrip("]") for fact in facts if fact.startswith(entry["about"])}
        assert held - {"ROLK", "RLK"}, name
