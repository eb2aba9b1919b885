"""The state file: atomic, checksummed, one owner, rebuilt when it cannot be trusted."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from monitor.core import Saved, SavedRun
from monitor.incidents import IncidentBook
from monitor.run.fold import fold
from monitor.run.state import RunState
from monitor.store import StateInUseError, StateUnreadableError, Store, decode, encode
from parsers.events import IterationLogged, LogEvent


def sample() -> Saved:
    """A state with everything that is awkward to write: NaN, integer keys, nested types."""
    state = RunState(name="run")
    for number in range(1, 8):
        event = IterationLogged(iteration=number, seconds_per_iteration=2.0, grad_norm=math.nan, global_batch_size=64)
        fold(state, LogEvent(number, "r", event, "line"), "a", float(number), True)
    return Saved(runs={"run": SavedRun(state, IncidentBook(), False)}, counts={"x_total": [(("a", "b"), 3.0)]})


def test_round_trip() -> None:
    """What was written is read back, NaN and all."""
    saved = sample()
    back = decode(encode(saved), Saved)
    assert repr(back) == repr(saved)
    assert math.isnan(back.runs["run"].state.latest.grad_norm)


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
    data = encode(sample()).replace(b'"version": 1', b'"version": 9', 1)
    with pytest.raises(StateUnreadableError, match="version 9"):
        decode(data, Saved)


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


def test_one_owner(tmp_path: Path) -> None:
    """A second store on the directory is refused until the first lets go."""
    first, second = Store(tmp_path), Store(tmp_path)
    first.lock()
    with pytest.raises(StateInUseError):
        second.lock()
    first.release()
    second.lock()
    second.release()


def test_a_disk_that_is_full_is_survived(tmp_path: Path) -> None:
    """A state that cannot be written costs a False, no exception, and the old one stays."""
    store = Store(tmp_path)
    assert store.save(sample())
    before = store.path.read_bytes()
    (tmp_path / "state.new").mkdir()
    assert not store.save(Saved())
    assert store.path.read_bytes() == before
