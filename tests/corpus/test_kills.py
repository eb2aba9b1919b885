"""Kills at other places than those of mode K: each step counts once, wherever the monitor is killed."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corpus.inputs import Input, groups, inputs
from tests.corpus.modes import live

_MANY = 400  # pieces; longer inputs take too long
_PLACES = 4


def _counted(given: Input, folder: Path, kills: int, chance: str) -> set[str]:
    """Return run, iterations and last iteration of each run with steps."""
    facts = live(given, str(folder), kills, random.Random(f"{given.name} {chance}"))
    return {fact.partition(", restarts")[0] for fact in facts if re.search(r"totals: iterations [1-9]", fact)}


def _small() -> Iterator[Input]:
    for group in groups():
        yield from (given for given in inputs(group) if len(given.pieces) < _MANY and not given.settings)


@pytest.mark.nightly
def test_a_step_counts_once_wherever_the_monitor_is_killed(tmp_path: Path) -> None:
    """Each small input, killed once to three times at other places. Inputs whose count depends on how the lines come
    together are left out.
    """
    wrong = []
    for given in _small():
        whole = _counted(given, tmp_path, 0, "a")
        if whole == _counted(given, tmp_path, 0, "b"):
            killed = [_counted(given, tmp_path, 1 + place % 3, f"{place}") for place in range(_PLACES)]
            wrong += [f"{given.name}, place {place}: {one ^ whole}" for place, one in enumerate(killed) if one != whole]
    assert not wrong, "\n".join(wrong)
