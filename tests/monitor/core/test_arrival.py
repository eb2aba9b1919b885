"""What the time at which lines arrive tells: the pace of step lines without time and stamp, never how they are
buffered; and that a block of lines at the end of its file is whole.
"""

from collections.abc import Iterable, Iterator
from random import Random

import pytest

from megatron_monitor.core import Core
from megatron_monitor.follow.messages import CaughtUp
from megatron_monitor.incidents import Transition
from megatron_monitor.run.state import RunState
from tests.monitor.core.test_core import core_for, data, opened

PATH = "/l/a.log"
START = 1_700_000_000.0


def step(number: int) -> bytes:
    """OpenRLHF's line without its timings."""
    return f"Global step {number}: {{'policy_loss': 0.02, 'kl': 0.1}}\n".encode()


def followed(arrivals: Iterable[tuple[float, bytes]], *, behind: int = 0) -> tuple[Core, RunState, list[Transition]]:
    """A file that is read to its end, and then grows by these bytes at these seconds."""
    core, offset, reported = core_for(), 0, list[Transition]()
    core.handle(opened(PATH, START), START)
    core.handle(CaughtUp(PATH, START), START)
    for after, text in arrivals:
        at = START + after
        message = data(PATH, text, offset, at, at)
        core.handle(type(message)(PATH, offset, text, at, at, behind), at)
        reported += core.tick(at)
        offset += len(text)
    return core, core.runs["a"].state, reported


def steady(seconds: float, count: int, *, slower: float = 1.0, look: float = 0.5, seed: int = 1) -> Iterator[float]:
    """When steps are written, as looks at the file every `look` seconds see them."""
    chance, at = Random(seed), 0.0
    for number in range(count):
        at += seconds * (slower if number >= count // 2 else 1.0) * (1 + chance.gauss(0, 0.01))
        yield (at // look + 1) * look


def test_single_lines_give_the_pace() -> None:
    """Lines that come one by one: their pace, and a step of 30 % in it."""
    lines = [(at, step(number)) for number, at in enumerate(steady(30.0, 120, slower=1.3), 1)]
    _, state, reported = followed(lines)
    assert state.attempt.pace.baseline == pytest.approx(39.0, rel=0.05)
    (slow,) = [item for item in reported if item.incident == "slowdown"]
    assert slow.onset_iteration == pytest.approx(60, abs=8)  # a lap may be as long
    assert followed(lines[:60])[2] == []


def test_dicts_alone_give_the_pace() -> None:
    """A trainer's dict that names neither step nor time: each counts. Before a save is known, a silence of ten minutes
    is a hang.
    """
    lines = [
        (at, f"{{'loss': {3 - number / 100}, 'epoch': {number / 100}}}\n".encode())
        for number, at in enumerate(steady(30.0, 60), 1)
    ]
    core, state, _ = followed(lines)
    assert (state.iterations_total, state.attempt.pace.baseline) == (60, pytest.approx(30.0, rel=0.05))
    (hung,) = [item for item in core.tick(START + lines[-1][0] + 620.0) if item.severity == "critical"]
    assert hung.incident == "hang"


@pytest.mark.parametrize("flush", [30.0, 61.0, 240.0])
@pytest.mark.parametrize("seconds", [7.0, 20.0, 28.0])
def test_a_buffer_is_no_slowdown(flush: float, seconds: float) -> None:
    """Lines that a buffer or a file system's cache lets go together every so often: nobody is told of anything."""
    bursts: dict[float, list[int]] = {}
    for number, at in enumerate(steady(seconds, 300, seed=int(flush + seconds)), 1):
        bursts.setdefault((at // flush + 1) * flush, []).append(number)
    _, state, reported = followed((at, b"".join(map(step, numbers))) for at, numbers in bursts.items())
    assert reported == []
    if seconds < flush / 2:
        assert state.attempt.pace.baseline is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lag", ["any", "full"])
def test_a_cache_that_begins_to_hold_lines_back_is_no_slowdown(lag: str, seed: int) -> None:
    """From one step on each line is seen up to 30 s late, as a network file system's cache shows it."""
    chance, seen = Random(seed), dict[float, bytes]()
    last = 0.0
    for number, at in enumerate(steady(45.0, 400, seed=seed), 1):
        late = chance.uniform(0.0, 30.0) if lag == "any" else 30.0 - at % 30.0
        last = max(last, at + (late if number > 200 else 0.0))
        seen[last] = seen.get(last, b"") + step(number)
    assert followed(seen.items())[2] == []


def test_what_lags_behind_gives_no_pace() -> None:
    """A reader that is behind, a backlog, and lines after an hour in which nobody listened say nothing."""
    lines = [(at, step(number)) for number, at in enumerate(steady(30.0, 40), 1)]
    assert followed(lines, behind=1)[1].attempt.pace.baseline is None
    core = core_for()
    core.handle(opened(PATH, START), START)
    for number in range(1, 40):
        core.handle(data(PATH, step(number), (number - 1) * len(step(1)), START, START + number), START + number)
    assert core.runs["a"].state.attempt.pace.baseline is None


HEAD = b"[batch=%d/100]:\n"
BODY = b"\t Train time/batch: %d\n\t Train loss/train/total: 11.5\n"


def test_a_block_that_stands_whole_at_the_end_counts() -> None:
    """Composer's last batch needs no further line; one that is written in two pieces is not cut, nor counted twice."""
    block = HEAD % 2 + BODY % 1
    core, state, _ = followed([(10.0, HEAD % 1 + BODY % 0), (20.0, block[:-8])])
    assert state.iterations_total == 1
    core.tick(START + 60.0)
    assert state.iterations_total == 1  # its last line has no end
    offset = len(HEAD % 1 + BODY % 0 + block) - 8
    core.handle(data(PATH, block[-8:], offset, START + 70.0, START + 70.0), START + 70.0)
    core.tick(START + 74.0)
    assert state.iterations_total == 1
    core.tick(START + 75.5)
    assert (state.iterations_total, state.attempt.latest.iteration, state.attempt.latest.lm_loss) == (2, 2, 11.5)
    assert state.attempt.step_timer.at == START + 70.0
    core.handle(data(PATH, HEAD % 3, offset + 8, START + 80.0, START + 80.0), START + 80.0)
    core.tick(START + 90.0)
    assert state.iterations_total == 2  # the third has no values yet


def test_a_block_that_the_backlog_ends_with_may_go_on() -> None:
    """A daemon that starts amid LSF's report waits for its rest, which names the cause, and dates it when it came."""
    begun = step(1) + b"Sender: LSF System <lsfadmin@b>\nSubject: Job 4242: <gpt3> in cluster <summit> Exited\n\n"
    rest = b"Exited with signal termination: Segmentation fault, and core dumped.\n\nResource usage summary:\n"
    core = core_for()
    for message in (opened(PATH, START), data(PATH, begun, mtime=START, at=START), CaughtUp(PATH, START)):
        core.handle(message, START)
    core.tick(START + 1)
    core.handle(data(PATH, rest, len(begun), mtime=START + 2, at=START + 2), START + 2)
    reported = [one for second in range(2, 15) for one in core.tick(START + second)]
    assert [(one.incident, one.evidence["failure"]) for one in reported] == [("crash", "segfault")]
    assert core.runs["a"].state.attempt.failure is not None
    assert core.runs["a"].state.attempt.failure.at == START + 2
