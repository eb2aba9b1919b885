"""Dumps that want to stop who reads them; `python -m benchmarks.hostile_dumps` lays them before a live daemon.

Of a daemon that follows a run that hangs, and has dumps, and 20 others that go on it measures, dump by dump: the
longest that /-/healthy took, how much memory the daemon grew (and with the process that reads dumps), and how many
lines the others were behind.
"""

import argparse
import contextlib
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STEP = " iteration {:8d}/  100000 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.1E+00 |\n"
_OTHERS = 20


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
    for field in (
        "version",
        "pg_config",
        "pg_status",
        "process_group",
        "pg_id",
        "collective_seq_id",
        "state",
        "frames",
    ):
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
    yield (
        "keys_collide",
        _body(b"}(" + b"".join(b"\x8a\x09" + number + bytes([n % 100]) + b"N" for n in range(large // 12)) + b"u"),
    )
    config = {"name": "0", "ranks": "7" * 10**5}
    again = {str(n): config for n in range(large // 20)}
    yield "ranks_again", pickle.dumps(plain(pg_config=again), protocol=2)
    yield "frames_again", pickle.dumps({"entries": [plain(frames=shared)["entries"][0]] * (large // 20)}, protocol=2)
    yield (
        "groups",
        pickle.dumps(
            {"entries": [plain(process_group=[str(n), ""])["entries"][0] for n in range(large // 400)]}, protocol=2
        ),
    )
    yield "power_digit_group", pickle.dumps(plain(pg_config={"a": {"name": "²", "ranks": "[0]"}}), protocol=2)
    yield "surrogate", json.dumps(plain(profiling_name="\ud800", process_group=["\udcff", ""])).encode()
    yield "json_deep", b'{"entries": ' + b"[" * large
    yield "json_empty_lists", b'{"entries": [' + b"[]," * (large // 3) + b"[]]}"
    yield "json_huge_integer", b'{"entries": [' + b"9" * large + b"]}"
    yield "calls_a_program", b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R."
    yield "truncated", pickle.dumps(plain(), protocol=2)[:-40]
    yield "empty", b""


def _get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def _resident(pid: int) -> int:
    """Bytes; 0 for a process that is gone."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    return 0


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    return []


def _watch(
    port: int, pid: int, done: Callable[[], bool], logs: list[Path], seconds: float
) -> tuple[float, int, int, int]:
    """Until then: the longest answer, the most memory of the daemon and with its children, the most lines behind."""
    slowest, most, with_children, behind = 0.0, 0, 0, 0
    until, written = time.monotonic() + seconds, 0.0
    while time.monotonic() < until and not done():
        began = time.monotonic()
        _get(port, "/-/healthy")
        slowest = max(slowest, time.monotonic() - began)
        resident = _resident(pid)
        most, with_children = max(most, resident), max(with_children, resident + sum(map(_resident, _children(pid))))
        if began - written > 1.0:
            if written:
                shown = dict(re.findall(r'megatron_iteration\{run="(go\d+)"[^}]*\} (\d+)', _get(port, "/metrics")))
                behind = max(
                    [behind, *(len(log.read_text().splitlines()) - int(shown.get(log.stem, 0)) for log in logs)]
                )
            for log in logs:
                with log.open("a") as stream:
                    stream.write(STEP.format(len(log.read_text().splitlines()) + 1))
            written = began
        time.sleep(0.02)
    return slowest, most, with_children, behind


def measure(name: str, data: bytes | Callable[[Path], None], seconds: float) -> bool:
    """A daemon of its own, and one dump; prints a line. Whether the bar holds."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "hung.log").write_text("".join(STEP.format(n) for n in range(1, 41)))
        logs = [here / f"go{n}.log" for n in range(_OTHERS)]
        for log in logs:
            log.write_text(STEP.format(1))
        (here / "dumps").mkdir()
        port = 20000 + os.getpid() % 20000
        settings = (
            f"listen=127.0.0.1:{port}", f"state_dir={here}/state", "detectors.hang.minimum=3s",
            "detectors.hang.factor=1", f"flight_recorder=['{here}/dumps/nccl_trace_rank_*']",
        )  # fmt: skip
        command = [sys.executable, "-m", "megatron_monitor", "run", f"{here}/*.log"]
        command += [word for setting in settings for word in ("--set", setting)]
        with (here / "err").open("wb") as errors:
            daemon = subprocess.Popen(command, stderr=errors, stdout=errors)
        try:
            for _ in range(300):
                with contextlib.suppress(OSError):
                    _get(port, "/-/ready")
                    break
                time.sleep(0.1)
            for number in range(41, 46):  # it lives, and then hangs
                with (here / "hung.log").open("a") as stream:
                    stream.write(STEP.format(number))
                time.sleep(0.5)
            _watch(port, daemon.pid, lambda: False, logs, 2.5)
            before = _resident(daemon.pid)
            path = here / "dumps" / "nccl_trace_rank_0"
            data(path) if callable(data) else path.write_bytes(data)
            seen = False

            def done() -> bool:
                nonlocal seen
                reading = bool(_children(daemon.pid))
                seen = seen or reading
                return seen and not reading

            slowest, most, with_children, behind = _watch(port, daemon.pid, done, logs, seconds)
            after = _watch(port, daemon.pid, lambda: False, logs, 1.5)
        finally:
            daemon.terminate()
            daemon.wait()
        grown, all_grown = (max(most, after[1]) - before) / 2**20, (with_children - before) / 2**20
        slowest, behind = max(slowest, after[0]), max(behind, after[3])
        good = seen and slowest <= 0.2 and grown <= 50 and behind <= 0
        verdict = "" if good else "MISSED" if seen else "NOT READ"
        figures = f"{slowest:8.3f} {grown:8.1f} {all_grown:8.1f} {behind:6d}"
        print(f"{name:22} {figures}  {verdict}", flush=True)
        return good


def main() -> None:
    """Exit 1 if one dump misses the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", type=int, default=100_000_000, help="bytes of the large ones")
    parser.add_argument("--seconds", type=float, default=150.0, help="the longest to wait for a dump to be read")
    parser.add_argument("only", nargs="*", help="names")
    given = parser.parse_args()
    print(f"{'dump':22} {'health s':>8} {'MB':>8} {'MB all':>8} {'behind':>6}")
    results = [
        measure(name, data, given.seconds)
        for name, data in hostile(given.large)
        if not given.only or name in given.only
    ]
    if not given.only or "fifo" in given.only:
        results.append(measure("fifo", os.mkfifo, given.seconds))
    print(f"{sum(results)} of {len(results)} within 0.2 s, 50 MB, no line behind")
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
