"""The flight recorder's dumps in a hang's evidence: read beside the core, told by it."""

import os
import pickle
from pathlib import Path
from typing import Any

from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.dumps import read_dumps
from megatron_monitor.follow.messages import CaughtUp, Data, Opened
from megatron_monitor.run.dumps import DumpRequest
from megatron_monitor.system.clock import SystemClock
from tests.lines import line
from tests.monitor.extended import extended

_START = 1.7e9
_PATH = "/logs/tr11.log"


def _dump(path: Path, rank: int, last: int, state: str, at: float) -> None:
    """A rank's dump of the world's group, written at that instant."""
    ranks = str(list(range(8)))
    frame = {"name": "get_batch", "filename": "pretrain_gpt.py", "line": 88}
    entry: dict[str, Any] = {
        "process_group": ["0", "default_pg"], "pg_id": 0, "collective_seq_id": last, "state": state,
        "profiling_name": "nccl:all_reduce", "is_p2p": False, "frames": [frame],
    }  # fmt: skip
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    file = path / f"nccl_trace_rank_{rank}"
    file.write_bytes(pickle.dumps({"version": "2.9", "pg_config": config, "entries": [entry]}, protocol=2))
    os.utime(file, (at, at))


def _hung(core: Core) -> float:
    """A training of 40 iterations of 2 s on two nodes that then says nothing; the instant at which it hangs."""
    head = (
        "SLURM_JOB_NODELIST=jz-[011-012]\nusing world size: 8, data-parallel-size: 8, tensor-model-parallel size: 1\n"
    )
    lines = [line(number, seconds=2.0) for number in range(1, 41)]
    core.handle(Opened(_PATH, _PATH, None, 0, _START, False), _START)
    offset, now = 0, _START
    for text in (head, *lines):
        core.handle(Data(_PATH, offset, text.encode(), now, now, 0), now)
        offset += len(text)
        if text is head:
            core.handle(CaughtUp(_PATH, now), now)
        core.tick(now)
        now += 2.0
    for _ in range(60):
        now += 2.0
        if any(item.incident == "hang" and not item.display_only for item in core.tick(now)):
            return now
    raise AssertionError("no hang")


def test_a_hang_says_who_never_arrived(tmp_path: Path) -> None:
    """Asked for while it hangs, in a folder of the run's name; a dump from before the last iteration does not count;
    when the run goes on it is forgotten.
    """
    config = load("", ["runs=[{paths: [/logs/*.log]}]", f"flight_recorder=['{tmp_path}/{{run}}/nccl_trace_rank_*']"])
    core = extended(Core(config))
    assert core.dumps_to_read(_START) == []
    now = _hung(core)
    folder = tmp_path / next(iter(core.runs))
    folder.mkdir()
    (asked,) = core.dumps_to_read(now)
    assert core.dumps_to_read(now + 1) == []
    core.dumps_read(read_dumps(asked, SystemClock()))  # nothing is there yet
    assert "ranks" not in core.runs[asked.run].book.open["hang"].evidence
    for rank in range(7):
        _dump(folder, rank, 81234, "started", now)  # rank 7 is still writing: it is not named for that
    now += 31
    (asked,) = core.dumps_to_read(now)
    core.dumps_read(read_dumps(asked, SystemClock()))
    assert core.runs[asked.run].state.attempt.dumped is None
    for rank in range(8):
        _dump(folder, rank, 81234 if rank != 5 else 81233, "started" if rank != 5 else "completed", now)
    _dump(folder, 7, 81234, "started", now + 300)  # the others were asked for by hand minutes before: that is over
    assert read_dumps(asked, SystemClock()).missing is None
    _dump(folder, 7, 81234, "started", now)
    _dump(folder, 3, 11, "started", _START)  # of the attempt before
    os.mkfifo(folder / "nccl_trace_rank_9")
    now += 31
    (asked,) = core.dumps_to_read(now)
    read = read_dumps(asked, SystemClock())
    assert read.dumps == 7
    core.dumps_read(read)
    core.tick(now)
    hang = core.runs[asked.run].book.open["hang"]
    assert "rank 5 on node jz-012 never reached all-reduce 81234" in hang.summary
    assert (hang.evidence["ranks"], hang.evidence["nodes"]) == ([5], ["jz-012"])
    assert hang.evidence["missing_stacks"] == {"5": ["get_batch (pretrain_gpt.py:88)"]}
    text = b" iteration       41/    1000 | elapsed time per iteration (ms): 2000.0 | lm loss: 2.1E+00 |\n"
    core.handle(Data(_PATH, core.sources[_PATH].reader.fed_bytes, text, now + 1, now + 1, 0), now + 1)
    core.tick(now + 1)
    assert core.dumps_to_read(now + 2) == []
    assert core.runs[asked.run].state.attempt.dumped is None


def test_a_runs_name_opens_no_other_folder(tmp_path: Path) -> None:
    """`{run}` is taken as it stands: what could be a pattern or a way up is not asked for."""
    (tmp_path / "a").mkdir()
    _dump(tmp_path / "a", 0, 1, "started", _START)
    core = Core(
        load("", ["runs=[{paths: [/logs/*.log], name: '*'}]", f"flight_recorder=['{tmp_path}/{{run}}/nccl_*']"])
    )
    now = _hung(core)
    assert core.dumps_to_read(now) == []
    assert read_dumps(DumpRequest("r", 0, (str(tmp_path / "*" / "nccl_*"),), 0.0), SystemClock()).dumps == 1
