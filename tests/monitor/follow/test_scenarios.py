"""What can happen to a log, by a numbered list: each unit that a training writes counts once.

A unit is one iteration line and one overflow line; every overflow line is counted, so a unit that is read twice shows.
The follower reads real files through `FaultyOs` into a core, on a clock that stands still; each scenario is played on a
local file system and on a network mount.
"""

import gzip
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.core.saved import Saved
from megatron_monitor.run.steps.copies import Overflows
from tests.clock import ManualClock
from tests.lines import line
from tests.monitor.follow.conftest import FaultyOs, reader_of
from tests.plain import decode, encode

OVERFLOW = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n"
NOISE = b"[rank3]: loading shard 17 of 256 " + "über alles läuft Größe 训练日志 ".encode() * 3 + b"\n"


def units(count: int, first: int = 1) -> bytes:
    """So many units, iterations from `first` on."""
    return "".join(line(n, 100_000, loss=3 + n / 7) + OVERFLOW for n in range(first, first + count)).encode()


class Lab:
    """A directory below what a daemon follows, its writer, and the core that counts."""

    def __init__(self, root: Path, file_system: str) -> None:
        self.root, self.file_system, self.next = root, file_system, 1
        self.clock, self.os = ManualClock(), FaultyOs()
        self._begin(None)

    def _begin(self, saved: Saved | None) -> None:
        self.core = Core(load(f"runs: [{{paths: ['{self.root}/**/*.log']}}]"))
        positions = self.core.restore(saved) if saved is not None else {}
        patterns = (f"{self.root}/**/*.log", f"{self.root}/**/main_*.log", f"{self.root}/**/*.rot*")
        self.reader = reader_of(*patterns, mounts=self.file_system, os_layer=self.os, resume=positions)
        self.wait(0.5)

    def restart(self, away: Callable[[], object] = lambda: None) -> None:
        """The daemon is killed, something happens, and another one begins with what was saved."""
        saved = decode(encode(self.core.save(self.clock.wall())), Saved)
        self.reader.close()
        away()
        self.clock.advance(2.0)
        self._begin(saved)

    def path(self, name: str = "x.log") -> Path:
        """A file that is followed."""
        return self.root / name

    def units(self, count: int) -> bytes:
        """The next ones."""
        self.next += count
        return units(count, self.next - count)

    def write(self, data: bytes, name: str | Path = "x.log") -> None:
        """As a logger does that opens its file each time."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as stream:
            stream.write(data)
        os.utime(path, (self.clock.wall(),) * 2)

    def wait(self, seconds: float) -> None:
        """Time passes, in steps of a quarter of a second."""
        for _ in range(int(4 * seconds)):
            self.clock.advance(0.25)
            for _ in range(1000):
                for message in self.reader.poll(self.clock):
                    self.core.handle(message, self.clock.wall())
                if not any(source.has_more for source in self.reader.sources.values()):
                    break
            self.reader.end_pass(self.clock.monotonic(), 0.25)
            self.core.tick(self.clock.wall())

    def counted(self) -> tuple[int, int]:
        """Iterations and overflow lines of all runs."""
        states = [run.state for run in self.core.runs.values()]
        return sum(one.iterations_total for one in states), sum(one.overflows_total for one in states)

    def expect(self, count: int | None = None, seconds: float = 20.0, *, overflows: int | None = None) -> None:
        """Each unit once (default: all that were written), and it stays so."""
        wanted = self.next - 1 if count is None else count
        self.wait(seconds)
        assert self.counted() == (wanted, wanted if overflows is None else overflows)

    def grow(self, count: int, seconds: float = 20.0) -> None:
        """The next units are written, and each is counted once."""
        self.write(self.units(count))
        self.expect(seconds=seconds)


@pytest.fixture(params=["ext4", "nfs4"])
def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """On a local file system, and on a mount."""
    monkeypatch.setattr(Overflows, "add_line", lambda *_: True)
    (tmp_path / "logs").mkdir()
    one = Lab(tmp_path / "logs", request.param)
    yield one
    one.reader.close()
    assert not one.os.paths, "a descriptor leaked"


# --- A: what is read, whatever its bytes are -------------------------------------------------------------------------

JUNK = bytes(range(128, 256)) + b"\xc3\x28\xed\xa0\x80\n"
BLOCKS = NOISE * ((3 << 20) // len(NOISE))
BAR = b"Epoch 3:  41%|####      | 4123/10000 [01:02<01:30, 65.1it/s]\r"
BYTES: dict[int, Callable[[Lab], tuple[bytes, ...]]] = {
    1: lambda lab: (lab.units(1), lab.units(1)),
    2: lambda lab: (lab.units(5000),),
    6: lambda lab: (lab.units(5).replace(b"\n", b"\r\n"),),
    7: lambda lab: (lab.units(2), *[b"\r" + BAR * 15_000] * 10, b"\n" + lab.units(2)),
    8: lambda lab: (b"".join(BAR + one for one in lab.units(4).splitlines(keepends=True)),),
    10: lambda lab: (b"\n\n\r\n\n" + lab.units(2).replace(b"\n", b"\n\n\n"),),
    11: lambda lab: (b" ", lab.units(1)),
    12: lambda lab: (b"", lab.units(2)),
    15: lambda lab: (JUNK + lab.units(2) + JUNK + b"\xff\xfe" + lab.units(1),),
    16: lambda lab: (b"x" + BLOCKS + lab.units(1) + BLOCKS + lab.units(2),),
    17: lambda lab: (b"\xef\xbb\xbf" + lab.units(3),),
    20: lambda lab: (
        lab.units(4).replace(b" | ", b" \x1b[0m|\x1b[33m ").replace(b"\n", b"\x1b[0m\n\x1b[32m\x1b[1m") + b"\n",
    ),
    88: lambda lab: (
        lab.units(4),  # a file that begins with noise is no log
        *(os.urandom(n * 977 % 5000).translate(None, b"\r\n") + b"\n" + lab.units(2) for n in range(60)),
    ),
}
"""What is written in which pieces."""


@pytest.mark.parametrize("number", BYTES)
def test_bytes(lab: Lab, number: int) -> None:
    """Whatever it is, its units count."""
    for piece in BYTES[number](lab):
        lab.write(piece)
        lab.wait(0.25)
    lab.expect()


def test_03_split_at_every_byte(lab: Lab) -> None:
    for cut in range(1, len(units(1)) - 1):
        data = lab.units(1)
        lab.write(data[:cut])
        lab.wait(0.25)
        lab.write(data[cut:])
    lab.expect()


def test_04_05_14_a_last_line_without_an_end(lab: Lab) -> None:
    data = lab.units(4)
    lab.write(data[:-250])
    lab.expect(3)
    lab.restart(lambda: lab.write(data[-250:] + b"x" * 3_000_000))
    lab.expect()
    lab.write(b"\n" + lab.units(1))
    lab.expect()


def test_09_another_rank_in_the_middle(lab: Lab) -> None:
    first, overflow = lab.units(1).splitlines(keepends=True)
    lab.write(first[:150] + b"[rank5]:[W1121 08:00:00 ProcessGroupNCCL.cpp:1] Warning: it\n" + first[150:] + overflow)
    two = lab.units(2).splitlines(keepends=True)
    lab.write(two[0][:-1] + two[2] + two[1] + two[3])  # two ranks' lines without an end between them
    lab.grow(3)


def test_13_long_lines(lab: Lab) -> None:
    for size in ((1 << 20), (1 << 20) + 1, 30_000_000):
        lab.write(b"m" * size + b"\n" + lab.units(1))
    lab.expect()


def test_19_nuls_that_are_written_over(lab: Lab) -> None:
    data = lab.units(6)
    half = len(data) // 2
    lab.write(data[:half] + bytes(len(data) - half + 10_000))
    lab.wait(1.0)
    with lab.path().open("r+b") as stream:
        stream.seek(half)
        stream.write(data[half:])
    lab.expect()


def test_22_23_no_logs(lab: Lab) -> None:
    lab.path("directory.log").mkdir()
    os.mkfifo(lab.path("fifo.log"))
    lab.path("device.log").symlink_to("/dev/zero")
    lab.write(b"PK\x03\x04" + os.urandom(300_000) + b"\n" + units(1, 7), "model.log")
    lab.write(os.urandom(300_000) + b"\n" + units(1, 7), "weights.log")
    with socket.socket(socket.AF_UNIX) as channel:
        here = os.open(lab.root, os.O_RDONLY)
        channel.bind(f"/proc/self/fd/{here}/s.log")  # a socket's path is short
        os.close(here)
        lab.grow(2)


# --- B: rotation and identity: one path is one endless log ----------------------------------------------------------


def test_25_five_renames_at_once(lab: Lab) -> None:
    lab.write(lab.units(3), "x.rot")
    lab.expect()
    for _ in range(5):
        for number in range(5, 0, -1):
            if lab.path(f"x.rot.{number}").exists():
                lab.path(f"x.rot.{number}").rename(lab.path(f"x.rot.{number + 1}"))
        lab.path("x.rot").rename(lab.path("x.rot.1"))
        lab.write(lab.units(3), "x.rot")
    lab.expect()


def test_27_rename_and_compress(lab: Lab) -> None:
    lab.grow(50)
    lab.write(lab.units(5))
    lab.path().rename(lab.path("x.log.1"))
    lab.write(lab.units(5))
    lab.wait(5.0)
    lab.path("x.log.1.gz").write_bytes(gzip.compress(lab.path("x.log.1").read_bytes()))
    lab.path("x.log.1").unlink()
    lab.grow(5)


def test_32_atomic_replace(lab: Lab) -> None:
    data = lab.units(30)
    lab.write(data)
    lab.expect()
    for _ in range(3):  # rsync of a growing file
        data += lab.units(2)
        lab.write(data, "x.tmp")
        lab.path("x.tmp").replace(lab.path())
        lab.expect()


def test_36_37_38_links(lab: Lab, tmp_path: Path) -> None:
    targets = [lab.path("job0.txt"), lab.path("job1.txt"), tmp_path / "elsewhere.txt"]
    for target in targets:
        lab.path("next").symlink_to(target)
        lab.path("next").replace(lab.path())
        lab.wait(2.0)  # it leads nowhere yet
        lab.write(lab.units(3), target)
        lab.expect(seconds=90)
        lab.write(lab.units(2), target)
        lab.expect()


def test_39_hard_link_and_two_patterns(lab: Lab) -> None:
    lab.grow(3)
    os.link(lab.path(), lab.path("again.log"))
    lab.path("main_x.log").symlink_to(lab.path())
    lab.grow(3, seconds=90)


def test_40_one_banner(lab: Lab) -> None:
    banner = (b"using world size: 64, data-parallel-size: 8, tensor-model-parallel size: 4 " + b"." * 60 + b"\n") * 30
    for name, count in (("a.log", 10), ("b.log", 5)):
        lab.write(banner + lab.units(count), name)
    lab.expect()
    assert [run.state.iterations_total for _, run in sorted(lab.core.runs.items())] == [10, 5]


def test_41_42_rotation_during_a_restart(lab: Lab) -> None:
    for size in (10, 300, 1500, 5000):  # past what proves who it is
        lab.write(b"n" * size + b"\n" + lab.units(1))
        lab.expect()
        lab.restart()
    lab.write(lab.units(5))

    def away() -> None:
        lab.write(lab.units(5))
        lab.path().rename(lab.path("x.log.1"))
        lab.write(lab.units(5))

    lab.expect()
    lab.restart(away)
    lab.expect()


def test_46_skewed_clock(lab: Lab) -> None:
    for seconds in (86_400, -86_400, 10 * 365 * 86_400):
        lab.write(lab.units(2))
        os.utime(lab.path(), (lab.clock.wall() + seconds,) * 2)
        lab.expect()


# --- C: network file systems. Proved: what the follower does with these answers, not that a client gives them --------


def test_53_device_changes(lab: Lab) -> None:
    lab.grow(10)
    lab.os.doctor = lambda found: os.stat_result(
        [*found[:2], found[2] + 7, *found[3:]],
        {"st_mtime_ns": found.st_mtime_ns, "st_ctime_ns": found.st_ctime_ns},
    )
    lab.grow(2, seconds=60)


@pytest.mark.parametrize("lie", ["repeat", "hide"])
def test_54_scandir_lies(lab: Lab, monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    lab.grow(3)
    real = lab.os.scandir

    def lying(path: str) -> Iterator[object]:
        for entry in real(path):
            yield from [entry] * (2 if lie == "repeat" else entry.name != "x.log")

    monkeypatch.setattr(lab.os, "scandir", lying)
    lab.write(b"noise\n", "z.log")
    lab.grow(2, seconds=60)


def test_55_leftovers_of_nfs(lab: Lab) -> None:
    lab.grow(3)
    lab.write(lab.path().read_bytes(), ".snapshot/hourly.0/x.log")
    os.link(lab.path(), lab.path(".nfs00000000012345"))
    lab.expect(seconds=90)


# --- E, F: many files, odd names -------------------------------------------------------------------------------------


def test_70_fair_reads(lab: Lab) -> None:
    lab.write(units(1) + NOISE * (50_000_000 // len(NOISE)), "a-big.log")
    for number in range(50):
        lab.write(units(1), f"f{number:03}.log")
    read = 0
    while len(lab.core.runs) < 51:
        lab.clock.advance(0.25)
        for message in lab.reader.poll(lab.clock):
            read += len(getattr(message, "data", b""))
            lab.core.handle(message, lab.clock.wall())
    assert read < 20_000_000, "the small files waited for the large one"


def test_74_a_path_that_is_no_text(lab: Lab) -> None:
    with open(os.fsencode(lab.root) + b"/caf\xe9-\xff\n\x1b[31m.log", "wb") as stream:
        stream.write(lab.units(3))
    lab.expect(seconds=60)
    assert all(name.encode() for name in lab.core.runs)
