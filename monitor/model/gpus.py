"""Peak and memory of GPUs, by the name that a log tells. Pure.

In: a device name as the driver gives it. Out: TFLOP/s of dense matrices in 16 bit (tensor or matrix cores, no sparsity)
and bytes, from the vendors' data sheets. Law: a device that is not here, or a name that leaves open which one it is,
is None. A fraction of a device (MIG) and a special build with other clocks or cores is not that device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

GIB = 2**30  # memory named in GB is counted in GiB by all vendors: an `80GB` A100 has 80 GiB, the driver keeps some


@dataclass(frozen=True, slots=True)
class Gpu:
    """One line of the table: the words its name must have and must not have, peaks in TFLOP/s, the only size in GB."""

    words: frozenset[str]
    fp16: float
    bf16: float | None
    memory: int | None = None
    without: frozenset[str] = frozenset()
    dies: int = 1


def _gpu(
    words: str, peak: float, memory: int | None = None, *, without: str = "", bf16: bool = True, dies: int = 1
) -> Gpu:
    return Gpu(frozenset(words.split()), peak, peak if bf16 else None, memory, frozenset(without.split()), dies)


# The first line whose words fit wins, so the more telling name stands first.
_TABLE: tuple[Gpu, ...] = (
    _gpu("GB200", 2500.0),
    _gpu("B200", 2250.0),
    _gpu("GH200", 989.4),
    _gpu("H200 NVL", 835.5, 141),
    _gpu("H200", 989.4, 141),
    _gpu("H100 PCIE", 756.0, 80),
    _gpu("H100 NVL", 835.5, 94),
    _gpu("H100 HBM3", 989.4),
    _gpu("H100 SXM", 989.4),
    _gpu("H100 SXM5", 989.4),
    _gpu("H800 PCIE", 756.0, 80),
    _gpu("H800", 989.4, 80),
    _gpu("H20", 148.0),
    _gpu("A100", 312.0, without="64GB"),  # Leonardo's A100-SXM-64GB has more cores
    _gpu("A800", 312.0, without="ACTIVE"),
    _gpu("A30", 165.0, 24),
    _gpu("A40", 149.7, 48),
    _gpu("L40S", 362.0, 48),
    # NVIDIA gives 125 for both sizes; BigScience's notes of 2021 measure the 16 GB nodes against 120
    _gpu("V100 SXM2 16GB", 120.0, bf16=False),
    _gpu("V100 SXM2", 125.0, bf16=False),
    _gpu("V100 SXM3", 125.0, bf16=False),
    _gpu("V100 PCIE", 112.0, bf16=False),
    _gpu("V100S PCIE", 130.0, 32, bf16=False),
    _gpu("MI355X", 2516.6, 288),
    _gpu("MI325X", 1307.4, 256),
    _gpu("MI300X", 1307.4, 192),
    _gpu("MI300A", 980.6, 128),
    _gpu("MI250X", 383.0, 128, without="MI250", dies=2),  # rocm-smi's `MI250X/MI250` is either
    _gpu("MI250", 362.1, 128, without="MI250X", dies=2),
)
_WORD = re.compile(r"[A-Z0-9]{1,40}")
# `80GB` in `NVIDIA A100-SXM4-80GB`
_GIGABYTES = re.compile(r"(\d{1,4})GB")
_OTHER_MEMORY = frozenset({"GH200", "GB200"})  # `NVIDIA GH200 480GB` names the processor's memory


def _find(name: str) -> tuple[Gpu | None, frozenset[str]]:
    words = frozenset(_WORD.findall(name.upper()))
    if "MIG" in words:
        return None, words
    return next((gpu for gpu in _TABLE if gpu.words <= words and not gpu.without & words), None), words


def peak_tflops(name: str, dtype: str | None = None) -> float | None:
    """Peak of the module in `fp16` or `bf16` (None: either), TFLOP/s; None where unknown, as bf16 is for a V100.

    An MI250 or MI250X is two devices to ROCm, each with a rank of its own: divide by `ranks_per_module`.
    """
    gpu, _words = _find(name)
    if gpu is None or dtype not in (None, "fp16", "bf16"):
        return None
    return gpu.bf16 if dtype == "bf16" else gpu.fp16


def ranks_per_module(name: str) -> int:
    """Devices that one such module shows itself as: 2 for the two dies of an MI250 or MI250X, else 1."""
    gpu, _words = _find(name)
    return gpu.dies if gpu is not None else 1


def memory_bytes(name: str) -> int | None:
    """Memory of the module, from `80GB` in the name or from the only size that the model is sold with; None if open."""
    gpu, words = _find(name)
    if gpu is None or words & _OTHER_MEMORY:
        return None
    told = next((match for word in words if (match := _GIGABYTES.fullmatch(word))), None)
    size = int(told[1]) if told else gpu.memory
    return size * GIB if size else None
