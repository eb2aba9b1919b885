"""The GPUs' clock, where a job locks it. Their name is data (gpu.yaml)."""

from collections.abc import Iterator

from parsers.engine.scan import Line, Rule
from parsers.events import EnvironmentVariableSeen, Event
from parsers.patterns import lazy

# `GPU 0 locked to 967 MHz`, `GPU 3 reset to default clocks` of scripts around pynvml's nvmlDeviceSetGpuLockedClocks
_LOCKED = lazy(r"^\s{0,8}GPU \d{1,3} (?:locked to (\d{2,5}) ?MHz|reset to default clocks)\b")
# `GPU clocks set to "(gpuClkMin 1305, gpuClkMax 1305)" for GPU 00000000:17:00.0` of nvidia-smi -lgc
_SET = lazy(r"GPU clocks set to \"\(gpuClkMin \d{2,5}, gpuClkMax (\d{2,5})\)\" for GPU ")
CLOCK = "GPU_CLOCK_MHZ"
"""Not a variable of the system: shown among them, as it is none of the training's own settings either."""


def read_clock(line: Line) -> Iterator[Event]:
    """The clock that the job locks its GPUs to, the highest where a range is set; `default` once that is undone."""
    match = _LOCKED.match(line.text) or _SET.search(line.text[:2000])
    if match:
        yield EnvironmentVariableSeen(name=CLOCK, value=match[1] or "default", **line.origin)


RULES: tuple[Rule, ...] = (
    Rule("gpu.clock", (b" locked to 0", b"gpuClkMax 0", b" reset to default clocks"), read_clock),
)
