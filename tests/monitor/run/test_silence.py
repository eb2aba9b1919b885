"""What silences teach, at each limit: how many are kept, which are believed, which are forgotten."""

import pytest

from megatron_monitor.run.silence import Intervals, Silences

DAY = 86_400.0


def test_the_last_fifty_are_kept() -> None:
    """Good ones and forgiven ones."""
    known = Silences()
    for number in range(51):
        known.learn("saving", float(number))
        known.forgive("saving", float(number), float(number))
    assert known.values("saving") == [float(number) for number in range(1, 51)]
    assert [seconds for _, seconds in known.forgiven["saving"]] == known.values("saving")


def test_five_show_what_is_usual() -> None:
    """Of fewer one or two may be hiccups; the longest is known from the first on."""
    assert (Intervals().usual, Intervals().longest) == (None, None)
    assert (Intervals([1.0, 2.0, 9.0, 4.0]).usual, Intervals([1.0, 9.0, 4.0]).longest) == (None, 9.0)
    assert Intervals([1.0, 2.0, 9.0, 4.0, 3.0]).usual == 3.0
    assert Intervals([1.0, 2.0, 9.0, 4.0, 3.0, 6.0]).usual == 3.5


def test_nothing_is_known_of_another_kind() -> None:
    """No silence, and so no longest."""
    known = Silences()
    known.learn("saving", 3.0)
    assert (known.values("training"), known.longest("training")) == ([], None)
    assert (known.values("saving"), known.longest("saving")) == ([3.0], 3.0)


def test_what_a_buffer_explained() -> None:
    """The longest; of the first one all of it."""
    known = Silences()
    for seconds, longest in ((0.5, 0.5), (30.0, 30.0), (20.0, 30.0)):
        known.hold(seconds)
        assert known.held == longest


def test_as_long_as_one_that_was_called_a_hang() -> None:
    """The shortest of its kind counts."""
    known = Silences()
    known.forgive("saving", 60.0, 0.0)
    known.forgive("saving", 45.0, 1.0)
    assert [known.is_forgiven("saving", seconds) for seconds in (44.0, 45.0, 46.0)] == [False, True, True]
    assert not known.is_forgiven("training", 45.0)


@pytest.mark.parametrize(("later", "kept"), [(DAY - 1.0, 2), (DAY, 1), (2 * DAY, 1)])
def test_a_day_later_one_is_forgotten(later: float, kept: int) -> None:
    """When the next one comes."""
    known = Silences()
    known.forgive("saving", 45.0, 10.0)
    known.forgive("saving", 50.0, 10.0 + later)
    assert len(known.forgiven["saving"]) == kept


@pytest.mark.parametrize(
    ("kinds", "most", "now", "expected"),
    [
        (["saving"], 60.0, 10.0, 60.0),
        (["saving"], 59.0, 10.0, 45.0),
        (["saving"], 44.0, 10.0, None),
        (["training"], 60.0, 10.0, 30.0),
        (["training", "saving"], 60.0, 10.0, 60.0),
        (["evaluating"], 60.0, 10.0, None),
        (["saving"], 60.0, 10.0 + DAY - 1.0, 60.0),
        (["saving"], 60.0, 10.0 + DAY, None),
        (["saving"], 60.0, 10.0 + 2 * DAY, None),
    ],
)
def test_the_longest_that_was_forgiven(kinds: list[str], most: float, now: float, expected: float | None) -> None:
    """Of these kinds, in the last day, none above the bound."""
    known = Silences()
    assert known.longest_forgiven(kinds, most, now) is None
    for kind, seconds in (("saving", 45.0), ("saving", 60.0), ("training", 30.0)):
        known.forgive(kind, seconds, 10.0)
    assert known.longest_forgiven(kinds, most, now) == expected
