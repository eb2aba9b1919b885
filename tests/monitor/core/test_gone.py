"""Gone, forbidden, never a training: what nobody waits for is silent, and takes no place from what lives."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.core.saved import Saved
from megatron_monitor.incidents import Transition
from megatron_monitor.snapshot import MetricSample
from tests.clock import ManualClock
from tests.lines import line
from tests.monitor.follow.conftest import FaultyOs, reader_of
from tests.plain import decode, encode

ENDED = "[after training is done] datetime: 2026-01-01 00:00:00\n"


class Site:
    """A directory of jobs under a reader and a core; `restart` is a daemon that was away."""

    def __init__(self, root: Path, file_system: str = "ext4", config: str = "") -> None:
        self.root, self.file_system, self.config = root, file_system, config
        self.clock, self.os = ManualClock(), FaultyOs()
        self.reported: list[Transition] = []
        self._begin(None)

    def _begin(self, saved: Saved | None) -> None:
        self.core = Core(load(f"runs: [{{paths: ['{self.root}/**/*.log']}}]\n{self.config}"))
        positions = self.core.restore(saved) if saved is not None else {}
        logs = f"{self.root}/**/*.log"
        self.reader = reader_of(logs, mounts=self.file_system, os_layer=self.os, resume=positions)

    def restart(self, away: Callable[[], None], seconds: float) -> None:
        """The daemon is away while that happens."""
        saved = decode(encode(self.core.save(self.clock.wall())), Saved)
        self.reader.close()
        away()
        self.clock.advance(seconds)
        self._begin(saved)

    def job(self, name: str, iterations: int, *, age: float = 0.0, end: str = "") -> Path:
        """The log of a job, last written so many seconds ago."""
        path = self.root / name / "main.log"
        path.parent.mkdir()
        path.write_text("".join(map(line, range(1, iterations + 1))) + end)
        self.write(path, "", age)
        return path

    def write(self, path: Path, text: str, age: float = 0.0) -> None:
        """More of it; the file system's clock is ours."""
        with path.open("a") as stream:
            stream.write(text)
        os.utime(path, (self.clock.wall() - age,) * 2)

    def run(self, seconds: float, live: Path | None = None, number: int = 100) -> None:
        """Time passes; a job may write."""
        for step in range(int(seconds)):
            self.clock.advance(1.0)
            if live is not None and step % 10 == 0:
                number += 1
                self.write(live, line(number))
            for message in self.reader.poll(self.clock):
                self.core.handle(message, self.clock.wall())
            self.reader.end_pass(self.clock.monotonic(), 1.0)
            self.reported += self.core.tick(self.clock.wall())

    def shown(self) -> list[str]:
        """The runs that HTTP shows."""
        return [run.run for run in self.core.snapshot(self.clock.wall()).runs]

    def messages(self) -> list[tuple[str, str, str]]:
        """What people were told."""
        return [(one.run, one.incident, one.status) for one in self.reported if not one.display_only]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Makes one."""
    made: list[Site] = []

    def make(**more: str) -> Site:
        made.append(Site(tmp_path, **more))
        return made[-1]

    yield make
    for one in made:
        one.reader.close()


@pytest.mark.parametrize("file_system", ["ext4", "nfs"])
def test_old_jobs_are_removed(site: Callable[..., Site], file_system: str) -> None:
    """More directories than descriptors: finished, silent for long, never a training. One beside them lives on."""
    jobs = site(file_system=file_system)
    old = [jobs.job(f"done{n}", 3, age=9e5, end=ENDED) for n in range(40)]
    old += [jobs.job(f"stale{n}", 3, age=9e5) for n in range(40)]
    for number in range(10):
        path = jobs.root / f"other{number}" / "pip.log"
        path.parent.mkdir()
        path.write_text("Collecting torch\n")
        old.append(path)
    live = jobs.job("live", 100)
    jobs.run(30.0, live)
    for path in old:
        shutil.rmtree(path.parent)
    jobs.run(100.0, live, 103)
    assert jobs.messages() == []
    shutil.rmtree(live.parent)  # that one is told
    jobs.run(100.0)
    assert jobs.messages() == [("live/main", "source_lost", "firing")]


@pytest.mark.parametrize("file_system", ["ext4", "nfs"])
def test_jobs_are_removed_while_the_daemon_is_away(site: Callable[..., Site], file_system: str) -> None:
    """A week later nobody waits for them, whether they had ended or not as it went."""
    jobs = site(file_system=file_system)
    paths = [jobs.job(f"job{n}", 100, end=ENDED if n % 2 else "") for n in range(6)]
    jobs.run(30.0)
    assert jobs.messages() == []

    def away() -> None:
        for path in paths:
            shutil.rmtree(path.parent)

    jobs.restart(away, 7 * 86400.0)
    jobs.run(100.0)
    assert jobs.messages() == []


def test_a_rotation_while_the_daemon_is_away(site: Callable[..., Site]) -> None:
    """The old file is resumed before the new one is known: the time between is no silence, and a true hang is told."""
    jobs = site()
    live = jobs.job("live", 100)
    jobs.run(60.0, live)

    def away() -> None:
        jobs.write(live, line(107), age=-2.0)
        live.rename(live.with_suffix(".log.1"))
        jobs.clock.advance(200.0)
        jobs.write(live, "".join(map(line, range(108, 128))))

    jobs.restart(away, 10.0)
    jobs.run(50.0, live, 128)
    assert jobs.core.runs["live/main"].state.attempt.latest.iteration == 133
    assert jobs.messages() == []
    jobs.run(75.0)
    assert jobs.messages() == [("live/main", "hang", "firing")]


def test_files_that_may_not_be_read(site: Callable[..., Site], caplog: pytest.LogCaptureFixture) -> None:
    """No run, no incident; each is named once and all are counted; a training that comes has its place."""
    jobs = site(config="max_runs: 5")
    for number in range(20):
        jobs.job(f"secret{number}", 3)
    jobs.os.fail(errno.EACCES, "open", path="secret")
    jobs.run(100.0)
    live = jobs.job("live", 100)
    jobs.run(100.0, live)
    assert jobs.shown() == ["live/main"]
    assert jobs.messages() == []
    named = [record.message for record in caplog.records if "unreadable" in record.message]
    assert len(named) == len(set(named)) == 20
    sources = jobs.core.snapshot(jobs.clock.wall()).monitor["megatron_monitor_sources"]
    assert MetricSample(("unreadable",), 20.0) in sources
    jobs.os.heal()
    jobs.run(60.0, live, 110)
    sources = jobs.core.snapshot(jobs.clock.wall()).monitor["megatron_monitor_sources"]
    assert MetricSample(("unreadable",), 0.0) in sources


def test_dead_runs_make_room(site: Callable[..., Site]) -> None:
    """Archived, finished and crashed ones, also with an open incident; a live one is refused only by live ones."""
    jobs = site(config="max_runs: 3")
    for number in range(5):
        jobs.job(f"old{number}", 3, age=9e5, end=ENDED if number % 2 else "")
    crashed = jobs.job("crashed", 100)
    jobs.run(30.0, crashed)
    jobs.write(crashed, "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
               "srun: error: n1: task 0: Exited with exit code 1\n")  # fmt: skip
    jobs.run(60.0)
    live = [jobs.job(f"live{number}", 100) for number in range(3)]
    for number in range(3):
        jobs.run(11.0, live[number])
        for path in live:
            jobs.write(path, line(200 + number))
    assert {"live0/main", "live1/main", "live2/main"} == set(jobs.shown())


def test_a_time_stamp_from_the_far_future_begins_no_hang(site: Callable[..., Site]) -> None:
    """Of nobody knows when: shown as archived; once it grows it is watched. A clock that is an hour ahead is no clock
    that is broken: that log may be live.
    """
    jobs = site()
    broken, skewed = jobs.job("broken", 100, age=-9e8), jobs.job("skewed", 100, age=-3600.0)
    jobs.run(200.0)
    assert jobs.messages() == [("skewed/main", "hang", "firing")]
    jobs.run(60.0, broken)
    assert jobs.core.runs["broken/main"].state.attempt.latest.iteration > 100
    jobs.write(skewed, line(101))
    jobs.run(200.0)
    assert ("broken/main", "hang", "firing") in jobs.messages()


@pytest.mark.parametrize("away", [False, True])
def test_what_a_deleted_log_was_before_is_not_read_again(site: Callable[..., Site], *, away: bool) -> None:
    """A pattern that matches rotated files, too; the log is deleted before our eyes, or while the daemon is away."""
    jobs = site()
    log = jobs.job("a", 50)
    jobs.run(5.0)
    log.rename(log.with_name("main-1.log"))
    jobs.write(log, "".join(map(line, range(51, 61))))
    jobs.run(30.0)
    if away:
        jobs.restart(log.unlink, 5.0)
    else:
        log.unlink()
    jobs.run(200.0)
    jobs.write(log, "".join(map(line, range(61, 71))))
    jobs.run(30.0)
    jobs.restart(lambda: None, 5.0)
    jobs.run(30.0)
    assert sum(run.state.iterations_total for run in jobs.core.runs.values()) == 70
