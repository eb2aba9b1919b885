"""All 88 scenarios of the peers' list, each a test by its name, and the check that none is missing."""

from pathlib import Path

import pytest

from tests.e2e.scenarios import group_a, group_b, group_c, group_d, group_e, group_f  # noqa: F401 - they register
from tests.e2e.scenarios.conftest import Theatre
from tests.e2e.scenarios.harness import slack
from tests.e2e.scenarios.registry import CASES, ELSEWHERE, TITLES, Case

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_scenario(case: Case, theatre: Theatre) -> None:
    """As registered in group_a.py to group_f.py."""
    theatre.results[case.name].result(timeout=slack(300))


def test_none_is_missing() -> None:
    """Every number of the list is played here or proved by a test that is named."""
    root = Path(__file__).parents[3]
    assert set(TITLES) == set(range(1, 89))
    played = {case.number for case in CASES}
    proved = {number for number, paths in ELSEWHERE.items() if all((root / path).exists() for path in paths)}
    no_rules = set() if (root / "deploy" / "prometheus").is_dir() else {87}  # no alert rules, nothing to test of them
    assert set(TITLES) - played - proved - no_rules == set()
