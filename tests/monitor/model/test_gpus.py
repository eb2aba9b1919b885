"""Peaks and memory by the names that drivers give; what is open stays unknown."""

import csv
from pathlib import Path

import pytest

from megatron_monitor.model.gpus import GIB, memory_bytes, peak_tflops, ranks_per_module

with (Path(__file__).parent / "gpu-names.csv").open() as stream:
    NAMES = [
        (name, *(float(cell) if cell else None for cell in cells)) for name, *cells in list(csv.reader(stream))[1:]
    ]


@pytest.mark.parametrize(("name", "fp16", "bf16", "gigabytes"), NAMES)
def test_peak_and_memory_by_name(name: str, fp16: float | None, bf16: float | None, gigabytes: float | None) -> None:
    """Each driver's name gives its data sheet's figure for dense matrices in 16 bit: a V100's cores lack bf16.

    The memory is the size in the name, else the model's only one; never the processor's, which a GH200's name tells.
    """
    assert [peak_tflops(name, dtype) for dtype in (None, "fp16", "bf16")] == [fp16, fp16, bf16]
    assert memory_bytes(name) == (None if gigabytes is None else gigabytes * GIB)


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
    assert (peak_tflops(name, "bf16"), peak_tflops(name, "fp16"), memory_bytes(name)) == (None, None, None)


def test_other_precisions_are_unknown() -> None:
    """fp32 may or may not run on tensor cores and fp8 has its own peak: neither is the 16-bit figure."""
    assert [peak_tflops("NVIDIA H100 80GB HBM3", dtype) for dtype in ("fp32", "fp8", "")] == [None] * 3


def test_ranks_per_module() -> None:
    """ROCm shows the two dies of an MI250X as two devices; every other module is one."""
    assert [ranks_per_module(name) for name in ("AMD Instinct MI250X", "AMD Instinct MI300X", "cpu")] == [2, 1, 1]
