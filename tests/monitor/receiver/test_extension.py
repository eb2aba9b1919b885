"""What the observer takes from the receiver, and what it states in return."""

import os
from pathlib import Path

import msgspec

from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.follow.content import Content
from megatron_monitor.follow.messages import Data, Opened, Restarted
from megatron_monitor.pushed import path_of
from megatron_monitor.receiver.agents import Agents
from megatron_monitor.receiver.extension import AgentReportFile, ReadOffsets
from megatron_monitor.receiver.labels import followed
from megatron_monitor.receiver.spool import READ_OFFSETS
from tests.clock import ManualClock

LINE = b"2026-04-24T03:06:40.000000000Z a line of 49 bytes\n"


def test_a_report_that_is_not_written_is_old(tmp_path: Path) -> None:
    """By the time since it changed: neither of the two clocks matters. Without a file nothing is observed."""
    clock = ManualClock(wall=1000.0)
    report = AgentReportFile(tmp_path / "agents.json", clock)
    clock.advance(10.0)
    assert report.states().observed_until == 1000.0
    agents = Agents(tmp_path / "agents.json")
    agents.note("n1", 5000.0, 5000.0, heartbeat=True)
    for second in range(20):
        agents.save(5000.0 + second)
        assert (report.states().observed_until is None) == (second > 0)
        assert set(report.states().stale) == ({"n1"} if second > 7 or not second else set())
        clock.advance(1.0)
    clock.set_wall(clock.wall() + 3600.0)
    assert report.states().observed_until is None
    assert report.states().stale == {"n1": clock.wall() - 20.0}
    clock.advance(10.0)
    assert report.states().observed_until == clock.wall() - 11.0
    (tmp_path / "agents.json").write_text("{")
    assert report.states().observed_until == clock.wall() - 11.0


def test_a_report_that_is_no_file_is_not_read(tmp_path: Path) -> None:
    """A FIFO, and a link to a device: to read them never ends, and the directory is the receiver's."""
    path = tmp_path / "agents.json"
    report = AgentReportFile(path, ManualClock(wall=1000.0))
    os.mkfifo(path)
    assert report.states().agents == {}
    path.unlink()
    path.symlink_to("/dev/zero")
    assert report.states().agents == {}


def test_only_what_is_saved_is_stated_as_read(tmp_path: Path) -> None:
    """Of each pushed stream: the inode, and the end of the last whole line that was read before the last save."""
    config = followed(load(f"receiver: {{listen: 127.0.0.1:1, directory: {tmp_path}}}"), str(tmp_path))
    core = Core(config)
    part = ReadOffsets(core)
    name = path_of("", "gpt", "n~1")
    path = f"{tmp_path}/{name}"

    def stated() -> dict[str, list[int]]:
        file = tmp_path / READ_OFFSETS
        return msgspec.json.decode(file.read_bytes()) if file.exists() else {}

    core.handle(Opened(path, path, Content(inode=7), 0, 1000.0, False), 0.0)
    core.handle(Opened("/logs/a.log", "/logs/a.log", Content(inode=8), 0, 1000.0, False), 0.0)
    core.handle(Data(path, 0, 2 * LINE + b"half", 1000.0, 1000.0, 0, Content(inode=7)), 0.0)
    part.offered()
    assert stated() == {}, "it is not saved"
    core.handle(Data(path, 104, b" line", 1000.0, 1000.0, 0, Content(inode=7)), 0.0)
    part.saved()
    assert stated() == {name: [7, 100]}
    core.handle(Restarted(path, "rotated", "", Content(inode=9)), 10.0)
    part.offered()
    assert stated() == {name: [7, 100]}
    part.saved()
    assert stated() == {name: [9, 0]}


def test_a_directory_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    """It is tried again."""
    directory = tmp_path / "spool"
    core = Core(followed(load(f"receiver: {{listen: 127.0.0.1:1, directory: {directory}}}"), str(directory)))
    part = ReadOffsets(core)
    path = f"{directory}/{path_of('', 'gpt', 'n~1')}"
    core.handle(Opened(path, path, Content(inode=7), 0, 1000.0, False), 0.0)
    for there in (False, False, True):
        if there:
            os.mkdir(directory)
        part.offered()
        part.saved()
        assert core.changed or there
    assert (directory / READ_OFFSETS).exists()
