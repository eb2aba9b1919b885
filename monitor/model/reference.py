"""What known machines took: seconds per iteration of measured runs, for a run that has no past of its own.

Rows of the BigScience experiments of 2021 and 2022 (V100 and A100, one figure a configuration, medians of repeats).
Those that do not reproduce, or whose layout does not fit their GPUs, are left out.
"""

from __future__ import annotations

from typing import NamedTuple

from monitor.model.flops import parameters
from monitor.model.topology import Topology


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


_ROWS: tuple[tuple[str, int, int, int, int, int, int | None, int | None, int | None, float | None, float], ...] = (
    ("A100", 320, 8, 10, 1, 2048, 2048, None, 13824, 187.0, 160.29),
    ("A100", 320, 8, 10, 1, 2048, 2048, None, 14400, 200.0, 221.21),
    ("A100", 320, 8, 10, 2, 2048, 2048, None, 13824, 187.0, 151.07),
    ("A100", 320, 8, 10, 2, 2048, 2048, None, 14400, 200.0, 207.92),
    ("A100", 320, 8, 10, 4, 2048, 2048, None, 13824, 187.0, 147.43),
    ("A100", 320, 8, 10, 4, 2048, 2048, None, 14400, 200.0, 208.18),
    ("A100", 320, 8, 10, 8, 2048, 2048, None, 13824, 187.0, 152.51),
    ("A100", 320, 8, 10, 8, 2048, 2048, None, 14400, 200.0, 229.69),
    ("A100", 336, 8, 7, 1, 2046, 2048, None, 14400, 191.0, 202.99),
    ("A100", 352, 8, 11, 1, 2048, 2048, None, 14400, 195.0, 197.15),
    ("A100", 352, 8, 11, 2, 2048, 2048, None, 14400, 195.0, 186.65),
    ("A100", 352, 8, 11, 4, 2048, 2048, None, 14400, 195.0, 185.79),
    ("A100", 352, 8, 11, 8, 2048, 2048, None, 14400, 195.0, 206.62),
    ("A100", 360, 8, 5, 1, 2043, 2048, None, 14400, 200.0, 208.4),
    ("A100", 360, 8, 9, 1, 2045, 2048, None, 14400, 205.0, 199.14),
    ("A100", 384, 2, 12, 2, 2048, 2048, 72, 14336, 181.0, 112.5),
    ("A100", 384, 2, 24, 1, 2048, 2048, 72, 14336, 181.0, 119.53),
    ("A100", 384, 2, 24, 2, 2048, 2048, 72, 14336, 181.0, 122.75),
    ("A100", 384, 4, 12, 2, 2048, 2048, 72, 14336, 181.0, 112.01),
    ("A100", 384, 4, 12, 4, 2048, 2048, 72, 14336, 181.0, 111.89),
    ("A100", 384, 4, 6, 2, 2048, 2048, 72, 14336, 181.0, 111.71),
    ("A100", 384, 4, 6, 4, 2048, 2048, 72, 14336, 181.0, 117.11),
    ("A100", 384, 8, 12, 1, 2048, 2048, 72, 14336, 181.0, 143.31),
    ("A100", 384, 8, 12, 1, 2048, 2048, None, 14400, 183.0, 172.4),
    ("A100", 384, 8, 12, 2, 1568, 2048, 72, 14336, 181.0, 99.93),
    ("A100", 384, 8, 12, 2, 2048, 2048, 72, 14336, 181.0, 134.02),
    ("A100", 384, 8, 12, 2, 2048, 2048, 84, 13824, 196.0, 143.89),
    ("A100", 384, 8, 12, 2, 2048, 2048, None, 14400, 183.0, 161.96),
    ("A100", 384, 8, 12, 4, 1568, 2048, 72, 14336, 181.0, 92.75),
    ("A100", 384, 8, 12, 4, 2048, 2048, 72, 14336, 181.0, 123.69),
    ("A100", 384, 8, 12, 4, 2048, 2048, 84, 13312, 182.0, 125.52),
    ("A100", 384, 8, 12, 4, 2048, 2048, 84, 13824, 196.0, 133.12),
    ("A100", 384, 8, 12, 4, 2048, 2048, None, 14400, 183.0, 163.32),
    ("A100", 384, 8, 12, 8, 2048, 2048, 72, 14336, 181.0, 129.26),
    ("A100", 384, 8, 2, 1, 2016, 2048, 72, 14336, 181.0, 145.45),
    ("A100", 384, 8, 2, 2, 2016, 2048, 72, 14336, 181.0, 136.13),
    ("A100", 384, 8, 4, 1, 2040, 2048, None, 14400, 200.0, 189.06),
    ("A100", 384, 8, 4, 2, 2016, 2048, 72, 14336, 181.0, 125.52),
    ("A100", 384, 8, 4, 4, 2016, 2048, 72, 14336, 181.0, 114.81),
    ("A100", 384, 8, 6, 1, 2048, 2048, 72, 14336, 181.0, 139.82),
    ("A100", 384, 8, 6, 1, 2048, 2048, None, 14400, 194.0, 183.64),
    ("A100", 384, 8, 6, 2, 2048, 2048, 72, 14336, 181.0, 131.02),
    ("A100", 384, 8, 6, 2, 2048, 2048, 84, 13312, 182.0, 135.55),
    ("A100", 384, 8, 6, 2, 2048, 2048, 84, 13824, 196.0, 141.41),
    ("A100", 384, 8, 6, 2, 2048, 2048, 96, 12288, 177.0, 136.73),
    ("A100", 384, 8, 6, 2, 2048, 2048, None, 14400, 194.0, 172.36),
    ("A100", 384, 8, 6, 4, 2048, 2048, 72, 14336, 181.0, 121.48),
    ("A100", 384, 8, 6, 4, 2048, 2048, 78, 13824, 182.0, 123.015),
    ("A100", 384, 8, 6, 4, 2048, 2048, 84, 13312, 182.0, 122.93),
    ("A100", 384, 8, 6, 4, 2048, 2048, 84, 13824, 196.0, 130.31),
    ("A100", 384, 8, 6, 4, 2048, 2048, 96, 12288, 177.0, 126.19),
    ("A100", 384, 8, 6, 4, 2048, 2048, None, 14400, 194.0, 173.92),
    ("A100", 384, 8, 6, 6, 2016, 2048, 72, 14336, 181.0, 123.57),
    ("A100", 384, 8, 6, 8, 2048, 2048, None, 14400, 194.0, 192.42),
    ("A100", 384, 8, 8, 1, 2046, 2048, None, 14400, 200.0, 185.75),
    ("A100", 384, 8, 8, 4, 2016, 2048, 72, 14336, 181.0, 113.16),
    ("V100", 128, 2, 32, 1, 2048, 2048, 32, 16384, 104, 633),
    ("V100", 128, 4, 16, 1, 2048, 2048, 32, 16384, 104, 681),
    ("V100", 128, 4, 32, 1, 2048, 2048, 32, 16384, 104, 696),
    ("V100", 128, 4, 32, 1, 4, 1024, None, None, 109.0, 4.234),
    ("V100", 128, 4, 32, 1, 4, 1024, None, None, 50.0, 2.124),
    ("V100", 16, 4, 4, 1, 4, 1024, None, None, 18.0, 1.381),
    ("V100", 16, 4, 4, 1, 4, 1024, None, None, 7.5, 0.661),
    ("V100", 16, 4, 4, 4, 512, 1024, None, None, 18.0, 179),
    ("V100", 16, 4, 4, 6, 768, 1024, None, None, 18.0, 262),
    ("V100", 256, 4, 64, 1, 4, 1024, None, None, 193.0, 6.736),
    ("V100", 256, 4, 64, 1, 4, 1024, None, None, 78.0, 2.953),
    ("V100", 32, 1, 1, 4, 128, 1024, None, None, 48.0, 114.56),
    ("V100", 32, 4, 8, 1, 4, 1024, None, None, 28.0, 1.618),
    ("V100", 32, 4, 8, 4, 512, 1024, None, None, 36.0, 82),
    ("V100", 32, 4, 8, 6, 1536, 1024, None, None, 36.0, 241),
    ("V100", 32, 4, 8, 6, 3072, 1024, None, None, 36.0, 478),
    ("V100", 32, 4, 8, 6, 768, 1024, None, None, 36.0, 123),
    ("V100", 64, 1, 1, 16, 1024, 1024, None, None, 24.0, 89),
    ("V100", 64, 1, 1, 4, 256, 1024, None, None, 48.0, 185),
    ("V100", 64, 1, 1, 4, 256, 1024, None, None, 91.0, 222.72),
    ("V100", 64, 1, 1, 8, 512, 1024, None, None, 48.0, 128.95),
    ("V100", 64, 2, 1, 32, 1024, 1024, None, None, 24.0, 85.7),
    ("V100", 64, 2, 1, 32, 1024, 1024, None, None, 48.0, 167),
    ("V100", 64, 4, 1, 48, 768, 1024, None, None, 48.0, 127),
    ("V100", 64, 4, 16, 1, 4, 1024, None, None, 30.0, 1.439),
    ("V100", 64, 4, 16, 1, 4, 1024, None, None, 61.0, 2.738),
    ("V100", 64, 4, 16, 4, 1024, 1024, None, None, 48.0, 137.5),
    ("V100", 64, 4, 16, 6, 1536, 1024, None, None, 48.0, 328),
    ("V100", 64, 4, 16, 6, 3072, 1024, None, None, 48.0, 650),
    ("V100", 64, 4, 16, 8, 2048, 1024, None, None, 48.0, 435),
    ("V100", 64, 4, 16, 8, 4096, 1024, None, None, 48.0, 870),
    ("V100", 8, 1, 1, 1, 512, 2048, None, None, 1.3, 29),
    ("V100", 8, 1, 1, 2, 512, 2048, None, None, 1.3, 29),
    ("V100", 8, 1, 1, 4, 512, 2048, None, None, 1.3, 28),
    ("V100", 8, 1, 1, 8, 512, 2048, None, None, 1.3, 28),
    ("V100", 8, 1, 2, 1, 512, 2048, None, None, 1.3, 30),
    ("V100", 8, 1, 2, 2, 512, 2048, None, None, 1.3, 29),
    ("V100", 8, 1, 2, 4, 512, 2048, None, None, 1.3, 28),
    ("V100", 8, 1, 2, 8, 512, 2048, None, None, 1.3, 29),
    ("V100", 8, 1, 4, 1, 512, 2048, None, None, 1.3, 32),
    ("V100", 8, 1, 4, 2, 512, 2048, None, None, 1.3, 24),
    ("V100", 8, 1, 4, 4, 512, 2048, None, None, 1.3, 30),
    ("V100", 8, 1, 4, 8, 512, 2048, None, None, 1.3, 32),
    ("V100", 8, 1, 8, 1, 512, 2048, None, None, 1.3, 37),
    ("V100", 8, 1, 8, 4, 512, 2048, None, None, 1.3, 35),
    ("V100", 8, 2, 1, 1, 512, 2048, None, None, 1.3, 46),
)  # fmt: skip
_SAME_SIZE = 0.05  # of the authors' rounded sizes


def expected_seconds(top: Topology, batch_size: int | None, sequence_length: int | None) -> Expected | None:
    """The row of the run's own configuration; None where there is none, or where the log does not tell enough. A log
    that does not name its GPU is compared all the same: the row says on which one it was measured.
    """
    name, counts = top.gpu_name, parameters(top)
    if counts is None:
        return None
    for row in map(Expected._make, _ROWS):
        if (
            (name is None or row.gpu in name)
            and row.gpus == top.world_size
            and row.tensor_parallel == top.tensor_parallel_size
            and row.pipeline_parallel == top.pipeline_parallel_size
            and row.micro_batch == top.micro_batch_size
            and row.global_batch == batch_size
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
