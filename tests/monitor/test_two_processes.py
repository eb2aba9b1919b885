"""Where a second process reads, the core is left as one process leaves it, and no early end is mistaken for that."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from monitor import once, reader_process
from monitor.ahead import Parsed, ReadingError
from monitor.cli import main
from monitor.clock import ManualClock
from monitor.commands.settings import configured
from monitor.config import Config, default_config
from monitor.core import Core
from monitor.follow.messages import (
    CaughtUp,
    Data,
    Gone,
    Message,
    Opened,
    Readable,
    Restarted,
    Scanned,
    Unreadable,
)
from monitor.follow.settings import FollowSettings
from monitor.known import Run
from monitor.simulate import DIALECTS, FAULTS
from parsers.stretch import Stretch
from tests.monitor.logs import WRITTEN, log, simulated

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
READ_ONCE = once.read_once
Told = tuple[str, list[str], list[str]]


class Forks:
    """The processes that were forked."""

    def __init__(self) -> None:
        self.children: list[int] = []
        self._fork = os.fork

    def __call__(self) -> int:
        """In the place of os.fork."""
        child = self._fork()
        if child:
            self.children.append(child)
        return child

    def gone(self) -> bool:
        """None of them is left, not even as a zombie."""
        for child in self.children:
            with pytest.raises(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        return True


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> Forks:
    """Every reading is worth a second process, on any machine, and beside the threads of other tests."""
    forks = Forks()
    monkeypatch.setattr(os, "fork", forks)
    monkeypatch.setattr(once, "WORTH_LINES", 1)
    monkeypatch.setattr(reader_process, "may_part", lambda: True)
    return forks


def _in_turns_of(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "read_once", partial(READ_ONCE, settings=FollowSettings(read_bytes=size)))


def _told(config: Config) -> Told:
    """The page, what is said beside it, and all that the core knows."""
    clock = ManualClock(WRITTEN + 7200.0)
    core, problems = once.read_all(config, clock, past=False)
    page, page_problems = once.metrics_page(config, clock)
    assert page_problems == problems
    known = [f"{name}: {run.state!r} {run.book!r} {run.history}" for name, run in core.runs.items()]
    known += [repr(core.snapshot(clock.wall())), repr(core.counts.values)]
    sources = core.sources.values()
    return (
        page,
        problems,
        [*known, *(f"{it.path} {it.reader.lines} {it.reader.fed_bytes} {it.drives}" for it in sources)],
    )


def _same(config: Config, forks: Forks, monkeypatch: pytest.MonkeyPatch, size: int = 20_000) -> Told:
    """Both ways agree."""
    _in_turns_of(size, monkeypatch)
    two = _told(config)
    assert len(forks.children) == 2  # of the core and of the page
    assert forks.gone()
    with monkeypatch.context() as patch:
        patch.setattr(reader_process, "may_part", lambda: False)
        one = _told(config)
    assert len(forks.children) == 2
    assert two == one
    return two


_KINDS = [None, *sorted(FAULTS)]


@pytest.mark.parametrize(
    ("kind", "dialect"), [(kind, dialect) for kind in _KINDS for dialect in sorted(DIALECTS)][:: len(DIALECTS) + 1]
)
def test_simulated_faults(
    kind: str | None, dialect: str, tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault, each dialect."""
    path = log(tmp_path / "run.log", simulated(kind, dialect))
    page, problems, _ = _same(configured(None, (), [str(path)]), forks, monkeypatch)
    assert not problems
    assert "megatron_run_info{" in page


@pytest.mark.parametrize("size", [700, 9_000, 1 << 20])
def test_stretches(size: int, tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows, few words between them; turns that cut every line."""
    taken: list[int] = []
    take = Core._take_stretch

    def taking(core: Core, run: Run, stretch: Stretch, source: str, at: float) -> None:
        taken.append(len(stretch))
        take(core, run, stretch, source, at)

    monkeypatch.setattr(Core, "_take_stretch", taking)
    text = simulated(iterations=120) if size < 9_000 else simulated(iterations=4_000)
    first = log(tmp_path / "a.log", simulated(iterations=100))
    second = log(tmp_path / "b.log", text)
    _same(configured(None, (), [str(first), str(second)]), forks, monkeypatch, size)
    assert bool(taken) == (size > 700)


def test_many_files(tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's other streams, copies, files of no training, nothing at all, noise, holes, what cannot be read."""
    chance = random.Random(1)
    text = simulated("crash_and_restart", iterations=900)
    log(tmp_path / "job.out", text)
    log(
        tmp_path / "job.err",
        b"Traceback (most recent call last):\nRuntimeError: CUDA out of memory\n" * 2,
    )
    log(tmp_path / "copy.log", text)
    log(tmp_path / "cut.log", text[: len(text) // 2 + 7])
    log(tmp_path / "returns.log", text.replace(b"\n", b"\r\n"))
    log(tmp_path / "bars.log", text.replace(b"\n", b"\r"))
    log(tmp_path / "empty.log", b"")
    log(tmp_path / "words.log", b"nothing of a training\n" * 5_000)
    log(tmp_path / "noise.log", b"iteration" + chance.randbytes(90_000))
    log(tmp_path / "long.log", text[:20_000] + b"x" * (3 << 20) + text[20_000:])
    middle = text.index(b"\n", len(text) // 2) + 1
    log(tmp_path / "nuls.log", text[:middle] + bytes(100_000) + text[middle:])
    with (tmp_path / "hole.log").open("wb") as file:
        file.write(text[:middle])
        file.seek(4 << 20)
        file.write(text[middle:])
    os.utime(tmp_path / "hole.log", (WRITTEN, WRITTEN))
    os.mkfifo(tmp_path / "fifo")
    paths = [tmp_path / "*.log", tmp_path / "job.*", tmp_path / "absent", tmp_path / "fifo"]
    page, problems, _ = _same(configured(None, (), [str(path) for path in paths]), forks, monkeypatch)
    assert len(problems) >= 4
    assert page.count("\nmegatron_iteration{") >= 6


def _anything(seed: int) -> Iterator[Message]:
    """What a follower may say of two files that are rotated, cut, deleted and lost while they are read."""
    chance = random.Random(seed)
    text, at = simulated("crash_and_restart", iterations=500, seed=seed), float(WRITTEN)
    places = {"/a.log": 0, "/b.log": 0}
    for name in places:
        yield Opened(name, name, None, len(text), at, resumed=False)
    for _ in range(60):
        name, at = chance.choice(list(places)), at + 1.0
        start, size = places[name], chance.randrange(40_000)
        gap = chance.choice([0, 0, 0, 4096])
        yield Data(name, start + gap, text[start : start + size], at, at + 1.0, behind_bytes=len(text) - start - size)
        places[name] += size + gap
        kind = chance.randrange(12)
        if kind < 3:
            yield Restarted(name, ("rotated", "truncated", "replaced")[kind], "")
            places[name] = 0
        elif kind == 3:
            yield Gone(name, at)
            places[name] = 0
        elif kind < 6:
            yield Unreadable(name, 5, "no", at) if kind == 4 else Readable(name, at)
        elif kind == 6:
            yield CaughtUp(name, at)
        elif kind == 7:
            yield Scanned("/", "ext4", "poll", at, forgotten=(name,))
            yield Opened(name, name, None, len(text), at, resumed=False, offset=100)
            places[name] = 100


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_to_files(seed: int, forks: Forks) -> None:
    """Their readers begin anew, end, live on over there as here."""
    left: list[list[str]] = []
    for two in (False, True):
        core, clock = Core(default_config(), past=False), ManualClock(WRITTEN + 7200.0)
        messages = _anything(seed)
        for message in itertools.islice(messages, seed * 5):
            core.handle(message, clock.wall())
        for message in reader_process.read_elsewhere(messages, core.sources, (), core.inert) if two else messages:
            core.handle(message, clock.wall())
        core.flush(clock.wall())
        told = core.tick(clock.wall())
        runs = [f"{name}: {run.state!r} {run.book!r} {run.history}" for name, run in core.runs.items()]
        left.append([*runs, repr(told), repr(core.snapshot(clock.wall())), repr(core.counts.values)])
    assert left[0] == left[1]
    assert len(core.runs) == 2
    assert len(forks.children) == 1
    assert forks.gone()


def test_custom_patterns(tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site's own rules read every line over there too."""
    path = log(tmp_path / "run.log", simulated(iterations=300).replace(b"\n", b"\nqueue depth 17\n"))
    options = ("patterns=[{name: depth, match: 'queue depth (?P<value>[0-9]+)', kind: value}]",)
    page, _, _ = _same(configured(None, options, [str(path)]), forks, monkeypatch)
    assert "depth" in page


def test_no_second_process(tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """One processor, a thread beside, little to read, an onlooker, no process to be had: as ever."""
    monkeypatch.undo()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert not reader_process.may_part()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert not reader_process.may_part()
    done.set()
    thread.join()
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert reader_process.may_part()

    tried: list[int] = []

    def refuse() -> int:
        tried.append(1)
        raise BlockingIOError(11, "no more processes")

    config = configured(None, (), [str(log(tmp_path / "run.log", simulated(iterations=900)))])
    clock = ManualClock(WRITTEN + 7200.0)
    monkeypatch.setattr(os, "fork", refuse)
    _in_turns_of(20_000, monkeypatch)
    page = once.metrics_page(config, clock)
    assert not tried  # so little
    monkeypatch.setattr(once, "WORTH_LINES", 1)
    assert once.read_all(config, clock)[1] == []
    assert not tried  # what the charts draw is wanted
    assert once.metrics_page(config, clock) == page
    assert len(tried) == 1
    assert "megatron_iteration{" in page[0]


@pytest.mark.parametrize("noise", [0, 40])
def test_worth_by_what_is_said(noise: int, tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Much to read of which nothing needs to be folded is read as quickly by one. The rest of the file is guessed."""
    monkeypatch.setattr(once, "WORTH_LINES", 3_000)
    _in_turns_of(50_000, monkeypatch)
    text = simulated(iterations=4_000)
    text = text.replace(b"\n", b"\n" + b"node3: NCCL INFO nothing at all\n" * noise)
    path = log(tmp_path / "run.log", text[:1_500_000])
    once.metrics_page(configured(None, (), [str(path)]))
    assert len(forks.children) == (not noise)


def _endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log that does not fit into the pipe."""
    monkeypatch.setattr(reader_process, "_PIPE_BYTES", 4096)
    _in_turns_of(20_000, monkeypatch)
    return log(tmp_path / "run.log", simulated(iterations=4_000))


def _at_first(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """`act` as soon as something came from the other process."""
    parsed = Core._HANDLERS[Parsed]

    def acting(core: Core, message: Parsed, now: float) -> None:
        act()
        parsed(core, message, now)

    monkeypatch.setitem(Core._HANDLERS, Parsed, acting)


def test_killed(tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory: no page, a clear word, an exit status."""
    path = _endless(tmp_path, monkeypatch)
    _at_first(monkeypatch, lambda: os.kill(forks.children[-1], signal.SIGKILL))
    with pytest.raises(ReadingError, match=r"has died \(signal 9\)"):
        once.metrics_page(configured(None, (), [str(path)]))
    result = CliRunner().invoke(main, ["run", "--once", str(path)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "not all was read" in result.stderr
    assert len(forks.children) == 2
    assert forks.gone()


def test_failed(tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake of ours over there is told as one."""

    def wrong(entries: object) -> None:
        raise ValueError(f"a mistake in {type(entries)}")

    monkeypatch.setattr(reader_process, "pack", wrong)
    path = _endless(tmp_path, monkeypatch)
    with pytest.raises(ReadingError, match="ValueError: a mistake in <class 'list'>"):
        once.metrics_page(configured(None, (), [str(path)]))
    assert forks.gone()


def test_silent_exit(tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """An end without the word that all was read is none."""
    monkeypatch.setattr(reader_process, "pack", lambda _: os._exit(0))
    path = _endless(tmp_path, monkeypatch)
    with pytest.raises(ReadingError, match=r"has died \(exit status 0\)"):
        once.metrics_page(configured(None, (), [str(path)]))
    assert forks.gone()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_the_parent_stops(
    error: type[BaseException], tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends the parent's reading ends the other process."""

    def stop() -> None:
        raise error

    path = _endless(tmp_path, monkeypatch)
    _at_first(monkeypatch, stop)
    with pytest.raises(error):
        once.metrics_page(configured(None, (), [str(path)]))
    assert len(forks.children) == 1
    assert forks.gone()
