"""The spool: what it took is on the disk, once, whatever the disk, the sender and kill -9 do."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from megatron_monitor.pushed import path_of
from megatron_monitor.receiver import agents as agents_module
from megatron_monitor.receiver import spool as module
from megatron_monitor.receiver.agents import Agents
from megatron_monitor.receiver.labels import StreamFile
from megatron_monitor.receiver.spool import READ_OFFSETS, QuotaError, Spool
from megatron_monitor.store import StateInUseError
from megatron_monitor.system import clock as clock_module
from tests.clock import ManualClock

NS = 1_777_000_000_000_000_000
NOW = NS / 1e9
STREAM = StreamFile("gpt", path_of("", "gpt", "node7~1"), "[pod/gpt-0/t] ")
HEAD = "2026-04-24T03:06:40.000000000Z [pod/gpt-0/t] "


def opened(directory: Path, size: int = 1 << 30, segment: int = 1 << 25) -> Spool:
    """A spool that is open."""
    spool = Spool(directory / "spool", size, segment)
    spool.open(NOW)
    return spool


def read_by_observer(directory: Path, *streams: StreamFile) -> None:
    """All that is there is read and saved."""
    places = {}
    for stream in streams:
        status = (directory / "spool" / stream.name).stat()
        places[stream.name] = (status.st_ino, status.st_size)
    temporary = directory / "spool" / "read.new"
    temporary.write_bytes(msgspec.json.encode(places))
    temporary.rename(directory / "spool" / READ_OFFSETS)


def lines(directory: Path, name: str = STREAM.name) -> list[str]:
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
    path = tmp_path / "spool" / STREAM.name
    path.write_text(path.read_text() + HEAD + "sec")
    spool = opened(tmp_path)
    assert spool.append(STREAM, [(NS, b"second"), (NS, b"first")], NOW) == (1, 1)
    assert path.read_text() == f"{HEAD}first\n{HEAD}second\n"


def test_lines_with_other_line_ends(tmp_path: Path) -> None:
    """Over a restart a line with a CR in it is known as it is."""
    spool = opened(tmp_path)
    assert spool.append(STREAM, [(NS, b"10%\r20%"), (NS, b"a\x0cb")], NOW) == (2, 0)
    spool.close()
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


def test_nothing_is_replaced_before_it_is_read(tmp_path: Path) -> None:
    """A full file grows until the observer has come to it: only then it is renamed, and replaces the one before."""
    spool = opened(tmp_path, segment=1000)

    def push(first: int) -> tuple[int, int]:
        """Twenty lines, of 86 bytes each; those of the renamed file and of the present one."""
        for number in range(first, first + 20):
            spool.append(STREAM, [(NS + number, b"x" * 40)], NOW)
        renamed = (tmp_path / "spool" / f"{STREAM.name}.1").exists()
        return len(lines(tmp_path, f"{STREAM.name}.1")) if renamed else 0, len(lines(tmp_path))

    assert [push(0), push(20)] == [(0, 20), (0, 40)]
    read_by_observer(tmp_path, STREAM)
    assert [push(40), push(60)] == [(41, 19), (41, 39)]
    spool.close()
    spool = opened(tmp_path, segment=1000)
    assert push(80) == (41, 59)
    read_by_observer(tmp_path, STREAM)
    assert push(100) == (60, 19)


def fill(spool: Spool, first: int, now: float) -> int:
    """Lines of one stream until there is no room; how many were taken."""
    for number in range(1000):
        try:
            spool.append(STREAM, [(NS + first + number, b"x" * 40)], now)
        except QuotaError:
            return number
    raise AssertionError("it is never full")


def test_a_tenant_without_room_waits_until_more_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is removed for one that comes; what is read makes room. Another tenant has its own, and its files are not
    searched.
    """
    spool = opened(tmp_path, size=2000, segment=1000)
    other = StreamFile("a/gpt", path_of("a", "gpt", "node7~1"), "")
    taken = fill(spool, 0, NOW)
    assert len(lines(tmp_path)) == taken == 24
    assert spool.append(other, [(NS, b"y")], NOW) == (1, 0)
    assert fill(spool, 100, NOW + 2.0) == 0
    read_by_observer(tmp_path, STREAM)
    assert fill(spool, 200, NOW + 4.0) == 24
    monkeypatch.setattr(spool, "directory", Looked(spool.directory))
    assert fill(spool, 300, NOW + 8.0) == 0
    assert {path.relative_to(tmp_path / "spool").parts[0] for path in Looked.found} == {"_"}


class Looked(type(Path())):  # type: ignore[misc]
    """Keeps what is found in a directory."""

    found: ClassVar[list[Path]] = []

    def glob(self, pattern: str) -> Iterator[Path]:
        """The paths."""
        for path in super().glob(pattern):
            self.found.append(path)
            yield path


def test_a_renamed_file_is_kept_until_it_is_read(tmp_path: Path) -> None:
    """However long there is no room: the monitor has not come to its end."""
    spool = opened(tmp_path, size=5000, segment=1000)
    for number in range(20):
        spool.append(STREAM, [(NS + number, b"x" * 40)], NOW)
    read_by_observer(tmp_path, STREAM)
    spool.append(STREAM, [(NS + 20, b"x" * 40)], NOW)
    renamed = tmp_path / "spool" / f"{STREAM.name}.1"
    assert renamed.exists()
    assert fill(spool, 100, NOW + 1.0)
    assert fill(spool, 200, NOW + 4.0) == 0
    assert len(lines(tmp_path, f"{STREAM.name}.1")) == 21
    status = renamed.stat()
    places = msgspec.json.encode({STREAM.name: (status.st_ino, status.st_size)})
    (tmp_path / "spool" / READ_OFFSETS).write_bytes(places)
    assert fill(spool, 300, NOW + 8.0)
    assert not renamed.exists()


def test_a_stream_that_is_written_to_is_not_cleaned(tmp_path: Path) -> None:
    """Its thread may rename the file meanwhile, and what is read then would be another."""
    spool = opened(tmp_path, segment=900)
    for number in range(11):
        spool.append(STREAM, [(NS + number, b"x" * 40)], NOW)
        read_by_observer(tmp_path, STREAM)
    spool.size, renamed = 400, tmp_path / "spool" / f"{STREAM.name}.1"
    for users in (1, 0):
        spool._files[STREAM.name].users = users
        spool._clean(NOW + 9.0)
        assert renamed.exists() is bool(users)


def test_a_small_quota_is_used_again_and_again(tmp_path: Path) -> None:
    """A file that is read is replaced by a new one, of which nothing is known, before it is large."""
    spool = opened(tmp_path, size=900)
    for turn in range(5):
        assert fill(spool, 100 * turn, NOW + 4.0 * turn) == 11
        assert fill(spool, 100 * turn + 50, NOW + 4.0 * turn + 2.0) == 0
        read_by_observer(tmp_path, STREAM)


def test_files_of_old(tmp_path: Path) -> None:
    """Few are open at once, and the end of one that was closed is known all the same. What has been still for a week
    is gone at the next start if it was read.
    """
    spool = opened(tmp_path)
    streams = [StreamFile("gpt", path_of("", "gpt", f"n~{number}"), "") for number in range(300)]
    assert {spool.append(stream, [(NS, b"x")], NOW) for stream in streams} == {(1, 0)}
    assert len(spool._files) <= 257
    assert spool.append(streams[0], [(NS, b"x"), (NS + 1, b"x")], NOW + 1.0) == (1, 1)
    spool.append(streams[1], [(NS + 1, b"x")], NOW + 1000.0)
    assert list(spool._files) == [streams[1].name]
    spool.close()
    read_by_observer(tmp_path, *streams[:5])
    for stream in streams[:10]:
        os.utime(tmp_path / "spool" / stream.name, (0, NOW - 8 * 86400))
    opened(tmp_path)
    there = [(tmp_path / "spool" / stream.name).exists() for stream in streams[:10]]
    assert there == [False] * 5 + [True] * 5


def test_a_tenant_keeps_so_many_files(tmp_path: Path) -> None:
    """Invented streams neither fill the file system nor the observer's memory: the oldest that are read go first, and
    nothing of another tenant does.
    """
    spool = opened(tmp_path)
    invented = [StreamFile("a/x", path_of("a", f"x{number}", "n"), "") for number in range(9)]
    others = [StreamFile("b/x", path_of("b", "x", f"n{number}"), "") for number in range(3)]
    for stream in (*others, *invented):
        spool.append(stream, [(NS, b"x")], NOW)
    for age, stream in enumerate(reversed((*others, *invented))):
        os.utime(tmp_path / "spool" / stream.name, (0, NOW - age))
    read_by_observer(tmp_path, *others, *invented[1:])
    spool.close()
    spool = Spool(tmp_path / "spool", 1 << 30)
    spool.streams = 4
    spool.open(NOW)
    there = [(tmp_path / "spool" / stream.name).exists() for stream in (*others, *invented)]
    assert there == [True] * 3 + [True] + [False] * 4 + [True] * 4
    assert len(list((tmp_path / "spool" / "a").iterdir())) == 5, "no folder is left behind"


def test_one_receiver_a_directory(tmp_path: Path) -> None:
    """A second one is told whose it is."""
    first = opened(tmp_path)
    with pytest.raises(StateInUseError):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def stale(agents: Agents, now: float) -> dict[str, float]:
    """Agents without a heartbeat for long -> their last one."""
    return dict(agents.report(now).states(now).stale)


def test_agents(tmp_path: Path) -> None:
    """An agent that sends heartbeats is stale when they stay away, over a restart too; one that sends none never is. A
    clock that is wrong makes none stale; a heartbeat that was held up proves nothing.
    """
    agents = Agents(tmp_path / "agents")
    for second in range(0, 60, 5):
        agents.note("node7", 1000.0 + second, 1001.0 + second, heartbeat=True)
        agents.note("slow", 400.0 + second, 1001.0 + second, heartbeat=True)
    agents.note("silent", 1000.0, 1001.0, heartbeat=False)
    assert stale(agents, 1060.0) == {}
    assert agents.report(1060.0).states(1060.0).states == {"active": 2, "stale": 0, "refused": 0}
    agents.note("slow", 460.0, 1061.0, heartbeat=True)
    assert stale(agents, 1064.0) == {"node7": 1056.0}
    agents.note("node7", 1058.0, 1070.0, heartbeat=True)  # it lay in a queue
    assert stale(agents, 1070.0) == {"node7": 1059.0, "slow": 1061.0}
    agents.save(1070.0)
    again = Agents(tmp_path / "agents")
    again.load()
    assert again.report(2000.0).states(2000.0).agents.keys() == {"node7", "slow"}
    assert set(stale(again, 2000.0)) == {"node7", "slow"}


def test_agents_of_one_tenant_leave_room_for_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tenant has its share; an agent that is known stays known, also in a restarted receiver."""
    monkeypatch.setattr(agents_module, "_MAX_AGENTS", 10)
    agents = Agents()
    agents.tenants = 2
    for number in range(20):
        agents.note(f"a%2Fn{number}", 0.0, 0.0, heartbeat=True)
    for restarted in (False, True):
        if restarted:
            known, agents = agents.report(0.0).agents, Agents()
            agents.tenants = 2
            agents.restore(known)
        agents.note("a%2Fnew", 0.0, 0.0, heartbeat=True)
        agents.note(f"b%2F{restarted}", 0.0, 0.0, heartbeat=True)
        agents.note("a%2Fn1", 5.0, 5.0, heartbeat=True)
        found = agents.report(5.0).agents
        assert [name for name in found if name.startswith("b")][-1:] == [f"b%2F{restarted}"]
        assert (len(found), found["a%2Fn1"].seen) == (6 + restarted, 5.0)


def test_our_clock_is_set(tmp_path: Path) -> None:
    """No agent is stale for that, at once and later; how far each clock is from ours is known at once. Agents whose
    heartbeats are a backlog tell nothing of their clocks.
    """
    clock = ManualClock(wall=5000.0)
    agents = Agents(tmp_path / "agents", clock)

    def beat(times: int) -> None:
        for _ in range(times):
            clock.advance(5.0)
            true = 5000.0 + clock.monotonic()
            for name, sent in (("right", true), ("wrong", true - 70.0), ("backlog", 100.0 * true)):
                agents.note(name, sent, clock.wall(), heartbeat=True)
            agents.note("lines", true, clock.wall(), heartbeat=False)
            agents.save(clock.wall())

    begin = clock.wall() - 5000.0 - clock.monotonic()
    for step in (0.0, 2548.0, -176.0, -5000.0):
        begin += step
        clock.set_wall(clock.wall() + step)
        for times in (0, 2):
            beat(times)
            states = agents.report(clock.wall()).states(clock.wall())
            assert states.stale == {}
            if times or step:
                assert round(states.clock_offset("right") - begin) == 0
                assert round(states.clock_offset("wrong") - begin) == 70
            assert states.clock_offset("backlog") == 0
            beat(times // 2)
            agents.save(clock.wall())
            again = Agents(tmp_path / "agents", clock)
            again.load()
            assert stale(again, clock.wall()) == {}
            states = agents.report(clock.wall()).states(clock.wall())
            for name in ("right", "wrong"):
                kept = again.report(clock.wall()).states(clock.wall()).clock_offset(name)
                assert kept == pytest.approx(states.clock_offset(name))


def test_a_clock_that_was_set_while_the_receiver_was_away(tmp_path: Path) -> None:
    """What was known of it is believed until heartbeats say otherwise."""
    (tmp_path / "agents").write_text('{"agents": {"node7": {"seen": 1000.0}}}')
    agents = Agents(tmp_path / "agents")
    agents.load()
    assert stale(agents, 1060.0) == {"node7": 1000.0}
    for second in range(60, 90, 5):
        agents.note("node7", 1000.0 + second, 1700.0 + second, heartbeat=True)
        agents.save(1700.0 + second)
    assert round(agents.offset("node7")) == 700
    again = Agents(tmp_path / "agents")
    again.load()
    again.note("node7", 1090.0, 1120.0, heartbeat=True)  # it cannot have come before it was sent
    assert round(again.offset("node7")) == 30


@pytest.mark.parametrize(
    ("boot", "set_by", "away", "silence"),
    [
        ("a", -3600.0, 1.0, 3.0), ("a", 3600.0, 1.0, 3.0), ("a", 0.0, 3600.0, 7.5),
        ("b", -3600.0, 1.0, 2.0), ("b", 3600.0, 1.0, 7.5), ("", 3600.0, 1.0, 7.5),
    ],
)  # fmt: skip
def test_the_absence_of_the_receiver_is_no_silence_of_an_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot: str, set_by: float, away: float, silence: float
) -> None:
    """A clock that was set, or a long absence: an agent that was heard is stale for at most one heartbeat, and
    one that stays away becomes stale.
    """
    monkeypatch.setattr(clock_module, "_boot_id", lambda: "a" if boot else "")  # "": the system does not tell
    clock = ManualClock(wall=5000.0)
    agents = Agents(tmp_path / "agents", clock)
    for seconds in (5.0, 5.0, 2.0):
        agents.note("node7", clock.wall(), clock.wall(), heartbeat=True)
        clock.advance(seconds)
    agents.save(clock.wall())
    clock.advance(away)
    clock.set_wall(clock.wall() + set_by)
    monkeypatch.setattr(clock_module, "_boot_id", lambda: boot)
    again = Agents(tmp_path / "agents", clock)
    again.load()
    assert again.offset("node7") == (set_by if boot == "a" else 0.0)
    silent = clock.wall() - again.report(clock.wall()).agents["node7"].seen
    assert silent == pytest.approx(silence)
    clock.advance(8.0)
    assert set(stale(again, clock.wall())) == {"node7"}
    again.note("node7", 4000.0 + clock.monotonic(), clock.wall(), heartbeat=True)
    assert stale(again, clock.wall()) == {}


def test_the_clock_of_an_agent_is_set_back(tmp_path: Path) -> None:
    """It is reported, over a restart too; the core moves its stamps by that."""
    agents = Agents(tmp_path / "agents")
    for second in range(0, 30, 5):
        agents.note("node7", 5000.0 + second, 5000.0 + second, heartbeat=True)
    assert agents.report(5029.0).agents["node7"].shift == 0.0
    for second in range(30, 45, 5):
        agents.note("node7", 1400.0 + second, 5000.0 + second, heartbeat=True)
    assert agents.offset("node7") == 3600.0
    assert agents.report(5041.0).agents["node7"].shift == 3600.0
    assert agents.report(5041.0).states(5041.0).clock_offset("node7") == 0.0
    agents.save(5041.0)
    again = Agents(tmp_path / "agents")
    again.load()
    assert again.report(5041.0).agents["node7"].shift == 3600.0
    assert stale(again, 5045.0) == {}
