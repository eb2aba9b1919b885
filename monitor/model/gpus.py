"""Peak rate and memory of GPUs, by the name in the log. Pure.

Input: a device name as the driver prints it. Output: TFLOP/s of dense 16-bit matrices (tensor or matrix cores, without
sparsity) and bytes, from the vendors' data sheets. An unlisted device and an ambiguous name give None. A fraction of a
device (MIG) and a special build with other clocks or cores are other devices.
"""

from functools import cache, lru_cache
from typing import NamedTuple

from megatron_monitor.parsers.patterns import lazy
from megatron_monitor.parsers.tables import rows_of

GIB = 2**30  # vendors' GB are GiB: an `80GB` A100 has 80 GiB, of which the driver reserves some


class Gpu(NamedTuple):
    """One line of gpus.csv: words of the name, peaks in TFLOP/s, the only size in GB, and words of other devices
    (Leonardo's A100-SXM-64GB has more cores, rocm-smi's `MI250X/MI250` may be either).

    NVIDIA states 125 for both sizes of the V100. BigScience's notes of 2021 compare the 16 GB nodes with 120.
    """

    terms: str
    fp16: float
    bf16: float | None
    memory: int | None
    without: str | None
    dies: int


@cache
def _table() -> list[Gpu]:
    """The first line with matching words is used, so that the more specific name is first."""
    return rows_of("megatron_monitor.model", "gpus.csv", Gpu)


_WORD = lazy(r"[A-Z0-9]{1,40}")
# `80GB` in `NVIDIA A100-SXM4-80GB`
_GIGABYTES = lazy(r"(\d{1,4})GB")
_OTHER_MEMORY = frozenset({"GH200", "GB200"})  # `NVIDIA GH200 480GB` has the processor's memory in its name


@lru_cache(64)
def _find(name: str) -> tuple[Gpu | None, frozenset[str]]:
    terms = frozenset(_WORD.findall(name.upper()))
    if "MIG" in terms:
        return None, terms
    fitting = (gpu for gpu in _table() if terms.issuperset(gpu.terms.split()) and gpu.without not in terms)
    return next(fitting, None), terms


def peak_of_rank(name: str | None, dtype: str | None = None) -> float | None:
    """Return the peak of one rank in `fp16` or `bf16` (None: either) in TFLOP/s. None: unknown, as bf16 for a V100.

    An MI250 or MI250X has two dies, which are two devices for ROCm, with one rank each.
    """
    gpu, _terms = _find(name or "")
    if gpu is None or dtype not in (None, "fp16", "bf16"):
        return None
    peak = gpu.bf16 if dtype == "bf16" else gpu.fp16
    return peak / gpu.dies if peak is not None else None


def memory_of_rank(name: str | None) -> int | None:
    """Return the memory of one rank in bytes, from `80GB` in the name or from the only size of the model. None:
    unknown.
    """
    gpu, terms = _find(name or "")
    if gpu is None or terms & _OTHER_MEMORY:
        return None
    printed = next((match for word in terms if (match := _GIGABYTES.fullmatch(word))), None)
    size = int(printed[1]) if printed else gpu.memory
    return size * GIB // gpu.dies if size else None
