"""A member is killed at any moment, and another goes on later, by what was saved then: people are told what they would
have been told without that, each once.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from megatron_monitor.store import encoded
from tests.kafka_partition import Partition
from tests.lines import line

_FAILS = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
_KILLED = range(1, 60, 4)  # seconds: from the first line to the last crash
_OVER = 95


class Judged(NamedTuple):
    """What is known of a run at the end."""

    reported: list[tuple[str, str]]
    iterations: int
    attempt: int


def _steps(begin: float, first: int, last: int) -> Iterator[tuple[float, str]]:
    return ((begin + number - first, line(number, seconds=1.0)) for number in range(first, last + 1))


_LINES = {
    "fails": [*_steps(1, 1, 30), (30, _FAILS)],
    "hangs": [*_steps(1, 1, 30)],
    "comes late": [*_steps(23, 1, 8), (30, _FAILS)],
    "is short": [*_steps(36, 1, 2), (37, _FAILS)],
    "comes back": [*_steps(1, 1, 18), (18, _FAILS), *_steps(27, 15, 40), (52, _FAILS)],
    "goes on": [*_steps(1, 1, _OVER)],
}


_CRASH, _AGAIN = ("crash", "firing"), ("crash", "resolved")
_REPORTED = {
    "fails": Judged([_CRASH], 30, 0),
    "hangs": Judged([("hang", "firing")], 30, 0),
    "comes late": Judged([_CRASH], 8, 0),
    "is short": Judged([_CRASH], 2, 0),
    "comes back": Judged([_CRASH, _AGAIN, _CRASH], 44, 1),
    "goes on": Judged([], _OVER - 2, 0),
}
"""What becomes of them: what was written in the last seconds still waits for what may lie before it."""


class Story:
    """The partition, second by second."""

    def __init__(self) -> None:
        self.partition, self.second = Partition(), 0

    def tell(self, until: int, *, read: bool = True) -> None:
        """Up to that second; not `read`: nobody has the partition."""
        while self.second < until:
            self.second += 1
            for run, lines in _LINES.items():
                if texts := [text for at, text in lines if at == self.second]:
                    self.partition.write(run, *texts)
            if read:
                self.partition.turn(0.99)
            else:
                self.partition.clock.advance(1.0)

    def known(self) -> bytes:
        """What a member would save now."""
        core = self.partition.shard.core
        core.touch_all()
        return encoded(core.parts(self.partition.shard.now()))

    def kill(self, seconds: int, known: bytes) -> None:
        """The member is gone; after so many seconds another one begins, by what is `known`."""
        self.partition.shard.close(save=False)
        self.tell(self.second + seconds, read=False)
        self.partition.record.data = known
        self.partition.take_over()

    def evaluated(self) -> dict[str, Judged]:
        """At the end."""
        self.tell(_OVER)
        self.partition.shard.close(save=False)
        return {
            name: Judged(
                [(one.incident, one.status) for one in run.book.history if not one.display_only],
                run.state.iterations_total,
                run.state.attempt.number,
            )
            for name, run in self.partition.shard.core.runs.items()
        }


@pytest.fixture(scope="module")
def saved() -> list[bytes]:
    """What one member that has the partition all the time knows, by second."""
    story, known = Story(), list[bytes]()
    while story.second < max(_KILLED):
        known.append(story.known())
        story.tell(story.second + 1)
    assert story.evaluated() == _REPORTED
    return known


@pytest.mark.parametrize("killed", _KILLED)
def test_whoever_takes_over_tells_what_the_member_before_would_have_told(saved: list[bytes], killed: int) -> None:
    """Killed at that second. The next one goes on by a state from up to 8 s before, and is there at once, after the
    usual seconds, or when all is long over.
    """
    story = Story()
    story.tell(killed, read=False)
    story.kill((0, 12, 35)[killed % 3], saved[max(1, killed - killed % 9)])
    assert story.evaluated() == _REPORTED


def test_members_that_are_killed_again_and_again(saved: list[bytes]) -> None:
    """Each after some seconds, with what it saved a few seconds before it was killed, as it was still behind."""
    story, known = Story(), saved[1]
    story.tell(1)
    while story.second < 70:
        story.kill(7, known)
        story.tell(story.second + 1)
        known = story.known()
        story.tell(story.second + 3)
    assert story.evaluated() == _REPORTED


def test_the_silence_of_brokers_is_none_of_trainings() -> None:
    """Nobody could write or read for long: whoever comes then tells of no hang, and one that follows is told."""
    partition = Partition()
    partition.train(1, 21, "tr11", 1.0)
    partition.shard.close(save=True)
    partition.clock.advance(600.0)
    for step in range(21, 24):
        partition.write("tr11", line(step, seconds=1.0))
        partition.clock.advance(1.0)
    shard = partition.take_over()
    partition.turns(10)
    assert partition.iterations("tr11") == 23
    assert not shard.core.runs["tr11"].book.history
    partition.turns(130)
    assert {(one.incident, one.status) for one in shard.core.runs["tr11"].book.history} == {("hang", "firing")}
    shard.close(save=False)


def test_what_lay_there_when_the_first_member_began_is_history() -> None:
    """It is shown and not told, by whoever takes over later, too; what comes then is told."""
    partition = Partition()
    partition.shard.close(save=False)
    for step in range(1, 21):
        partition.write("old", line(step, seconds=1.0))
        partition.clock.advance(1.0)
    partition.write("old", _FAILS)
    partition.record.data = b""
    partition.take_over()
    partition.turns(10)
    partition.shard.close(save=True)
    partition.take_over()
    partition.train(1, 11, "new", 1.0)
    partition.write("new", _FAILS)
    partition.turns(20)
    reported = {name: [one.incident for one in run.book.history] for name, run in partition.shard.core.runs.items()}
    assert (reported, partition.iterations("old")) == ({"old": [], "new": ["crash"]}, 20)
    partition.shard.close(save=False)
