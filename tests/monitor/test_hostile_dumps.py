"""Dumps that want to stop who reads them cost a process of its own its time, and nobody else."""

import os
import pickle
import resource
from pathlib import Path

import pytest

from benchmarks.hostile_dumps import hostile, laughs, plain
from megatron_monitor import dumps
from megatron_monitor.nodes import plain_pickle
from megatron_monitor.nodes.plain_pickle import NotPlainError, read_plain
from megatron_monitor.run.dumps import DumpsAsked
from megatron_monitor.system.clock import SystemClock
from tests.commands import command


def _good(folder: Path) -> None:
    """Rank 5 of 8 is behind; the dumps of the others are sound."""
    for rank in range(8):
        late = plain(collective_seq_id=6, state="completed", pg_status={}) if rank == 5 else plain()
        late["entries"][0].update({"collective_seq_id": 6, "state": "completed"} if rank == 5 else {})
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(late, protocol=2))


def test_hostile_dumps_hide_no_good_one(tmp_path: Path) -> None:
    """Beside some 40 of them, and a pipe, eight good dumps tell who is missing; and cost less than 50 MB here."""
    _good(tmp_path)
    names = [name for name, _ in hostile(200_000)]
    assert len(names) >= 30
    for number, (_, data) in enumerate(hostile(200_000), 100):
        (tmp_path / f"nccl_trace_rank_{number}").write_bytes(data)
    os.mkfifo(tmp_path / "nccl_trace_rank_99")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    told = dumps.read_files([f"{tmp_path}/nccl_trace_rank_*"], 0.0, SystemClock())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024
    assert told.missing is not None
    assert told.missing.ranks == (5,)
    reasons = {int(path.rsplit("_", 1)[1]): reason for path, reason in told.left_out}
    assert reasons[99] == "it is no regular file"
    refused = {names[rank - 100] for rank in reasons if rank >= 100}
    assert {"calls_a_program", "truncated", "empty", "marks", "keys_collide", "json_deep"} <= refused
    assert "wrong_version" not in refused  # what is wrong in it is left out, the rest is taken


def test_more_values_than_any_dump_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MB of small integers are read to the limit; one value fewer is read whole."""
    monkeypatch.setattr(plain_pickle, "_MOST", 100)
    data = b"\x80\x02](" + b"K\x01" * 95 + b"e."
    assert len(read_plain(data)) == 95
    with pytest.raises(NotPlainError, match="more than 100 values"):
        read_plain(data.replace(b"K\x01e", b"K\x01K\x01e"))


def test_a_reader_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one that takes too much memory, or prints what is no answer: the run hears nothing, and asks again."""
    _good(tmp_path)
    asked = DumpsAsked("r", 0, (f"{tmp_path}/*",), 0.0)
    assert dumps.read_dumps(asked, SystemClock()).missing is not None
    monkeypatch.setattr(dumps, "_SECONDS", 0.3)
    clock = SystemClock()
    began = clock.monotonic()
    for reader in ("while True: pass", "bytearray(2**50)", "print('{}')", "print('x' * 10**8)"):
        monkeypatch.setattr(dumps, "_READER", reader)
        assert dumps.read_dumps(asked, clock) == dumps.DumpsRead(asked)
    assert clock.monotonic() - began < 10


def test_the_command_reads_them_as_the_daemon_does(tmp_path: Path) -> None:
    """A dump that is endless as text, an escape in a name, a file that is not there: each told, none waited for."""
    _good(tmp_path)
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(plain(version=laughs(30)), protocol=2))
    (tmp_path / "\x1b[31m_9").write_bytes(b"")
    shown = command("flight-recorder", tmp_path, tmp_path / "none_1")
    assert "rank 5 never reached all-reduce 7" in shown.stdout
    assert "none_1: No such file or directory" in shown.stderr
    assert "\x1b" not in shown.output
