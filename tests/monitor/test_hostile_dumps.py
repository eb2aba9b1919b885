"""Dumps that want to stop who reads them cost a process of its own its time, and nobody else."""

import json
import os
import pickle
import resource
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from megatron_monitor import dumps
from megatron_monitor.nodes import plain_pickle
from megatron_monitor.nodes.plain_pickle import NotPlainError, read_plain
from megatron_monitor.run.dumps import DumpRequest
from megatron_monitor.system.clock import SystemClock
from tests.programs import slack


def frame(line: int) -> dict[str, Any]:
    """One of a stack."""
    return {"name": "step", "filename": "train.py", "line": line}


def plain(**changed: Any) -> dict[str, Any]:
    """A dump of rank 0 that is all right, but for what is changed."""
    entry = {
        "process_group": ["0", "default_pg"], "pg_id": 0, "collective_seq_id": 7, "state": "started",
        "profiling_name": "nccl:all_reduce", "is_p2p": False, "frames": [frame(1)],
    }  # fmt: skip
    value: dict[str, Any] = {
        "version": "2.9",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"}},
        "pg_status": {"0": {"last_enqueued_collective": 7, "last_completed_collective": 6}},
        "entries": [entry],
    }
    for key, item in changed.items():
        (value if key in value else entry)[key] = item
    return value


def laughs(levels: int) -> Any:
    """A list of ten references to a list of ten references ...: a few bytes, 10 to the power of `levels` as text."""
    value: Any = ["lol"]
    for _ in range(levels):
        value = [value] * 10
    return value


def _self() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def _body(value: bytes, begin: bytes = b"\x80\x02}X\x07\x00\x00\x00entries") -> bytes:
    return begin + value + b"s."


def _wrong() -> Iterator[tuple[str, Any]]:
    """Each field as what it must not be."""
    bad = laughs(9)
    for field in [
        "version",
        "pg_config",
        "pg_status",
        "process_group",
        "pg_id",
        "collective_seq_id",
        "state",
        "frames",
    ]:
        yield f"wrong_{field}", plain(**{field: bad})
    yield "wrong_profiling_name", plain(profiling_name=bad)
    yield "wrong_group_name", plain(pg_config={"0": {"name": bad, "desc": bad, "ranks": bad}})
    yield "wrong_group_of_entry", plain(process_group=[bad, bad])
    yield "wrong_frame", plain(frames=[{"name": bad, "filename": bad, "line": bad}] * 9)
    yield "wrong_status", plain(pg_status={"0": {"last_enqueued_collective": bad}})


def hostile(large: int) -> Iterator[tuple[str, bytes]]:
    """Names and bytes; the large ones take so many bytes."""
    for name, value in _wrong():
        yield name, pickle.dumps(value, protocol=2)
    text, shared = "x" * (large // 2), [frame(n) for n in range(large // 200)]
    number = (2**61 - 1).to_bytes(8, "little")
    yield "laughs_30", pickle.dumps(plain(version=laughs(30)), protocol=2)
    yield "self", pickle.dumps(plain(version=_self(), process_group=_self(), frames=_self()), protocol=2)
    yield "entries_self", pickle.dumps({"entries": _self()}, protocol=2)
    yield "small_integers", _body(b"](" + b"K\x01" * (large // 2) + b"e")
    yield "empty_dicts", _body(b"](" + b"}" * large + b"e")
    yield "memo_uses", _body(b"]q\x00(" + b"h\x00" * (large // 2) + b"e")
    yield "memo_places", _body(b"](" + b"]q\x00" * (large // 3) + b"e")
    yield "deep_lists", _body(b"]" * (large // 2) + b"a" * (large // 2 - 1))
    yield "deep_tuples", _body(b")" + b"\x85" * large)
    yield "marks", b"\x80\x02" + b"(" * large + b"."
    yield "huge_text", pickle.dumps(plain(profiling_name=text, process_group=[text, text]), protocol=4)
    yield "huge_text_claimed", _body(b"\x8d" + struct.pack("<Q", 2**62) + b"x")
    yield "huge_integers", _body(b"](" + (b"\x8a\xff" + b"\x7f" * 255) * (large // 257) + b"e")
    yield "huge_sequence", pickle.dumps(plain(collective_seq_id=2**2000), protocol=2)
    colliding = b"".join(b"\x8a\x09%b%cN" % (number, n % 100) for n in range(large // 12))
    yield "keys_collide", _body(b"}(" + colliding + b"u")
    config = {"name": "0", "ranks": "7" * 10**5}
    again = {str(n): config for n in range(large // 20)}
    yield "ranks_again", pickle.dumps(plain(pg_config=again), protocol=2)
    yield "frames_again", pickle.dumps({"entries": [plain(frames=shared)["entries"][0]] * (large // 20)}, protocol=2)
    entries = [plain(process_group=[str(n), ""])["entries"][0] for n in range(large // 400)]
    yield "groups", pickle.dumps({"entries": entries}, protocol=2)
    yield "power_digit_group", pickle.dumps(plain(pg_config={"a": {"name": "²", "ranks": "[0]"}}), protocol=2)
    yield "surrogate", json.dumps(plain(profiling_name="\ud800", process_group=["\udcff", ""])).encode()
    yield "json_deep", b'{"entries": ' + b"[" * large
    yield "json_empty_lists", b'{"entries": [' + b"[]," * (large // 3) + b"[]]}"
    yield "json_huge_integer", b'{"entries": [' + b"9" * large + b"]}"
    yield "calls_a_program", b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R."
    yield "truncated", pickle.dumps(plain(), protocol=2)[:-40]
    yield "empty", b""


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
    reported = dumps.read_files([f"{tmp_path}/nccl_trace_rank_*"], 0.0, SystemClock())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024
    assert reported.missing is not None
    assert reported.missing.ranks == (5,)
    reasons = {int(path.rsplit("_", 1)[1]): reason for path, reason in reported.left_out}
    assert reasons[99] == "it is not a regular file"
    refused = {names[rank - 100] for rank in reasons if rank >= 100}
    assert {"calls_a_program", "truncated", "empty", "marks", "keys_collide", "json_deep"} <= refused
    assert "wrong_version" not in refused  # what is wrong in it is left out, the rest is taken


def test_more_values_than_any_dump_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MB of small integers are read to the limit; one value fewer is read whole."""
    monkeypatch.setattr(plain_pickle, "_MAX_OPCODES", 100)
    data = b"\x80\x02](" + b"K\x01" * 95 + b"e."
    assert len(read_plain(data)) == 95
    with pytest.raises(NotPlainError, match="more than 100 values"):
        read_plain(data.replace(b"K\x01e", b"K\x01K\x01e"))


def test_a_reader_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one that takes too much memory, or prints what is no answer: the run hears nothing, and asks again."""
    _good(tmp_path)
    asked = DumpRequest("r", 0, (f"{tmp_path}/*",), 0.0)
    assert dumps.read_dumps(asked, SystemClock()).missing is not None
    monkeypatch.setattr(dumps, "_SECONDS", 0.3)
    clock = SystemClock()
    began = clock.monotonic()
    for reader in ("while True: pass", "bytearray(2**50)", "print('{}')", "print('x' * 10**8)"):
        monkeypatch.setattr(dumps, "_READER", reader)
        assert dumps.read_dumps(asked, clock) == dumps.DumpReply(asked)
    assert clock.monotonic() - began < slack(10)
