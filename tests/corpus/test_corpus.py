"""Every input of the corpus, in four modes, as it is recorded. `make corpus ARGS=--record` records anew."""

import pytest

from tests.corpus.inputs import groups, inputs
from tests.corpus.record import difference, expected, record_of


@pytest.mark.parametrize("group", groups())
def test_a_group_is_judged_as_recorded(group: str) -> None:
    """A difference shows each fact that is gone (-) and each that is new (+)."""
    lines = difference(expected(group), record_of(inputs(group)))
    assert not lines, "\n" + "\n".join(lines)
