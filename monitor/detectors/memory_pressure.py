"""The rule `memory_pressure`: the memory of a device or host is nearly full.

The size of a device is known from the report of its memory, from its name in the log or from an out-of-memory line.
"""

from collections.abc import Sequence
from typing import Any

from megatron_monitor.detectors.base import CLEAR, AttemptRule, Finding, RuleSettings
from megatron_monitor.model import gpus
from megatron_monitor.parsers.events import FailureSeen
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step

_GIB = 2**30
# Share of the device: runs at 31.5 of 32 GB and 76 of 80 GB were called too close, and the next runs ran out of memory.
_NEAR = 0.95
_HOST_NEAR = 0.95  # Share of the host: IDEFICS exited by itself at this share before the kernel killed it.


def device_bytes(state: RunState) -> int | None:
    """Return the memory of one GPU in bytes, as printed, by its name or by an out-of-memory line. None: unknown."""
    known = state.attempt.memory.device_bytes or gpus.memory_of_rank(state.attempt.topology.gpu_name)
    return MemoryPressure.of(state).device_bytes if known is None else known


class MemoryPressure(AttemptRule):
    """Whether memory was nearly full at the last step."""

    name = "memory_pressure"
    listens = (FailureSeen,)
    is_level = True

    device_bytes: int | None = None
    """From an out-of-memory line."""
    near: bool = False
    handed_on = ("device_bytes",)

    def on_event(self, _state: RunState, event: FailureSeen, _settings: RuleSettings) -> bool:
        """An out-of-memory line has the size of the device."""
        self.device_bytes = event.device_bytes or self.device_bytes
        return False

    def on_steps(self, state: RunState, _steps: Sequence[Step], _settings: RuleSettings) -> bool:
        """Return True if memory is nearly full since this step, or no longer."""
        before, self.near = self.near, bool(_near(state))
        return self.near != before

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fire near the limit."""
        near = _near(state) if state.attempt.iterations else {}
        if not near:
            return CLEAR
        evidence = {kind: detail for kind, (_, detail) in near.items()}
        summary = "; ".join(text for text, _ in near.values())
        return Finding("firing", "warning", summary, evidence, onset=state.attempt.latest.iteration)


def _near(state: RunState) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return what is nearly full -> (text, evidence). The state has the largest figures over the ranks."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    reported = state.attempt.memory
    used = reported.max_reserved or reported.reserved or max(reported.max_allocated or 0, reported.allocated or 0)
    size = device_bytes(state) if used else None
    if size and used and _NEAR * size <= used <= 1.1 * size:
        text = f"{used / _GIB:.1f} of {size / _GIB:.1f} GiB of the GPU's memory are used ({used / size:.0%})"
        found["device"] = text, {"used_bytes": used, "device_bytes": size}
    ratio = reported.host_used_ratio
    if ratio is not None and ratio >= _HOST_NEAR:
        found["host"] = f"{ratio:.0%} of the host's memory is used", {"host_used_ratio": ratio}
    return found
