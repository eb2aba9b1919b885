"""Peaks and memory by the names that drivers give; what is open stays unknown."""

import csv
from pathlib import Path

import pytest

from megatron_monitor.model.gpus import GIB, memory_of_rank, peak_of_rank

with (Path(__file__).parent / "gpu-names.csv").open() as stream:
    NAMES = [
        (name, *(float(cell) if cell else None for cell in cells)) for name, *cells in list(csv.reader(stream))[1:]
    ]


@pytest.mark.parametrize(("name", "fp16", "bf16", "gigabytes"), NAMES)
def test_peak_and_memory_by_name(name: str, fp16: float | None, bf16: float | None, gigabytes: float | None) -> None:
    """Each driver's name gives its data sheet's figure for dense matrices in 16 bit: a V100's cores lack bf16.

    The memory is the size in the name, else the model's only one; never the processor's, which a GH200's name tells.
    """
    dies = 2 if "MI250" in name.upper() else 1  # ROCm shows the two dies as two devices
    assert [peak_of_rank(name, dtype) for dtype in (None, "fp16", "bf16")] == [
        peak and peak / dies for peak in (fp16, fp16, bf16)
    ]
    assert memory_of_rank(name) == (None if gigabytes is None else gigabytes * GIB // dies)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cpu",
        "NVIDIA GeForce RTX 4090",
        "NVIDIA H100",  # SXM, PCIe or NVL?
        "NVIDIA A100-SXM-64GB",  # a special build
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb",  # a part of one
        "AMD Instinct MI250X/MI250",
        "NVIDIA B2000",
        "XA100",
        "Tesla V100-DGXS-32GB",
    ],
)
def test_what_is_open_is_unknown(name: str) -> None:
    """A name that is not in the table, or could be several devices, has no peak and no memory."""
    assert (peak_of_rank(name, "bf16"), peak_of_rank(name, "fp16"), memory_of_rank(name)) == (None, None, None)


def test_other_precisions_are_unknown() -> None:
    """fp32 may or may not run on tensor cores and fp8 has its own peak: neither is the 16-bit figure."""
    assert [peak_of_rank("NVIDIA H100 80GB HBM3", dtype) for dtype in ("fp32", "fp8", "")] == [None] * 3
