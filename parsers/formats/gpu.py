"""The GPU's name, where a job prints it: nvidia-smi, nvidia-smi -L, torch's device properties, rocm-smi; its clock,
where a job locks it.

Megatron itself never tells it; without it (or `gpu_peak_tflops` in the configuration) there is no MFU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from parsers.engine.scan import Line, Rule
from parsers.events import EnvironmentVariableSeen, Event, ModelSettingLogged

_FORMS = (
    # `GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5c1e...)` of nvidia-smi -L
    re.compile(r"GPU \d{1,3}: ([A-Z][\w ./-]{3,60}?) \(UUID: GPU-"),
    # `|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |                    0 |` of nvidia-smi
    re.compile(
        r"^\|[ ]{1,4}\d{1,3}[ ]{1,3}((?:NVIDIA|Tesla|GRID) [\w ./-]{2,60}?)[ ]{1,40}"
        r"(?:On|Off|N/A)[ ]{1,10}\| [0-9A-F]{8}:"
    ),
    # `_CudaDeviceProperties(name='NVIDIA H100 80GB HBM3', major=9, minor=0, ...)` of torch
    re.compile(r"DeviceProperties\(name='([^']{3,60})'"),
    # `GPU[0]\t\t: Card Series: \t\tAMD Instinct MI300X` of rocm-smi
    re.compile(r"GPU\[\d{1,3}\]\s{1,8}: Card [Ss]eries:\s{1,8}(\w[\w ./-]{3,60})"),
)
# `GPU 0 locked to 967 MHz`, `GPU 3 reset to default clocks` of scripts around pynvml's nvmlDeviceSetGpuLockedClocks
_LOCKED = re.compile(r"^\s{0,8}GPU \d{1,3} (?:locked to (\d{2,5}) ?MHz|reset to default clocks)\b")
# `GPU clocks set to "(gpuClkMin 1305, gpuClkMax 1305)" for GPU 00000000:17:00.0` of nvidia-smi -lgc
_SET = re.compile(r"GPU clocks set to \"\(gpuClkMin \d{2,5}, gpuClkMax (\d{2,5})\)\" for GPU ")
CLOCK = "GPU_CLOCK_MHZ"
"""Not a variable of the system: shown among them, as it is none of the training's own settings either."""


def read_name(line: Line) -> Iterator[Event]:
    """The name that one of the forms tells."""
    for form in _FORMS:
        match = form.search(line.text[:2000])
        if match:
            yield ModelSettingLogged(name="gpu_name", value=match[1].strip(), **line.origin)
            return


def read_clock(line: Line) -> Iterator[Event]:
    """The clock that the job locks its GPUs to, the highest where a range is set; `default` once that is undone."""
    match = _LOCKED.match(line.text) or _SET.search(line.text[:2000])
    if match:
        yield EnvironmentVariableSeen(name=CLOCK, value=match[1] or "default", **line.origin)


RULES: tuple[Rule, ...] = (
    Rule("gpu.clock", (b" locked to 0", b"gpuClkMax 0", b" reset to default clocks"), read_clock),
    Rule("gpu.name", (b"(UUID: GPU-", b"| 0000", b"DeviceProperties(name=", b": Card "), read_name),
)
