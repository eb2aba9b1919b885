"""A: what is read, whatever its bytes are."""

import os
import socket
import time
from collections.abc import Callable

from tests.e2e.scenarios.harness import Lab, iteration_line
from tests.e2e.scenarios.registry import WRITERS, scenario

NOISE = b"[rank3]: loading shard 17 of 256 " + "über alles läuft Größe 训练日志 ".encode() * 3 + b"\n"


@scenario(1, writers=WRITERS)
def append_one_line(lab: Lab) -> None:
    lab.grow(1)
    lab.grow(1)


JUNK = bytes(range(128, 256)) + b"\xc3\x28\xed\xa0\x80\n"
BLOCKS = NOISE * (3 * (1 << 20) // len(NOISE))
BAR = b"Epoch 3:  41%|####      | 4123/10000 [01:02<01:30, 65.1it/s]\r"
WRITTEN: dict[int, Callable[[Lab], tuple[bytes, ...]]] = {
    2: lambda lab: (lab.units(5000),),
    6: lambda lab: (lab.units(5).replace(b"\n", b"\r\n"),),
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
}
"""What is written in which pieces; whatever it is, its units count."""


def _written(number: int, pieces: Callable[[Lab], tuple[bytes, ...]]) -> None:
    @scenario(number, writers=WRITERS if number == 2 else WRITERS[1:])
    def written(lab: Lab) -> None:
        for place, piece in enumerate(pieces(lab)):
            time.sleep(0.8 * place)
            lab.write(piece)
        lab.expect()


for _number, _pieces in WRITTEN.items():
    _written(_number, _pieces)


@scenario(3, writers=WRITERS)
def split_at_every_byte(lab: Lab) -> None:
    for cut in range(1, len(lab.units(1)) - 1):
        data = lab.units(1)
        lab.write(data[:cut])
        time.sleep(0.001)
        lab.write(data[cut:])
    lab.write(lab.units(1))
    lab.expect(lost=1)  # the first was only measured


@scenario(4)
def partial_last_line(lab: Lab) -> None:
    lab.write(lab.units(3) + iteration_line(99).encode()[:-1])
    lab.expect(hold=1.0)


@scenario(5, own=True)
def partial_line_over_a_restart(lab: Lab) -> None:
    data = lab.units(4)
    cut = len(data) - 250
    lab.write(data[:cut])
    daemon = lab.start()
    daemon.wait(lambda: daemon.value("megatron_iterations_total") == 3)
    assert daemon.terminate() == 0
    lab.write(data[cut:] + lab.units(1))
    lab.follow()


@scenario(7)
def carriage_returns_without_newline(lab: Lab) -> None:
    lab.grow(2)
    before = lab.daemon.rss()
    bar = b"\rEpoch 3:  41%|" + b"#" * 60 + b"| 4123/10000 [01:02<01:30, 65.1it/s]"
    for _ in range(10):
        lab.write(bar * (1_000_000 // len(bar)))
    lab.write(b"\n" + lab.units(2))
    lab.expect()
    assert lab.daemon.rss() - before < 150


@scenario(9)
def another_rank_in_the_middle(lab: Lab) -> None:
    first, overflow = lab.units(1).splitlines(keepends=True)
    torn = first[:150] + b"[rank5]:[W1121 08:00:00 ProcessGroupNCCL.cpp:1] Warning: something\n" + first[150:]
    lab.write(torn + overflow)
    two = lab.units(2).splitlines(keepends=True)
    lab.write(two[0][:-1] + two[2] + two[1] + two[3])  # two ranks' lines without an end between them
    lab.grow(3)


@scenario(13, own=True)
def long_lines(lab: Lab) -> None:
    most = 1 << 20
    lab.write(lab.units(1))
    lab.write(b"m" * most + b"\n" + lab.units(1) + b"n" * (most + 1) + b"\n" + lab.units(1))
    daemon = lab.start()
    before = daemon.rss()
    for _ in range(100):
        lab.write(b"o" * 1_000_000)
    lab.write(b"\n" + lab.units(1))
    lab.expect()
    assert daemon.value("megatron_monitor_lines_total", "too_long") == 2
    assert daemon.rss() - before < 150


@scenario(14, own=True)
def long_last_line(lab: Lab) -> None:
    lab.write(lab.units(2) + b"x" * 3_000_000)
    daemon = lab.follow(hold=2.0)
    size = lab.path().stat().st_size
    assert daemon.value("megatron_monitor_bytes_total") == size
    lab.write(b"\n" + lab.units(1))
    lab.expect()


@scenario(18)
def hole_at_the_head(lab: Lab) -> None:
    with lab.path().open("wb", buffering=0) as stream:  # no O_APPEND: it writes on at its old offset
        stream.write(lab.units(40))
        lab.expect()
        os.truncate(lab.path(), 0)
        time.sleep(1.5)
        stream.write(lab.units(2))
        lab.expect(hold=1.0)


@scenario(18, "10 GB")
def sparse_hole(lab: Lab) -> None:
    with lab.path().open("wb", buffering=0) as stream:
        stream.write(lab.units(2))
        stream.seek(10 << 30)
        stream.write(lab.units(2))
    lab.expect(timeout=15)


@scenario(19)
def reserved_blocks(lab: Lab) -> None:
    data = lab.units(6)
    half = len(data) // 2
    lab.path().write_bytes(data[:half] + bytes(len(data) - half + 10_000))
    time.sleep(1.0)
    with lab.path().open("r+b") as stream:
        stream.seek(half)
        stream.write(data[half:])
    lab.expect()


@scenario(19, "middle")
def blocks_that_arrive_late(lab: Lab) -> None:
    page = lab.units(12)
    page += b"x" * (-(len(page) + 1) % 4096) + b"\n"
    middle = lab.units(12)
    middle += b"x" * (-(len(middle) + 1) % 4096) + b"\n"
    tail = lab.units(2)
    if lab.mode != "poll":  # on one host a page is never seen before the one that was written earlier
        lab.path().write_bytes(page + middle + tail)
    else:
        lab.path().write_bytes(page + bytes(len(middle)) + tail)
        time.sleep(0.3)
        with lab.path().open("r+b") as stream:
            stream.seek(len(page))
            stream.write(middle)
    lab.expect()


@scenario(21)
def no_permission(lab: Lab) -> None:
    lab.fault(call=["open", "fstat"], path=f"{lab.name}/", error="EACCES")
    lab.write(lab.units(2))
    lab.daemon.wait(lambda: lab.daemon.value("megatron_monitor_sources", 'state="unreadable"') >= 1)
    assert not lab.daemon.value("megatron_run_state", lab.run())  # what nobody has read begins no run
    lab.heal()
    lab.expect(timeout=60)
    lab.fault(call=["open"], path=f"{lab.name}/x.log", error="EACCES")
    lab.path().rename(lab.path("x.old"))
    lab.write(lab.units(2))
    time.sleep(2.0)
    lab.heal()
    lab.expect(timeout=60)


@scenario(22)
def no_files(lab: Lab) -> None:
    lab.path("directory.log").mkdir()
    os.mkfifo(lab.path("fifo.log"))
    with socket.socket(socket.AF_UNIX) as channel:
        name = lab.path("s.log")
        here = os.open(name.parent, os.O_RDONLY)
        channel.bind(f"/proc/self/fd/{here}/s.log")  # a socket's path is short
        os.close(here)
        lab.path("device.log").symlink_to("/dev/zero")
        lab.grow(2, hold=1.5)
        assert lab.counted(lab.daemon, f'run="{lab.name}/')[1] == 2


@scenario(23)
def binary(lab: Lab) -> None:
    lab.path("model.log").write_bytes(b"PK\x03\x04" + os.urandom(3_000_000) + lab_line())
    lab.path("weights.log").write_bytes(os.urandom(3_000_000) + lab_line())
    lab.grow(2, hold=1.0)
    assert lab.counted(lab.daemon, f'run="{lab.name}/')[1] == 2


def lab_line() -> bytes:
    """A line that would count if it were read."""
    return (
        b"\n"
        + iteration_line(7).encode()
        + b"[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, reducing to 1\n"
    )
