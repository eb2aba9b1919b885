"""The state file: atomic, checksummed, one owner, rebuilt when it cannot be trusted."""

import errno
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from monitor import store as store_module
from monitor.config import load as load_config
from monitor.core import Core
from monitor.core.conversion import EARLIER
from monitor.core.saved import Saved, SavedSource
from monitor.daemon import Daemon
from monitor.follow.messages import CaughtUp, Opened, Position, Scanned
from monitor.incidents import IncidentBook
from monitor.judgement import Judged
from monitor.run.fold import fold
from monitor.run.state import RunState
from monitor.services import StartError
from monitor.store import Saver, StateInUseError, StateUnreadableError, Store, decode, encode, pause_after
from parsers.events import IterationLogged, LogEvent


def sample() -> Saved:
    """A state with everything that is awkward to write: NaN, integer keys, nested types."""
    state = RunState(name="run")
    for number in range(1, 8):
        event = IterationLogged(iteration=number, seconds_per_iteration=2.0, grad_norm=math.nan, global_batch_size=64)
        fold(state, LogEvent(number, "r", event, "line"), "a", float(number), True)
    return Saved(runs={"run": Judged(state, IncidentBook(), False)}, counts={"x_total": [(("a", "b"), 3.0)]})


def test_round_trip() -> None:
    """What was written is read back, NaN and all."""
    saved = sample()
    back = decode(encode(saved), Saved)
    assert repr(back) == repr(saved)
    assert math.isnan(back.runs["run"].state.launch.latest.grad_norm)


@pytest.mark.parametrize("cut", [0, 1, 50, 200, -1])
def test_damage_is_noticed(cut: int) -> None:
    """A file cut anywhere is refused with a reason, never half believed."""
    data = encode(sample())
    with pytest.raises(StateUnreadableError):
        decode(data[:cut], Saved)
    flipped = bytearray(data)
    flipped[-5] ^= 0xFF
    with pytest.raises(StateUnreadableError, match="checksum"):
        decode(bytes(flipped), Saved)


def test_another_version_is_refused() -> None:
    """A file of a later version is rebuilt, not guessed at."""
    data = encode(sample()).replace(b'"version": 3', b'"version": 9', 1)
    with pytest.raises(StateUnreadableError, match="version 9"):
        decode(data, Saved)


def test_a_newer_state_is_neither_read_nor_overwritten(tmp_path: Path) -> None:
    """Its incidents stand: who goes back to an older program is told what to do, and nothing is written."""
    newer = encode(sample()).replace(b'"version": 3', b'"version": 9', 1)
    (tmp_path / "state").write_bytes(newer)
    config = load_config("", [f"state_dir={tmp_path}", "listen=127.0.0.1:0"])
    for _ in range(2):  # the directory was let go
        with pytest.raises(StartError, match=r"version 9.*--set state_dir=DIR.* move the file away"):
            Daemon(config).start()
    assert (tmp_path / "state").read_bytes() == newer
    assert {path.name for path in tmp_path.iterdir()} <= {"state", "lock"}
    older = encode(sample()).replace(b'"version": 3', b'"version": 1', 1)
    (tmp_path / "state").write_bytes(older)
    assert Store(tmp_path).load(Saved)[0] is None  # rebuilt from the logs


def test_a_state_that_nests_without_end_is_no_state(tmp_path: Path) -> None:
    """Neither the header's JSON nor the body makes the reader give up by itself."""
    with pytest.raises(StateUnreadableError, match="no JSON"):
        decode(b"[" * 100_000 + b"\n", Saved)


def test_the_generation_before_serves(tmp_path: Path) -> None:
    """If the newest generation is damaged the one before it is used, and the damage is told."""
    store = Store(tmp_path)
    store.lock()
    assert store.save(Saved(counts={"a": []}))
    assert store.save(Saved(counts={"b": []}))
    store.path.write_bytes(b"rubbish")
    saved, problems = store.load(Saved)
    assert saved is not None
    assert list(saved.counts) == ["a"]
    assert len(problems) == 1
    store.release()


@pytest.mark.parametrize("deleted", [False, True])
def test_one_owner(tmp_path: Path, deleted: bool) -> None:
    """A second store on the directory is refused until the first lets go, also if somebody deletes the lock file."""
    first, second = Store(tmp_path), Store(tmp_path)
    first.lock()
    if deleted:
        (tmp_path / "lock").unlink()
    with pytest.raises(StateInUseError):
        second.lock()
    first.release()
    second.lock()
    second.release()


def test_what_is_another_ones_or_a_link_is_refused(tmp_path: Path) -> None:
    """A directory and files that somebody else laid where the state will be: no link is followed, nothing is read."""
    victim, state = tmp_path / "victim", tmp_path / "state"
    victim.write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="it is a link"):
        Store(tmp_path / "link").lock()
    store = Store(state)
    store.lock()
    assert state.stat().st_mode & 0o777 == 0o700
    for name in ("state.new", "state.previous"):
        (state / name).symlink_to(victim)
    assert store.save(numbered(1))
    assert store.save(numbered(2))
    (state / "state").unlink()
    (state / "state").symlink_to(victim)
    saved, (problem,) = store.load(Saved)
    assert saved == numbered(1)
    assert problem.startswith(f"{state}/state: ")
    store.release()
    (state / "lock").unlink()
    (state / "lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        Store(state).lock()
    if os.geteuid() == 0:
        (state / "lock").unlink()
        os.chown(state, 4711, 4711)
        with pytest.raises(OSError, match="belongs to another user"):
            Store(state).lock()
    assert victim.read_text() == "precious"


def test_a_disk_that_is_full_is_survived(tmp_path: Path) -> None:
    """A state that cannot be written costs a False, no exception, and the old one stays."""
    store = Store(tmp_path)
    assert store.save(sample())
    before = store.path.read_bytes()
    (tmp_path / "state.new").mkdir()
    assert not store.save(Saved())
    assert store.path.read_bytes() == before


class Crash(BaseException):
    """The process dies here."""


class Counted:
    """`os` for the store, that fails or dies at one of its calls."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.calls: list[str] = []
        self._at = at
        self._error = error

    def __getattr__(self, name: str) -> Any:
        value = getattr(os, name)
        if not callable(value):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) == self._at:
                if name == "write" and isinstance(self._error, Crash):
                    os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])  # half of it is on the disk
                raise self._error
            return value(*arguments, **options)

        return call


def calls_of_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What one save asks of the system."""
    counted = Counted(0, Crash())
    directory = Store(tmp_path / "count")
    directory.directory.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "os", counted)
        assert directory.save(sample())
    return counted.calls


def numbered(number: int) -> Saved:
    """A generation."""
    return Saved(counts={"generation": [((), float(number))]})


def test_a_crash_at_any_call_leaves_a_whole_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at each system call of the second to fourth save: what is loaded is whole and at most one older."""
    calls = calls_of_a_save(tmp_path, monkeypatch)
    assert calls == ["open", "write", "fsync", "close", "replace", "replace", "open", "fsync", "close"]
    for generation in (1, 2, 3):
        for at in range(1, len(calls) + 1):
            store = Store(tmp_path / f"{generation}-{at}")
            store.directory.mkdir()
            for number in range(generation):
                assert store.save(numbered(number))
            with monkeypatch.context() as patch:
                patch.setattr(store_module, "os", Counted(at, Crash()))
                with pytest.raises(Crash):
                    store.save(numbered(generation))
            saved, problems = Store(store.directory).load(Saved)
            assert saved is not None
            assert saved.counts["generation"][0][1] in (generation - 1, generation)
            assert problems == []
            assert store.save(numbered(generation + 1))  # and the next daemon saves again
            saved, _ = Store(store.directory).load(Saved)
            assert saved is not None
            assert saved.counts["generation"][0][1] == generation + 1


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT, errno.EACCES, errno.ESTALE])
def test_an_error_at_any_call_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """A save that fails says so, leaks nothing, keeps a whole generation, and the next one that may succeed does."""
    calls = calls_of_a_save(tmp_path, monkeypatch)
    for at in range(1, len(calls) + 1):
        store = Store(tmp_path / str(at))
        store.directory.mkdir()
        assert store.save(numbered(1))
        before = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patch:
            patch.setattr(store_module, "os", Counted(at, OSError(error, os.strerror(error))))
            assert not store.save(numbered(2))
        assert len(os.listdir("/proc/self/fd")) <= before + (calls[at - 1] == "close")
        saved, _ = store.load(Saved)
        assert saved is not None
        assert saved.counts["generation"][0][1] in (1, 2)
        assert store.save(numbered(3))
        assert store.failures == 0


def test_short_writes_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes a few bytes at a time gets all of them."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data[:100])))
    store = Store(tmp_path)
    assert store.save(sample())
    assert store.load(Saved)[0] is not None


def test_a_disk_that_hangs_does_not_stop_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The saver's thread waits, nobody else; the newest state is written when the disk is back."""
    gate = threading.Event()
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (gate.wait(10), real(descriptor)))
    store = Store(tmp_path)
    saver = Saver(store)
    for number in range(5):
        saver.offer(encode(numbered(number)))
        assert saver.busy
    assert not saver.wait(0.05)
    gate.set()
    until = time.perf_counter() + 10
    while saver.busy and time.perf_counter() < until:
        time.sleep(0.01)
    saved, _ = store.load(Saved)
    assert saved is not None
    assert saved.counts["generation"][0][1] == 4


def test_the_state_of_every_released_version_is_read() -> None:
    """Files that earlier versions wrote; one is added when a version is released (tests/golden/state)."""
    files = sorted((Path(__file__).parents[1] / "golden" / "state").glob("*.state"))
    assert files
    for file in files:
        saved = decode(file.read_bytes(), Saved, EARLIER)
        core = Core(load_config("", ["runs=[{paths: [/logs/*.log]}]"]))
        positions = core.restore(saved)
        assert positions, file.name
        for source, position in positions.items():
            core.handle(
                Opened(source, source, position, position.offset, 1.7e9, resumed=True, offset=position.offset), 1.7e9
            )
            core.handle(CaughtUp(source, 1.7e9), 1.7e9)
        assert {run.state.iterations_total for run in core.runs.values()} == {40}, file.name


def test_what_is_gone_for_a_month_is_forgotten() -> None:
    """A source that nobody saw again stays for 30 days, not for ever; one that the follower forgot, not at all."""
    position = Position(1, 2, 0, "", 0, 0, "")
    known = {"open": [], "offset": 0, "line": 1}
    saved = Saved(
        sources={"/old": SavedSource("r", position, known, 1000.0)},
        runs={"r": Judged(RunState("r", proven=True), IncidentBook(), False)},
    )
    core = Core(load_config("", ["runs=[{paths: [/logs/*.log]}]"]))
    core.restore(saved)
    assert set(core.save(1000.0 + 29 * 86_400).sources) == {"/old"}
    later = core.save(1000.0 + 31 * 86_400)
    assert later.sources == {}
    assert later.runs == {}
    core.handle(Opened("/logs/a.log", "/logs/a.log", None, 0, 0.0, resumed=False), 0.0)
    assert set(core.save(1000.0).sources) == {"/old", "/logs/a.log"}
    core.handle(Scanned("/", "ext4", "poll", 0.0, forgotten=("/logs/a.log",)), 0.0)
    assert set(core.save(1000.0).sources) == {"/old"}


def test_a_hundred_thousand_sources_load_in_a_second(tmp_path: Path) -> None:
    """Of CPU time: the machine may be busy."""
    position = Position(64512, 1234567, 1024, "0" * 32, 987_654, 256, "1" * 32)
    known = {"open": [], "offset": 987_654, "line": 4321, "after_return": False, "matched_lines": 1, "last_matched": 9}
    sources = {f"/logs/job-{n}/rank-0.log": SavedSource(f"job-{n}", position, known, 1.0e9) for n in range(100_000)}
    store = Store(tmp_path)
    assert store.save(Saved(sources=sources))
    best = 9.0
    for _ in range(3):
        began = time.process_time()
        saved, _ = store.load(Saved)
        core = Core(load_config("", ["runs=[{paths: [/logs/**/*.log]}]"]))
        assert saved is not None
        assert len(core.restore(saved)) == 100_000
        best = min(best, time.process_time() - began)
        if best < 1.0:
            return
    pytest.fail(f"{best:.1f} s")


def test_a_large_state_is_saved_less_often() -> None:
    """Every second while it is small; 250 kB a second and a part in 4,000 of the loop's time; once a minute at least,
    unless it takes the loop longer than 3 s.
    """
    assert pause_after(10_000, 0.0002) == 1.0
    assert pause_after(5_000_000, 0.001) == 20.0
    assert pause_after(1_000, 0.005) == 20.0
    assert pause_after(1_000_000_000, 1.0) == 60.0
    assert pause_after(1_000_000_000, 5.0) == 100.0
