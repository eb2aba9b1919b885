"""What the forwarder pushes: by which clock lines are dated, and which answers confirm them."""

import gzip
import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from megatron_monitor.follow.patterns import WatchedPath
from megatron_monitor.forward import Forwarder, Target
from tests.clock import ManualClock
from tests.monitor.notifiers.receiver import Receiver
from tests.programs import serving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """One that accepts at first."""
    with serving(Receiver()) as server:
        yield server


@pytest.mark.parametrize(
    ("status", "retry_after", "wait"),
    [(204, None, None), (400, None, None), (413, None, None), (415, None, None), (200, None, 0.0), (401, None, 0.0),
     (404, None, 0.0), (429, "7", 7.0), (503, "86400", 30.0), (503, "²", 0.0), (503, "soon", 0.0)],
)  # fmt: skip
def test_only_a_receiver_confirms_lines(
    receiver: Receiver, status: int, retry_after: str | None, wait: float | None
) -> None:
    """204 does, and lines that can never be read are dropped; a page of another server is no confirmation."""
    receiver.answers, receiver.headers = [status], {} if retry_after is None else {"Retry-After": retry_after}
    assert Target(receiver.url).push(b"lines") == wait


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(receiver: Receiver, status: int) -> None:
    """The lines would not be sent with it, its answer would confirm them, and the token would go to another server."""
    with serving(Receiver()) as other:
        receiver.answers, receiver.headers = [status], {"Location": other.url}
        assert Target(receiver.url).push(b"lines") == 0.0
        assert (len(receiver.received), other.received) == (1, [])


class Noting(Target):
    """A receiver that notes what is pushed."""

    def __init__(self) -> None:
        super().__init__("http://x")
        self.lines, self.heartbeats = list[tuple[float, str]](), list[float]()

    def push(self, body: bytes) -> float | None:
        """Accept it."""
        for stream in json.loads(gzip.decompress(body))["streams"]:
            for at, text in stream["values"]:
                if "heartbeat" in stream["stream"]:
                    self.heartbeats.append(int(at) / 1e9)
                else:
                    self.lines.append((int(at) / 1e9, text))
        return None


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("seconds", [-3600.0, 3600.0])
def test_the_wall_clock_is_set(tmp_path: Path, seconds: float, killed: bool) -> None:
    """Lines and heartbeats go on as if it had not been: no line is dated far ahead, and none repeats a time. Of a
    forwarder that is killed only a clock that is set back behind its last line is known to have been set.
    """
    clock, target, path, began = ManualClock(wall=1.8e9), Noting(), tmp_path / "a.log", 1.8e9

    def started() -> Forwarder:
        watches = [WatchedPath(str(path), ())]
        forwarder = Forwarder(watches, target, {}, tmp_path / "state", clock, ("agent", "n", 5.0))
        forwarder._follower.start()
        return forwarder

    path.write_text("")
    forwarder = started()
    for number in range(7):
        if number == 3:
            clock.set_wall(clock.wall() + seconds)
        if number == 5 and killed:
            forwarder._follower.stop(5.0)
            forwarder._store.release()
            forwarder = started()
        with path.open("a") as stream:
            stream.write(f"line {number}\n")
        os.utime(path, (began + 5.0 * number, began + 5.0 * number))
        for _ in range(100):
            if len(target.lines) <= number:
                forwarder._follower.wake()  # the clock stands still
                forwarder._turn()
        forwarder._send_heartbeat("forward")
        clock.advance(5.0)
    forwarder._follower.stop(5.0)
    forwarder._store.release()
    assert [text for _, text in target.lines] == [f"line {number}" for number in range(7)]
    for dates in ([at for at, _ in target.lines], target.heartbeats):
        assert [round(later - at) for at, later in pairwise(dates)] == [5] * 6
