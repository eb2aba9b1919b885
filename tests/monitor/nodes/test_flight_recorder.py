"""The flight recorder's dumps: who did not arrive, and a reader that executes nothing."""

import contextlib
import pickle
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from megatron_monitor.nodes.flight_recorder import Diagnosis, NoDumpError, diagnose, rank_of, read_dump
from megatron_monitor.nodes.plain_pickle import NotPlainError, read_plain

WORLD = "[0, 1, 2, 3, 4, 5, 6, 7]"


def entry(group: str, number: int, state: str, operation: str = "nccl:all_reduce", **more: Any) -> dict[str, Any]:
    """One record, as version 2.9 writes it."""
    name = "DATA_PARALLEL_GROUP" if group != "0" else "default_pg"
    return {
        "record_id": number, "pg_id": 1 if group != "0" else 0, "process_group": [group, name],
        "collective_seq_id": number, "profiling_name": operation, "state": state, "is_p2p": False,
        "frames": [{"name": "step", "filename": "train.py", "line": number}], **more,
    }  # fmt: skip


def dump(rank: int, *entries: dict[str, Any], enqueued: int = 0) -> dict[str, Any]:
    """A rank's dump; its group of four is 3 for the even ranks and 4 for the odd."""
    mine, ranks = ("3", "[0, 2, 4, 6]") if rank % 2 == 0 else ("4", "[1, 3, 5, 7]")
    return {
        "version": "2.9",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": WORLD},
                      mine: {"name": mine, "desc": "DATA_PARALLEL_GROUP", "ranks": ranks}},
        "pg_status": {"1": {"last_enqueued_collective": enqueued, "last_completed_collective": enqueued}},
        "entries": list(entries),
    }  # fmt: skip


def reported(dumps: dict[int, dict[str, Any]]) -> Diagnosis:
    """What the dumps tell, as pickles."""
    return diagnose(read_dump(pickle.dumps(value, protocol=2), rank) for rank, value in dumps.items())


def waiting(rank: int) -> dict[str, Any]:
    """A rank that waits in its group's 700, and behind it in the world's."""
    group = "3" if rank % 2 == 0 else "4"
    return dump(rank, entry(group, 699, "completed"), entry(group, 700, "started"), entry("0", 41, "scheduled"))


def test_a_rank_outside_nccl_never_reached_it() -> None:
    """Rank 5 has completed all that it enqueued, 699: all others wait, those of other groups too."""
    dumps = {rank: waiting(rank) for rank in (1, 3, 7)}
    dumps |= {rank: dump(rank, entry("0", 41, "scheduled")) for rank in (0, 2, 4, 6)}
    dumps[5] = dump(5, entry("4", 699, "completed"), enqueued=699)
    found = reported(dumps)
    assert found.missing is not None
    assert found.missing.sentence({5: "n-2"}) == (
        "rank 5 on node n-2 never reached all-reduce 700 of DATA_PARALLEL_GROUP; the other 7 wait for it"
    )
    empty = dump(5, enqueued=699)  # its records were retired: its status tells
    dumps[5] = empty
    again = reported(dumps)
    assert again.missing is not None
    assert again.missing.ranks == (5,)


def test_a_rank_that_hangs_in_what_others_finished_is_stuck() -> None:
    """All have enqueued everything; the GPU of rank 6 does not get through 690, the others wait in 700."""
    dumps = {rank: waiting(rank) for rank in range(8)}
    dumps[6] = dump(6, *(entry("3", number, "started") for number in range(690, 702)))
    found = reported(dumps)
    assert found.missing is not None
    assert (found.missing.ranks, found.missing.proof, found.missing.work) == ((6,), "stuck", 690)
    assert found.stacks[6] == ["step (train.py:690)"]


def test_pairs_and_ranks_without_a_dump() -> None:
    """Who waits to send waits; a rank of which there is no dump is silent; four of eight are too many to name any."""
    send = entry("0", 9, "started", "nccl:send 0->1", is_p2p=True)
    dumps = {rank: waiting(rank) for rank in range(8) if rank != 3}
    dumps[0] = dump(0, send, entry("3", 700, "scheduled"))
    found = reported(dumps)
    assert found.missing is not None
    assert (found.missing.ranks, found.missing.proof) == ((3,), "silent")
    half = reported({rank: waiting(rank) for rank in range(4)})
    assert half.missing is None


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("executed",)


def test_nothing_is_executed_and_nothing_large_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    """A call, a memo of two billion places, a text of exabytes, a bomb of references: refused or small."""
    for evil in (
        pickle.dumps({"entries": [_Evil()]}),
        b"\x80\x02}r\xff\xff\xff\x7f.",  # LONG_BINPUT: Python's own reader would make room for 2^31 values
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
        b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.",
        b"\x80\x02(((((((((((.",
    ):
        with pytest.raises(NoDumpError):
            read_dump(evil, 0)
    assert capsys.readouterr().out == ""
    bomb = b"\x80\x02]q\x00" + b"".join(b"]q" + bytes([n]) + (b"h" + bytes([n - 1]) + b"a") * 9 for n in range(1, 60))
    assert isinstance(read_plain(bomb + b"."), list)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5)
    | st.tuples(inner, inner),
    max_leaves=30,
)  # fmt: skip


@given(_VALUES, st.sampled_from([2, 3, 4, 5]))
def test_plain_values_are_read_as_python_reads_them(value: Any, protocol: int) -> None:
    """Whatever the protocol."""
    assert read_plain(pickle.dumps(value, protocol=protocol)) == value


@given(st.binary(max_size=200))
@example(b"s.")
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Never another exception; as a dump neither."""
    for begin in (b"", b"\x80\x02", b"\x80\x02}q\x00X\x07\x00\x00\x00entries]"):
        with contextlib.suppress(NotPlainError):
            read_plain(begin + data)
        with contextlib.suppress(NoDumpError):  # an empty dump, and no more, can be hit upon
            assert not read_dump(begin + data, 0).reports


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_37", 37),
        ("comm_lib_trace_rank_0", 0),
        ("_dump_12", 12),
        ("trace_rank3.json", 3),
        ("notes", None),
    ],
)
def test_the_name_ends_in_the_rank(name: str, rank: int | None) -> None:
    """As PyTorch writes them, or with an ending."""
    assert rank_of(name) == rank
