"""What a live run has shown of its silences, played through the core with a tick each second: a silence that ended is
known by the next one, and a true hang is told in its time all the same.
"""

from collections.abc import Iterable, Iterator

import pytest

from megatron_monitor.core import Core
from megatron_monitor.incidents import Transition
from tests.lines import dump, line
from tests.monitor.core.following import NOW, Following

PATH = "/l/a.log"


def followed(
    arrivals: Iterable[tuple[float, str]], *, after: float = 0.0
) -> tuple[Core, list[tuple[float, Transition]]]:
    """A file that grows by these texts at these seconds, then `after` seconds more; what is told, and when."""
    logs = Following("runs=[{paths: ['/l/*']}]")
    logs.open(PATH)
    for second, text in arrivals:
        logs.wait(NOW + second - logs.now)
        logs.write(PATH, text)
    logs.wait(after)
    return logs.core, [(item.time - NOW, item) for item in logs.reported if not item.display_only]


def saving(seconds: float, *, every: int = 50, iterations: int = 250, loss: float = 3.0) -> Iterator[tuple[float, str]]:
    """A line every 10 iterations of 1 s; the loop stands for `seconds` behind each `every`, and no line tells why."""
    at = 0.0
    for number in range(10, iterations + 1, 10):
        at += 10.0
        yield at, line(number, 100_000, 1.0, loss - number / 10_000)
        if number % every == 0:
            at += seconds


def firing(reported: list[tuple[float, Transition]]) -> list[float]:
    """When hangs were told."""
    return [at for at, item in reported if (item.incident, item.status) == ("hang", "firing")]


def test_each_line_comes_later_than_the_least_budget() -> None:
    """A bar that prints a pace of 2 s and comes every 73 s: one hang at most, then it is known how it is."""
    _, reported = followed((73.0 * number, line(number, 100_000, seconds=2.0)) for number in range(1, 30))
    assert len(firing(reported)) <= 1


def test_an_hour_of_standing_still_hides_no_hang() -> None:
    """What ranks that wait for each other cannot outlast is no habit: the next silence is told after a minute."""
    arrivals = list(saving(3600.0, iterations=60))
    _, reported = followed(arrivals, after=61.0)
    assert firing(reported) == [arrivals[4][0] + 60.0, arrivals[-1][0] + 60.0]


SETTINGS = "node-03:4242:4300 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0\nCUDA_VISIBLE_DEVICES=0,1\n"


def test_lines_that_wait_hold_no_judgement_back() -> None:
    """Behind the last iteration stand settings, which wait for arguments that never come: the hang is told a minute
    after the iteration all the same, and once, though the settings are taken two minutes later.
    """
    lines = [(float(number), line(number, 500, 1.0)) for number in range(1, 120)]
    core, reported = followed([*lines, (120.0, SETTINGS)], after=600.0)
    assert firing(reported) == [119.0 + 60.0]
    assert len(reported) == 1
    assert core.runs["a"].state.attempt.environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    going_on = [(float(second), line(second - 180, 500, 1.0)) for second in range(300, 400)]
    _, reported = followed([*lines, (120.0, SETTINGS), *going_on])
    assert [(item.incident, item.status) for _, item in reported] == [("hang", "firing"), ("hang", "resolved")]


@pytest.mark.parametrize("later", [30.0, 90.0, 150.0])
def test_a_launch_whose_lines_wait_ends_the_hang_before_it_once(later: float) -> None:
    """A hung run is started again, its first lines wait for the arguments: the hang is told once, and over once."""
    lines = [(float(number), line(number, 500, 1.0)) for number in range(1, 120)]
    setup_events = (200.0, SETTINGS + "> setting tensorboard ...\ntime to initialize megatron (seconds): 12.3\n")
    again = [(300.0 + later + number, line(number, 500, 1.0, 4.0)) for number in range(1, 40)]
    core, reported = followed([*lines, setup_events, (200.0 + later, dump(hidden_size=64, num_layers=2)), *again])
    assert [(item.incident, item.status) for _, item in reported] == [("hang", "firing"), ("hang", "resolved")]
    assert firing(reported) == [119.0 + 60.0]
    assert core.runs["a"].state.restarts == 1
