"""Where a second process reads, the core is left as one process leaves it, and no early end is mistaken for that."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
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
from monitor.config import Config
from monitor.core import Core
from monitor.follow.follower import read_once
from monitor.follow.settings import FollowSettings
from monitor.known import Run
from monitor.simulate import DIALECTS, FAULTS, Fault, Scenario, timeline
from parsers.stretch import Stretch
from tests.conftest import ROOT

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
WRITTEN = 1_700_000_000
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
    monkeypatch.setattr(once, "read_once", partial(read_once, settings=FollowSettings(read_bytes=size)))


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


def _log(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    os.utime(path, (WRITTEN, WRITTEN))
    return path


def _simulated(kind: str | None = None, dialect: str = "megatron-lm", iterations: int = 420, seed: int = 0) -> bytes:
    scenario = Scenario(
        dialect=dialect,
        iterations=iterations,
        seed=seed,
        eval_interval=150,
        faults=(Fault(kind, iterations // 2, factor=1.1),) if kind else (),
    )
    return b"".join(emission.text.encode() for emission in timeline(scenario))


_KINDS = [None, *sorted(FAULTS)]


@pytest.mark.parametrize(
    ("kind", "dialect"), [(kind, dialect) for kind in _KINDS for dialect in sorted(DIALECTS)][:: len(DIALECTS) + 1]
)
def test_simulated_faults(
    kind: str | None, dialect: str, tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault, each dialect."""
    path = _log(tmp_path / "run.log", _simulated(kind, dialect))
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
    text = _simulated(iterations=120) if size < 9_000 else _simulated(iterations=4_000)
    first = _log(tmp_path / "a.log", _simulated(iterations=100))
    second = _log(tmp_path / "b.log", text)
    _same(configured(None, (), [str(first), str(second)]), forks, monkeypatch, size)
    assert bool(taken) == (size > 700)


def test_many_files(tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's other streams, copies, files of no training, nothing at all, noise, holes, what cannot be read."""
    chance = random.Random(1)
    text = _simulated("crash_and_restart", iterations=900)
    _log(tmp_path / "job.out", text)
    _log(
        tmp_path / "job.err",
        b"Traceback (most recent call last):\nRuntimeError: CUDA out of memory\n" * 2,
    )
    _log(tmp_path / "copy.log", text)
    _log(tmp_path / "cut.log", text[: len(text) // 2 + 7])
    _log(tmp_path / "returns.log", text.replace(b"\n", b"\r\n"))
    _log(tmp_path / "bars.log", text.replace(b"\n", b"\r"))
    _log(tmp_path / "empty.log", b"")
    _log(tmp_path / "words.log", b"nothing of a training\n" * 5_000)
    _log(tmp_path / "noise.log", b"iteration" + chance.randbytes(90_000))
    _log(tmp_path / "long.log", text[:20_000] + b"x" * (3 << 20) + text[20_000:])
    middle = text.index(b"\n", len(text) // 2) + 1
    _log(tmp_path / "nuls.log", text[:middle] + bytes(100_000) + text[middle:])
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


def test_custom_patterns(tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site's own rules read every line over there too."""
    path = _log(tmp_path / "run.log", _simulated(iterations=300).replace(b"\n", b"\nqueue depth 17\n"))
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

    config = configured(None, (), [str(_log(tmp_path / "run.log", _simulated(iterations=900)))])
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
    text = _simulated(iterations=4_000)
    text = text.replace(b"\n", b"\n" + b"node3: NCCL INFO nothing at all\n" * noise)
    path = _log(tmp_path / "run.log", text[:1_500_000])
    once.metrics_page(configured(None, (), [str(path)]))
    assert len(forks.children) == (not noise)


def _endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log that does not fit into the pipe."""
    monkeypatch.setattr(reader_process, "_PIPE_BYTES", 4096)
    _in_turns_of(20_000, monkeypatch)
    return _log(tmp_path / "run.log", _simulated(iterations=4_000))


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


_SCRIPT = """
import atexit, os, signal, sys
from monitor import once, reader_process
from monitor.core import Core
from monitor.ahead import Parsed
from monitor.commands.run import _once
from monitor.commands.settings import configured

once.WORTH_LINES = 1
reader_process.may_part = lambda: True
reader_process._PIPE_BYTES = 4096
parsed = Core._HANDLERS[Parsed]

def waiting(core, message, now):
    os.write(2, b"parted\\n")
    if sys.argv[2] == "wait":
        signal.pause()
    parsed(core, message, now)

Core._HANDLERS[Parsed] = waiting
atexit.register(print, "exit")
print("begin")
sys.exit(_once(configured(None, (), [sys.argv[1]])))
"""


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """A reading of several turns in a process group of its own, as a terminal has it; its output is buffered."""
    _log(tmp_path / "run.log", _simulated(iterations=16_000))
    started: list[subprocess.Popen[bytes]] = []

    def start(how: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, str(tmp_path / "run.log"), how],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )  # fmt: skip
        started.append(process)
        assert process.stderr is not None
        assert process.stderr.readline() == b"parted\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_nothing_is_written_twice(begin: Callable[[str], subprocess.Popen[bytes]]) -> None:
    """What the parent had in its buffers and has to do at its exit is its own."""
    process = begin("go")
    out, err = process.communicate()
    assert process.returncode == 0
    assert set(err.splitlines()) <= {b"parted"}
    assert (out.count(b"begin\n"), out.count(b"exit\n")) == (1, 1)
    assert out.count(b"# TYPE megatron_iteration gauge") == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_other_process_never_outlives_the_first(
    number: signal.Signals, begin: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    """Its end of the output pipe is open for as long as it lives."""
    process = begin("wait")
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (-number, b"")


def test_interrupt(begin: Callable[[str], subprocess.Popen[bytes]]) -> None:
    """Ctrl-C comes to both."""
    process = begin("wait")
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert out == b"begin\nexit\n"
    assert err.count(b"KeyboardInterrupt") == 1
