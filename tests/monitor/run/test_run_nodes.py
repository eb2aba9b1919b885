"""`megatron_run_node_info`: which nodes a run's series name, and when none."""

import pytest

from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.follow.messages import CaughtUp, Data, Opened
from tests.lines import line

LISTED = "SLURM_JOB_NODELIST=jz-[001-003]\n"
ENDED = "[exiting program after 5 iterations] datetime: 2026-01-01 00:00:00 \n"


def nodes(text: str) -> set[str]:
    """The nodes that are shown of a run that printed this."""
    core = Core(load("", ["runs=[{paths: [/logs/a.log]}]"]))
    core.handle(Opened("/logs/a.log", "/logs/a.log", None, 0, 1000.0, False), 1000.0)
    core.handle(Data("/logs/a.log", 0, text.encode(), 1000.0, 1000.0, 0), 1000.0)
    core.handle(CaughtUp("/logs/a.log", 1000.0), 1000.0)
    core.tick(1001.0)
    (run,) = core.snapshot(1001.0).runs
    samples = run.samples.get("megatron_run_node_info", ())
    assert isinstance(samples, tuple)
    assert {sample.value for sample in samples} <= {1.0}
    return {sample.labels[0] for sample in samples}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LISTED + line(1), {"jz-001", "jz-002", "jz-003"}),
        ("SLURM_JOB_NODELIST=jz-[001-513]\n" + line(1), set()),  # 512 of 513 would hide the last one
        (LISTED + line(5) + ENDED, set()),  # another run's by now
        (line(1), set()),
    ],
)
def test_the_nodes_of_a_run(text: str, expected: set[str]) -> None:
    """Those of its present attempt, all or none."""
    assert nodes(text) == expected
