"""Peak dense TFLOP/s of GPUs in 16 bit, from the vendors' data sheets, by the name that a log tells."""

from __future__ import annotations

# (part of the name, TFLOP/s); the more telling part first
_PEAKS: tuple[tuple[str, float], ...] = (
    ("B200", 2250.0),
    ("H200", 989.4),
    ("H100 PCIE", 756.0),
    ("H100-PCIE", 756.0),
    ("H100", 989.4),
    ("H800", 989.4),
    ("A100", 312.0),
    ("A800", 312.0),
    ("V100", 125.0),
    ("L40S", 362.0),
    ("MI325X", 1307.4),
    ("MI300X", 1307.4),
    ("MI250X", 383.0),
    ("MI250", 362.1),
)


def peak_tflops(name: str, dtype: str | None) -> float | None:
    """Peak of the GPU that `name` names; None if unknown, in fp32, or for bf16 on a V100, which has none."""
    if dtype == "fp32":
        return None
    upper = name.upper()
    for part, peak in _PEAKS:
        if part in upper:
            return None if part == "V100" and dtype == "bf16" else peak
    return None
