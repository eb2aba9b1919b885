"""Peak and memory of GPUs, by the name that a log tells. Pure.

In: a device name as the driver gives it. Out: TFLOP/s of dense matrices in 16 bit (tensor or matrix cores, no sparsity)
and bytes, from the vendors' data sheets. Law: a device that is not here, or a name that leaves open which one it is,
is None. A fraction of a device (MIG) and a special build with other clocks or cores is not that device.
"""

from functools import cache, lru_cache
from typing import NamedTuple

from megatron_monitor.model.tables import rows_of
from megatron_monitor.parsers.patterns import lazy

GIB = 2**30  # memory named in GB is counted in GiB by all vendors: an `80GB` A100 has 80 GiB, the driver keeps some


class Gpu(NamedTuple):
    """One line of gpus.csv: the words its name must have, peaks in TFLOP/s, the only size in GB, the words that make it
    another device (Leonardo's A100-SXM-64GB has more cores, rocm-smi's `MI250X/MI250` is either).

    NVIDIA gives 125 for both sizes of the V100; BigScience's notes of 2021 measure the 16 GB nodes against 120.
    """

    terms: str
    fp16: float
    bf16: float | None
    memory: int | None
    without: str | None
    dies: int


@cache
def _table() -> list[Gpu]:
    """The first line whose words fit wins, so the more telling name stands first."""
    return rows_of("megatron_monitor.model", "gpus.csv", Gpu)


_WORD = lazy(r"[A-Z0-9]{1,40}")
# `80GB` in `NVIDIA A100-SXM4-80GB`
_GIGABYTES = lazy(r"(\d{1,4})GB")
_OTHER_MEMORY = frozenset({"GH200", "GB200"})  # `NVIDIA GH200 480GB` names the processor's memory


@lru_cache(64)
def _find(name: str) -> tuple[Gpu | None, frozenset[str]]:
    terms = frozenset(_WORD.findall(name.upper()))
    if "MIG" in terms:
        return None, terms
    fitting = (gpu for gpu in _table() if terms.issuperset(gpu.terms.split()) and gpu.without not in terms)
    return next(fitting, None), terms


def peak_tflops(name: str, dtype: str | None = None) -> float | None:
    """Peak of the module in `fp16` or `bf16` (None: either), TFLOP/s; None where unknown, as bf16 is for a V100.

    An MI250 or MI250X is two devices to ROCm, each with a rank of its own: divide by `ranks_per_module`.
    """
    gpu, _terms = _find(name)
    if gpu is None or dtype not in (None, "fp16", "bf16"):
        return None
    return gpu.bf16 if dtype == "bf16" else gpu.fp16


def ranks_per_module(name: str) -> int:
    """Devices that one such module shows itself as: 2 for the two dies of an MI250 or MI250X, else 1."""
    gpu, _terms = _find(name)
    return gpu.dies if gpu is not None else 1


def peak_of_rank(name: str | None, dtype: str | None) -> float | None:
    """Peak of what one rank has: a module of two dies (MI250X) is two ranks; None where unknown."""
    peak = peak_tflops(name, dtype) if name else None
    return peak / ranks_per_module(name) if name and peak is not None else None


def memory_bytes(name: str) -> int | None:
    """Memory of the module, from `80GB` in the name or from the only size that the model is sold with; None if open."""
    gpu, terms = _find(name)
    if gpu is None or terms & _OTHER_MEMORY:
        return None
    printed = next((match for word in terms if (match := _GIGABYTES.fullmatch(word))), None)
    size = int(printed[1]) if printed else gpu.memory
    return size * GIB if size else None
