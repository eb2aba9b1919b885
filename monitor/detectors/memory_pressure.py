"""The rule `memory_pressure`: the memory of a device or host is nearly full, or fills up steadily.

The size of a device is known from its name in the log or from an out-of-memory line. A leak is a slope (Theil-Sen: the
median over pairs of points, which outliers do not move) over at least 200 reports that does not flatten. Memory that
grows during a warm-up and then stays level is not a leak. Time is training time, so that a pause does not dilute it.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import field

from megatron_monitor.detectors.base import (
    CLEAR,
    RANK,
    AttemptRule,
    Finding,
    RuleSettings,
    Severity,
    duration,
    stated,
)
from megatron_monitor.model import gpus
from megatron_monitor.parsers.events import FailureSeen, MemoryReported
from megatron_monitor.run.state import Attempt, RunState
from megatron_monitor.run.steps.step import Step
from megatron_monitor.statistics.series import Series

_GIB = 2**30
_MIN_GAIN_SPREADS = 5.0  # times the spread of the reports around the line that must have been gained
_REMAINING_DIVISOR = 4.0  # a leak must last for this fraction of the remaining time, so that a warm-up can end


# Share of the device: runs at 31.5 of 32 GB and 76 of 80 GB were called too close, and the next runs ran out of memory.
_NEAR = 0.95
_HOST_NEAR = 0.95  # Share of the host: IDEFICS exited by itself at this share before the kernel killed it.
_POINTS = 200  # Reports before a slope is used.
_WARNING_SECONDS = 24 * 3600.0  # Seconds until the memory is full: a working day's notice is a warning,
_CRITICAL_SECONDS = 2 * 3600.0  # and a time in which a person must react is critical.
# Training time that a leak without urgency must last: fragmentation and caches end within hours.
_SUSTAINED = 3 * 3600.0
_FLATTENING = 0.75  # Slope of the last third over the slope of the first third. Below it the growth is flattening.
_GROWTH = 0.002  # Share of the device that must have been gained: 0.16 GB of 80 is more than reports vary.
# Share of the host that must have been gained: DeepSpeed prints tenths of a percent, and other programs use the host
# too.
_HOST_GROWTH = 0.01


def device_bytes(state: RunState) -> int | None:
    """Return the memory of one GPU in bytes, by its name or by an out-of-memory line. None: unknown."""
    return MemoryPressure.of(state).size(state)


def _peak(state: RunState) -> int | None:
    reported = state.attempt.memory
    return max((value for value in (reported.max_allocated, reported.allocated) if value), default=None)


def _leak(kind: str, series: Series, least: float, room: float | None) -> Iterator[dict[str, Any]]:
    """Return the slope per second of a steadily growing series, and the seconds until full if the capacity is known."""
    if series.count < _POINTS:
        return
    slope, watched = series.slope(), series.times[-1] - series.times[0]
    if slope <= 0 or slope * watched < max(least, _MIN_GAIN_SPREADS * series.spread()):
        return
    third = len(series.times) // 3
    if series.slope(-third) < _FLATTENING * max(series.slope(0, third), slope):
        return
    full_in = room / slope if room is not None else None
    if watched >= min(_SUSTAINED, math.inf if full_in is None else full_in / _REMAINING_DIVISOR):
        yield {"kind": kind, "slope": slope, "full_in": full_in, "reports": series.count}


class MemoryPressure(AttemptRule):
    """Reports over training time."""

    name = "memory_pressure"
    listens = (MemoryReported, FailureSeen)
    is_level = True

    sequence_length: int | None = None
    seconds: float = 0.0
    device: Series = field(default_factory=Series)
    host: Series = field(default_factory=Series)
    fresh: bool = False
    """True if a report came since the last counted step."""
    used: int | None = None
    """Used bytes of the device in the last report."""
    peak: int | None = None
    """Maximum of used bytes."""
    device_bytes: int | None = None
    """From an out-of-memory line."""
    near: bool = False
    leaks: list[dict[str, Any]] = field(default_factory=list)
    handed_on = ("device_bytes", "near")
    """The size of a device, and which limits are already reported."""

    def on_event(self, state: RunState, event: MemoryReported | FailureSeen, _settings: RuleSettings) -> bool:
        """A report came. The state has its figures, the largest over the ranks."""
        if isinstance(event, FailureSeen):
            self.device_bytes = event.device_bytes or self.device_bytes
            return False
        reported = state.attempt.memory
        self.used = reported.allocated or reported.reserved or reported.max_allocated or reported.max_reserved
        self.peak, self.fresh = _peak(state), True
        return False

    def on_steps(self, state: RunState, steps: Sequence[Step], _settings: RuleSettings) -> bool:
        """Use the last report once its step has ended."""
        changed, looked = False, False
        for step in steps:
            if step.memory_bytes is not None:
                self.used, self.peak = step.memory_bytes, step.memory_peak_bytes
            if step.counted:
                if self.sequence_length != step.sequence_length:
                    self.sequence_length = step.sequence_length
                    self.device, self.host, self.leaks, self.seconds = Series(), Series(), [], 0.0
                self.seconds += (step.printed_seconds or 0.0) * step.interval
                if self.fresh:
                    self.fresh, looked = False, True
                    changed |= self._take(state)
            if step.memory_bytes is not None:
                self.fresh = True
        if looked:
            near = bool(self._near(state))
            changed, self.near = changed or near != self.near, near
        return changed

    def _take(self, state: RunState) -> bool:
        """Add a report. Return True if the detected leaks have changed."""
        due, ratio = False, state.attempt.memory.host_used_ratio
        if self.used:
            due = self.device.add(self.seconds, float(self.used))
        if ratio is not None:
            due = self.host.add(self.seconds, ratio) or due
        if not due:
            return False
        found = self._leaks(state)
        changed, self.leaks = found != self.leaks, found
        return changed

    def size(self, state: RunState) -> int | None:
        """Return the memory of one GPU in bytes, by its name or by an out-of-memory line. None: unknown."""
        name = state.attempt.topology.gpu_name
        whole = gpus.memory_bytes(name) if name else None
        if name and whole is not None:
            return whole // gpus.ranks_per_module(name)
        return self.device_bytes

    def _near(self, state: RunState) -> list[tuple[str, str, dict[str, Any]]]:
        """Return (kind, text, evidence) of what is nearly full."""
        found: list[tuple[str, str, dict[str, Any]]] = []
        reported, size = state.attempt.memory, self.size(state)
        used = reported.max_reserved or reported.reserved or _peak(state)
        if size and used and _NEAR * size <= used <= 1.1 * size:
            text = f"{used / _GIB:.1f} of {size / _GIB:.1f} GiB of the GPU's memory are used ({used / size:.0%})"
            found.append(("device", text, {"used_bytes": used, "device_bytes": size}))
        ratio = reported.host_used_ratio
        if ratio is not None and ratio >= _HOST_NEAR:
            found.append(("host", f"{ratio:.0%} of the host's memory is used", {"host_used_ratio": ratio}))
        return found

    def _leaks(self, state: RunState) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        size, peak, host = self.size(state), self.peak or self.device.last, self.host.last
        if peak is not None:
            room = max(0.0, size - peak) if size is not None else None
            found += _leak("device", self.device, _GROWTH * (size or peak), room)
        if host is not None:
            found += _leak("host", self.host, _HOST_GROWTH, max(0.0, 1.0 - host))
        return found

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fire near the limit, and while a leak is detected, with a severity by the remaining time."""
        if state.attempt.phase == "finished":
            return CLEAR
        near = self._near(state) if state.attempt.iterations else []
        severities: list[Severity] = ["warning"] * len(near)
        texts = [text for _, text, _ in near]
        evidence: dict[str, Any] = {kind: detail for kind, _, detail in near}
        for leak in self.leaks:
            severity = _urgency(state.attempt, leak["full_in"])
            severities.append(severity)
            texts.append(_leak_text(leak))
            rate = leak["slope"] * 86400.0
            name = "bytes_per_day" if leak["kind"] == "device" else "ratio_per_day"
            full_in = None if leak["full_in"] is None else round(leak["full_in"])
            shown = {name: round(rate, 4), "reports": leak["reports"], "full_in_seconds": full_in}
            evidence[f"{leak['kind']}_leak"] = stated(shown)
        if not texts:
            return CLEAR
        worst = max(severities, key=lambda name: RANK[name])
        onset, display_only = state.attempt.latest.iteration, worst == "info"
        return Finding("firing", worst, "; ".join(texts), evidence, onset=onset, display_only=display_only)


def _urgency(attempt: Attempt, full_in: float | None) -> Severity:
    """Return warning if the memory is full before the run ends or its end is unknown, otherwise info."""
    if full_in is None:
        return "info"
    if full_in <= _CRITICAL_SECONDS:
        return "critical"
    last, total, pace = attempt.latest.iteration, attempt.train_iterations, attempt.pace.baseline
    left = (total - last) * pace if total is not None and last is not None and pace is not None else None
    return "info" if full_in > _WARNING_SECONDS and left is not None and full_in > left else "warning"


def _leak_text(leak: dict[str, Any]) -> str:
    per_day = leak["slope"] * 86400.0
    when = "" if leak["full_in"] is None else f": full in {duration(leak['full_in'])} of training"
    if leak["kind"] == "host":
        return f"the host's memory grows by {per_day:.1%} a day{when}"
    return f"GPU memory grows by {per_day / _GIB:.2f} GiB a day{when}"
