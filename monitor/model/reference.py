"""What known machines took: seconds per iteration of measured runs, for a run that has no past of its own.

Rows of the BigScience experiments of 2021 and 2022 (V100 and A100, one figure a configuration, medians of repeats).
Those that do not reproduce, or whose layout does not fit their GPUs, are left out.
"""

from functools import cache
from typing import NamedTuple

from megatron_monitor.model.flops import parameters
from megatron_monitor.model.tables import rows_of
from megatron_monitor.model.topology import Topology


class Expected(NamedTuple):
    """One configuration. `billions` is the size as its authors named it."""

    gpu: str
    gpus: int
    tensor_parallel: int
    pipeline_parallel: int
    micro_batch: int
    global_batch: int
    sequence: int | None
    layers: int | None
    hidden: int | None
    billions: float | None
    seconds: float


@cache
def _rows() -> list[Expected]:
    return rows_of("megatron_monitor.model", "reference.csv", Expected)


_SAME_SIZE = 0.05  # of the authors' rounded sizes


def expected_seconds(top: Topology, batch_size: int | None, sequence_length: int | None) -> Expected | None:
    """The row of the run's own configuration; None where there is none, or where the log does not tell enough. A log
    that does not name its GPU is compared all the same: the row says on which one it was measured.
    """
    name, counts = top.gpu_name, parameters(top)
    if counts is None:
        return None
    layout = top.world_size, top.tensor_parallel_size, top.pipeline_parallel_size, top.micro_batch_size, batch_size
    for row in _rows():
        if (
            (name is None or row.gpu in name)
            and (row.gpus, row.tensor_parallel, row.pipeline_parallel, row.micro_batch, row.global_batch) == layout
            and row.sequence in (None, sequence_length)
            and row.layers in (None, top.layers)
            and row.hidden in (None, top.hidden_size)
            and (row.billions is None or _same_size(counts, row.billions))
        ):
            return row
    return None


def _same_size(counts: tuple[int, int], billions: float) -> bool:
    """With or without the embedding: authors count either way."""
    return any(abs(count / 1e9 / billions - 1) < _SAME_SIZE for count in counts)
