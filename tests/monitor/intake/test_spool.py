"""The spool: what it took is on the disk, once, whatever the disk, the sender and kill -9 do."""

import errno
import os
from pathlib import Path

import pytest

from megatron_monitor.intake import spool as module
from megatron_monitor.intake.carriers import Carriers
from megatron_monitor.intake.labels import Written
from megatron_monitor.intake.spool import Spool, SpoolError
from tests.clock import ManualClock

NS = 1_777_000_000_000_000_000
NOW = NS / 1e9
STREAM = Written("gpt", "gpt/node7~1", "[pod/gpt-0/t] ")
HEAD = "2026-04-24T03:06:40.000000000Z [pod/gpt-0/t] "


def opened(directory: Path, total: int = 1 << 30, per_stream: int = 1 << 26) -> Spool:
    """A spool that is open."""
    spool = Spool(directory / "spool", total, lambda: None, per_stream)
    spool.open(NOW)
    return spool


def lines(directory: Path, name: str = "gpt/node7~1.log") -> list[str]:
    """What lies there."""
    return (directory / "spool" / name).read_text().splitlines()


def test_a_line_counts_once(tmp_path: Path) -> None:
    """One with the same nanosecond and text came again; another text, or another nanosecond, did not. Over a restart
    too.
    """
    spool = opened(tmp_path)
    assert spool.append(STREAM, [(NS, b"a"), (NS, b"b"), (NS + 1, b"a")], NOW) == (3, 0)
    assert spool.append(STREAM, [(NS, b"b"), (NS + 2, b"a")], NOW) == (1, 1)
    spool.close()
    spool = opened(tmp_path)
    assert spool.append(STREAM, [(NS, b"a"), (NS + 2, b"a"), (NS + 3, b"a")], NOW) == (1, 2)
    assert lines(tmp_path)[0] == HEAD + "a"
    assert len(lines(tmp_path)) == 5


def test_an_entry_of_several_lines(tmp_path: Path) -> None:
    """Each is a line; equal ones in it stay, and the entry that comes again is dropped whole. JSON that wraps a line is
    taken off.
    """
    spool = opened(tmp_path)
    wrapped = b'{"log":"hello\\n","stream":"stdout","time":"2026-04-24T03:06:40Z"}'
    entries = [(NS, b"Traceback:\n\n\n  x\n"), (NS + 9, wrapped), (NS + 10, b'{"loss": 1}')]
    assert spool.append(STREAM, entries, NOW) == (6, 0)
    assert spool.append(STREAM, entries, NOW) == (0, 6)
    assert [line[45:] for line in lines(tmp_path)] == [
        "Traceback:", "", "", "  x", "2026-04-24T03:06:40Z stdout F hello", '{"loss": 1}'
    ]  # fmt: skip


def test_what_a_death_in_the_middle_of_a_write_leaves(tmp_path: Path) -> None:
    """A line without an end was nobody's success: it is cut off, and taken when it comes again."""
    spool = opened(tmp_path)
    spool.append(STREAM, [(NS, b"first")], NOW)
    spool.close()
    path = tmp_path / "spool" / "gpt" / "node7~1.log"
    path.write_text(path.read_text() + HEAD + "sec")
    spool = opened(tmp_path)
    assert spool.append(STREAM, [(NS, b"second"), (NS, b"first")], NOW) == (1, 1)
    assert path.read_text() == f"{HEAD}first\n{HEAD}second\n"


def test_lines_with_other_line_ends_and_directories_called_like_logs(tmp_path: Path) -> None:
    """Over a restart a line with a CR in it is known as it is, and what is no file is let be."""
    spool = opened(tmp_path)
    assert spool.append(STREAM, [(NS, b"10%\r20%"), (NS, b"a\x0cb")], NOW) == (2, 0)
    spool.close()
    (tmp_path / "spool" / "gpt" / "x.log").mkdir()
    spool = opened(tmp_path)
    assert spool.append(STREAM, [(NS, b"10%\r20%"), (NS, b"a\x0cb")], NOW) == (0, 2)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be written is no success, and what had been begun is finished first: no line is torn or lost."""
    spool = opened(tmp_path)
    spool.append(STREAM, [(NS, b"first")], NOW)
    write, room = os.write, [10]

    def full(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "no space left")
        count = write(descriptor, data[: room[0]])
        room[0] -= count
        return count

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "write", full)
        for _ in range(2):
            with pytest.raises(OSError, match="no space"):
                spool.append(STREAM, [(NS + 1, b"second")], NOW)
    assert spool.append(STREAM, [(NS + 1, b"second"), (NS + 2, b"third")], NOW) == (1, 1)
    assert [line[-6:].strip() for line in lines(tmp_path)] == ["first", "second", "third"]


def test_a_flush_that_failed_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that are there already are called safe only when they were flushed."""
    spool, flushed = opened(tmp_path), list[int]()

    def failing(_descriptor: int) -> None:
        raise OSError(errno.EIO, "bad disk")

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fdatasync", failing)
        with pytest.raises(OSError, match="bad disk"):
            spool.append(STREAM, [(NS, b"first")], NOW)
    monkeypatch.setattr(module.os, "fdatasync", flushed.append)
    assert spool.append(STREAM, [(NS, b"first")], NOW) == (0, 1)
    assert len(flushed) == 1


def test_it_is_bounded(tmp_path: Path) -> None:
    """A stream's file is begun anew at half its share; beyond the total the oldest halves go, then it is full. A line
    that lies in the half before is known.
    """
    spool = opened(tmp_path, per_stream=2000, total=4000)
    for number in range(100):
        spool.append(STREAM, [(NS + number, b"x" * 40)], NOW)
    kept = [*lines(tmp_path, "gpt/node7~1.log.1"), *lines(tmp_path)]
    assert len(kept) * 86 <= 2100
    assert spool.append(STREAM, [(NS + number, b"x" * 40) for number in range(90, 100)], NOW) == (0, 10)
    for other in range(4):
        spool.append(Written("gpt", f"gpt/node7~{other + 2}", ""), [(NS, b"y" * 900)], NOW)
    assert not (tmp_path / "spool" / "gpt" / "node7~1.log.1").exists()
    with pytest.raises(OSError, match="used up"):
        spool.append(Written("gpt", "gpt/one", ""), [(NS, b"y")], NOW)


def test_files_of_old(tmp_path: Path) -> None:
    """Few are open at once, and what one that was closed ends with is known all the same; what has been still for a
    week is gone at the next start; where there is no room what nobody writes to goes.
    """
    spool = opened(tmp_path)
    streams = [Written("gpt", f"gpt/n~{number}", "") for number in range(300)]
    assert {spool.append(stream, [(NS, b"x")], NOW) for stream in streams} == {(1, 0)}
    assert len(spool._files) <= 257
    assert spool.append(streams[0], [(NS, b"x"), (NS + 1, b"x")], NOW + 1.0) == (1, 1)
    spool.append(streams[1], [(NS + 1, b"x")], NOW + 1000.0)
    assert list(spool._files) == [streams[1].name]
    spool.close()
    for number in range(10):
        os.utime(tmp_path / "spool" / "gpt" / f"n~{number}.log", (0, NOW - 8 * 86400 * (number < 5)))
    again = opened(tmp_path, per_stream=1000, total=1000)
    assert not (tmp_path / "spool" / "gpt" / "n~4.log").exists()
    assert again.append(streams[299], [(NS, b"x"), (NS + 7, b"x")], NOW) == (1, 1)
    assert len(list((tmp_path / "spool" / "gpt").iterdir())) < 40
    os.utime(tmp_path / "spool" / "gpt" / "n~298.log", (0, NOW))
    again.append(streams[299], [(NS + 8, b"x")], NOW + 8 * 86400)
    assert not (tmp_path / "spool" / "gpt" / "n~298.log").exists()


def test_one_monitor_a_spool(tmp_path: Path) -> None:
    """A second one is told whose it is."""
    first = opened(tmp_path)
    with pytest.raises(SpoolError, match="another megatron-monitor"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_carriers(tmp_path: Path) -> None:
    """An agent that sends heartbeats is deaf when they stay away, over a restart too; one that sends none never is. A
    clock that is wrong does not make it deaf; a heartbeat that was held up does not make it heard.
    """
    carriers = Carriers(tmp_path / "carriers", 5.0)
    for second in range(0, 60, 5):
        carriers.note("node7", 1000.0 + second, 1001.0 + second, heartbeat=True)
        carriers.note("slow", 400.0 + second, 1001.0 + second, heartbeat=True)
    carriers.note("silent", 1000.0, 1001.0, heartbeat=False)
    assert carriers.heard(1060.0).deaf == {}
    assert carriers.heard(1060.0).states == {"active": 2, "stale": 0, "without_heartbeat": 1}
    carriers.note("slow", 460.0, 1061.0, heartbeat=True)
    assert carriers.heard(1064.0).deaf == {"node7": 1056.0}
    carriers.note("node7", 1058.0, 1070.0, heartbeat=True)  # it lay in a queue
    assert carriers.heard(1070.0).deaf == {"node7": 1059.0, "slow": 1061.0}
    carriers.save(1070.0)
    again = Carriers(tmp_path / "carriers", 5.0)
    again.load()
    assert again.heard(2000.0).beating == {"node7", "slow"}
    assert set(again.heard(2000.0).deaf) == {"node7", "slow"}


def test_our_clock_is_set(tmp_path: Path) -> None:
    """No agent is deaf for that, at once and later; how far each one's clock is from ours is known at once. Agents
    whose heartbeats are a backlog tell nothing of their clocks.
    """
    clock = ManualClock(wall=5000.0)
    carriers = Carriers(tmp_path / "carriers", 5.0, clock)

    def beat(times: int) -> None:
        for _ in range(times):
            clock.advance(5.0)
            true = 5000.0 + clock.monotonic()
            for name, sent in (("right", true), ("wrong", true - 70.0), ("backlog", 100.0 * true)):
                carriers.note(name, sent, clock.wall(), heartbeat=True)
            carriers.note("lines", true, clock.wall(), heartbeat=False)
            carriers.save(clock.wall())

    begin = clock.wall() - 5000.0 - clock.monotonic()
    for step in (0.0, 2548.0, -176.0, -5000.0):
        begin += step
        clock.set_wall(clock.wall() + step)
        for times in (0, 2):
            beat(times)
            heard = carriers.heard(clock.wall())
            assert heard.deaf == {}
            if times or step:
                assert round(heard.behind_us("right") - begin) == 0
                assert round(heard.behind_us("wrong") - begin) == 70
            assert heard.behind_us("backlog") == 0
            beat(times // 2)  # it is saved as often
            again = Carriers(tmp_path / "carriers", 5.0, clock)
            again.load()
            for name in ("right", "wrong"):
                assert again.heard(clock.wall()).behind_us(name) == pytest.approx(heard.behind_us(name))
                assert again.heard(clock.wall()).deaf == {}


def test_a_clock_that_was_set_while_the_monitor_was_away(tmp_path: Path) -> None:
    """What was known of it is believed until heartbeats say otherwise."""
    (tmp_path / "carriers").write_text('{"node7": [1000.0, null]}')
    carriers = Carriers(tmp_path / "carriers", 5.0)
    carriers.load()
    assert carriers.heard(1060.0).deaf == {"node7": 1000.0}
    for second in range(60, 90, 5):
        carriers.note("node7", 1000.0 + second, 1700.0 + second, heartbeat=True)
        carriers.save(1700.0 + second)
    assert round(carriers.heard(1790.0).behind_us("node7")) == 700
    again = Carriers(tmp_path / "carriers", 5.0)
    again.load()
    again.note("node7", 1090.0, 1120.0, heartbeat=True)  # it cannot have come before it was sent
    assert round(again.heard(1120.0).behind_us("node7")) == 30
