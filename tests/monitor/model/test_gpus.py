"""Peaks and memory by the names that drivers give; what is open stays unknown."""

import pytest

from monitor.model.gpus import GIB, memory_bytes, peak_tflops, ranks_per_module


@pytest.mark.parametrize(
    ("name", "fp16", "bf16", "gigabytes"),
    [
        ("NVIDIA A100-SXM4-80GB", 312.0, 312.0, 80),
        ("A100-SXM4-40GB", 312.0, 312.0, 40),
        ("NVIDIA A100 80GB PCIe", 312.0, 312.0, 80),
        ("NVIDIA A800-SXM4-80GB", 312.0, 312.0, 80),
        ("NVIDIA H100 80GB HBM3", 989.4, 989.4, 80),
        ("NVIDIA H100-SXM5-80GB", 989.4, 989.4, 80),
        ("NVIDIA H100 PCIe", 756.0, 756.0, 80),
        ("NVIDIA H100 NVL", 835.5, 835.5, 94),
        ("NVIDIA H800", 989.4, 989.4, 80),
        ("NVIDIA H800 PCIe", 756.0, 756.0, 80),
        ("NVIDIA H200", 989.4, 989.4, 141),
        ("NVIDIA GH200 120GB", 989.4, 989.4, None),
        ("NVIDIA B200", 2250.0, 2250.0, None),
        ("NVIDIA GB200", 2500.0, 2500.0, None),
        ("NVIDIA L40S", 362.0, 362.0, 48),
        ("AMD Instinct MI300X", 1307.4, 1307.4, 192),
        ("AMD Instinct MI325X", 1307.4, 1307.4, 256),
        ("AMD Instinct MI250X", 383.0, 383.0, 128),
        ("AMD Instinct MI250", 362.1, 362.1, 128),
        ("amd instinct mi250x", 383.0, 383.0, 128),
        ("Tesla V100-SXM2-32GB", 125.0, None, 32),
        ("Tesla V100-SXM2-16GB", 120.0, None, 16),
        ("Tesla V100-PCIE-32GB", 112.0, None, 32),
        ("Tesla V100S-PCIE-32GB", 130.0, None, 32),
        ("NVIDIA A100-SXM4-40GB", 312.0, 312.0, 40),
        ("NVIDIA A100", 312.0, 312.0, None),
        ("NVIDIA GH200 480GB", 989.4, 989.4, None),
    ],
)
def test_peak_and_memory_by_name(name: str, fp16: float | None, bf16: float | None, gigabytes: int | None) -> None:
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
