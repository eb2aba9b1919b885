"""copytruncate of a log that is written all the time, its older copies renamed, and a pattern that finds them too: each
line once, also where a cut is believed only seconds after it was made, because nobody knows what the mount is.
"""

import os
import shutil
from pathlib import Path

import pytest

from megatron_monitor.follow.messages import Data
from megatron_monitor.follow.mounts import Mount, Mounts
from tests.clock import ManualClock
from tests.monitor.follow.conftest import reader_of

COLUMNS = 120  # of a line, so that what is too little to prove anything is written within seconds


class Written:
    """The log, its copies, and what of them was delivered."""

    def __init__(self, directory: Path, mounts: Mounts) -> None:
        self.log, self.clock, self.count = directory / "main.log", ManualClock(), 0
        self.seen: dict[str, bytes] = {}
        self.reader = reader_of(f"{directory}/main.log*", mounts=mounts)

    def stamp(self, path: Path) -> None:
        """It was written now."""
        os.utime(path, (self.clock.wall(), self.clock.wall()))

    def run(self, seconds: float, *, writing: bool = True) -> None:
        """Five lines a second, two looks."""
        for tick in range(int(5 * seconds)):
            self.clock.advance(0.2)
            if writing:
                self.count += 1
                with self.log.open("a") as stream:
                    stream.write(f"{self.count:{COLUMNS}d}\n")
                self.stamp(self.log)
            if tick % 3 == 0:
                for message in self.reader.poll(self.clock):
                    if isinstance(message, Data):
                        self.seen[message.source] = self.seen.get(message.source, b"") + message.data
                self.reader.passed(self.clock.monotonic(), 0.6)

    def rotate(self) -> None:
        """As logrotate does, that keeps all."""
        for number in range(9, 0, -1):
            older = self.log.with_name(f"main.log.{number}")
            if older.exists():
                older.rename(self.log.with_name(f"main.log.{number + 1}"))
        self.copy()
        os.truncate(self.log, 0)
        self.stamp(self.log)

    def copy(self) -> None:
        """Another file in the place of the one before."""
        copy = self.log.with_name("main.log.1")
        shutil.copyfile(self.log, copy.with_suffix(".new"))
        copy.with_suffix(".new").rename(copy)
        self.stamp(copy)

    @property
    def delivered(self) -> list[int]:
        """The numbers of all lines that came."""
        return sorted(int(one) for data in self.seen.values() for one in data.split())


@pytest.fixture(params=["ext4", "nfs", "unknown"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    """On such a mount."""
    return Written(tmp_path, Mounts([] if request.param == "unknown" else [Mount("/", request.param)]))


@pytest.mark.parametrize("every", [12.0, 25.0])
def test_each_line_once(written: Written, every: float) -> None:
    """Rotation after rotation."""
    for _ in range(4):
        written.run(every)
        written.rotate()
    written.run(20.0)
    written.run(70.0, writing=False)
    assert written.delivered == list(range(1, written.count + 1))
    written.reader.close()


def test_a_copy_that_is_no_rotation_is_not_read(written: Written) -> None:
    """Near miss: it takes the place of a rotated file, the log is never cut again, and goes on."""
    written.run(25.0)
    written.rotate()
    written.run(25.0)
    written.copy()
    written.run(100.0)
    written.run(100.0, writing=False)
    assert written.delivered == list(range(1, written.count + 1))
    written.reader.close()


def test_another_file_in_the_place_of_a_copy_is_read(written: Written) -> None:
    """Near miss: it holds what nobody has delivered."""
    written.run(25.0)
    written.rotate()
    written.run(25.0)
    written.log.with_name("main.log.1").unlink()
    other = "".join(f"{1_000_000 + number:{COLUMNS}d}\n" for number in range(100))
    written.log.with_name("main.log.1").write_text(other)
    written.stamp(written.log.with_name("main.log.1"))
    written.run(80.0)
    assert written.delivered == [*range(1, written.count + 1), *range(1_000_000, 1_000_100)]
    written.reader.close()
