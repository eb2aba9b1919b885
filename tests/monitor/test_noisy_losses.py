"""A noisy loss is no divergence; beside it stands the true case that must still be told."""

import random
from collections.abc import Iterator

import pytest

from tests.conftest import spread
from tests.lines import line
from tests.monitor.playing import play


def losses(noise: float, seed: int, rising_from: int | None = None, lines: int = 3000) -> Iterator[tuple[float, str]]:
    """A constant mean of 3, white noise; from some iteration on it rises by a tenth of a percent each line."""
    random_ = random.Random(seed)
    for iteration in range(1, lines + 1):
        rise = 1.001 ** max(0, iteration - rising_from) if rising_from else 1.0
        loss = max(0.05, random_.gauss(3 * rise, noise))
        yield 0.5 * iteration, line(iteration, 200_000, 0.5, loss, batch=128, norm=0.4)


@pytest.mark.parametrize("seed", spread(range(3), 3))
@pytest.mark.parametrize("noise", [0.05, 0.5, 0.9])
def test_constant_noise_is_no_divergence(noise: float, seed: int) -> None:
    """Case 15: the blocks of a few lines may happen to lie close together, their lines do not."""
    assert play(losses(noise, seed)).of("divergence") == []


@pytest.mark.parametrize(("noise", "within"), [(0.05, 150), (0.5, 500)])
def test_a_divergence_under_noise_is_told(noise: float, within: int) -> None:
    """A rise that goes on, found the later the noisier the loss is."""
    reported = play(losses(noise, 5, rising_from=1500, lines=1501 + within)).of("divergence")
    assert reported
    assert reported[0].iteration is not None
    assert 1500 < reported[0].iteration <= 1500 + within
