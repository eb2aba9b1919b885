"""Memory pressure: a device or a host is nearly full, or fills up steadily.

Near the limit needs the device's size: from its name in the log, or from an out-of-memory line. A leak is a slope
(Theil and Sen: the median over pairs of points, not moved by outliers) over at least 200 reports that does not flatten:
what warms up and then stays level is no leak. Time is training time, so that a pause does not dilute it.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, field

from megatron_monitor.detectors.base import CLEAR, RANK, Detector, OfLaunch, Severity, Verdict, duration, stated
from megatron_monitor.model import gpus
from megatron_monitor.parsers.events import FailureSeen, MemoryReported
from megatron_monitor.run.state import Launch, RunState
from megatron_monitor.run.steps.step import Step
from megatron_monitor.statistics.series import Series
from megatron_monitor.units import Ratio, Seconds

_GIB = 2**30
_CLEAR = 5.0  # of the reports' spread around the line that must have been gained
_SHARE = 4.0  # a leak is watched for a quarter of the time that it leaves, so that a warm-up has time to end


class MemoryPressureSettings(Struct, frozen=True):
    """Thresholds, each with its reason."""

    near: Ratio = 0.95
    """Of the device: 31.5 of 32 GB and 76 of 80 GB were called too close, and the next runs ended out of memory."""
    host_near: Ratio = 0.95
    """Of the host: IDEFICS left by itself here before the kernel killed it."""
    points: int = 200
    """Reports before a slope is believed."""
    soon: Seconds = 24 * 3600.0
    """Until the memory is full: a working day's notice is a warning,"""
    now: Seconds = 2 * 3600.0
    """and so little that somebody must come is critical."""
    sustained: Seconds = 3 * 3600.0
    """Training time over which a leak that is not urgent must hold: fragmentation and caches end within hours."""
    flattening: Ratio = 0.75
    """The slope of the last third over the first third's below which it is flattening."""
    growth: Ratio = 0.002
    """Of the device that must have been gained: 0.16 GB of 80 is above what reports vary by."""
    host_growth: Ratio = 0.01
    """Of the host that must have been gained: DeepSpeed prints tenths of a percent, other programs share the host."""


class Memory(OfLaunch):
    """Reports over training time."""

    sequence_length: int | None = None
    seconds: float = 0.0
    device: Series = field(default_factory=Series)
    host: Series = field(default_factory=Series)
    fresh: bool = False
    """Something was reported since the last step that counted."""
    used: int | None = None
    """Bytes of the device as last reported,"""
    peak: int | None = None
    """and the most that was ever in use."""
    device_bytes: int | None = None
    """From an out-of-memory line."""
    near: bool = False
    leaks: list[dict[str, Any]] = field(default_factory=list)
    HANDED_ON = ("device_bytes", "near")
    """The size of a device, and that what is near its limit is told already."""


def on_event(
    state: RunState, memory: Memory, event: MemoryReported | FailureSeen, _settings: MemoryPressureSettings
) -> bool:
    """A report came; its figures are in the state, largest over the ranks."""
    if isinstance(event, FailureSeen):
        memory.device_bytes = event.device_bytes or memory.device_bytes
        return False
    reported = state.launch.memory
    memory.used = reported.allocated or reported.reserved or reported.max_allocated or reported.max_reserved
    memory.peak, memory.fresh = _peak(state), True
    return False


def update(state: RunState, memory: Memory, steps: Sequence[Step], settings: MemoryPressureSettings) -> bool:
    """Take the last report in once the step that it belongs to is over."""
    changed, looked = False, False
    for step in steps:
        if step.memory_bytes is not None:
            memory.used, memory.peak = step.memory_bytes, step.memory_peak_bytes
        if step.counted:
            if memory.sequence_length != step.sequence_length:
                memory.sequence_length = step.sequence_length
                memory.device, memory.host, memory.leaks, memory.seconds = Series(), Series(), [], 0.0
            memory.seconds += (step.printed_seconds or 0.0) * step.interval
            if memory.fresh:
                memory.fresh, looked = False, True
                changed |= _take(state, memory, settings)
        if step.memory_bytes is not None:
            memory.fresh = True
    if looked:
        near = bool(_near(state, memory, settings))
        changed, memory.near = changed or near != memory.near, near
    return changed


def _take(state: RunState, memory: Memory, settings: MemoryPressureSettings) -> bool:
    """One more report. Whether the leaks that are seen have changed."""
    due, ratio = False, state.launch.memory.host_used_ratio
    if memory.used:
        due = memory.device.add(memory.seconds, float(memory.used))
    if ratio is not None:
        due = memory.host.add(memory.seconds, ratio) or due
    if not due:
        return False
    found = _leaks(state, memory, settings)
    changed, memory.leaks = found != memory.leaks, found
    return changed


def _size(state: RunState, memory: Memory) -> int | None:
    name = state.launch.topology.gpu_name
    whole = gpus.memory_bytes(name) if name else None
    if name and whole is not None:
        return whole // gpus.ranks_per_module(name)
    return memory.device_bytes


def device_bytes(state: RunState) -> int | None:
    """Memory of one GPU: by its name, else as an out-of-memory line told; None where neither is known."""
    memory = state.memory_of.get("memory_pressure")
    return _size(state, memory if isinstance(memory, Memory) else Memory())


def _peak(state: RunState) -> int | None:
    reported = state.launch.memory
    return max((value for value in (reported.max_allocated, reported.allocated) if value), default=None)


def _near(state: RunState, memory: Memory, settings: MemoryPressureSettings) -> list[tuple[str, str, dict[str, Any]]]:
    """(kind, text, evidence) of what is nearly full."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    reported, size = state.launch.memory, _size(state, memory)
    used = reported.max_reserved or reported.reserved or _peak(state)
    if size and used and settings.near * size <= used <= 1.1 * size:
        text = f"{used / _GIB:.1f} of {size / _GIB:.1f} GiB of the GPU are taken ({used / size:.0%})"
        found.append(("device", text, {"used_bytes": used, "device_bytes": size}))
    ratio = reported.host_used_ratio
    if ratio is not None and ratio >= settings.host_near:
        found.append(("host", f"{ratio:.0%} of the host's memory are taken", {"host_used_ratio": ratio}))
    return found


def _leaks(state: RunState, memory: Memory, settings: MemoryPressureSettings) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    size, peak, host = _size(state, memory), memory.peak or memory.device.last, memory.host.last
    if peak is not None:
        room = max(0.0, size - peak) if size is not None else None
        found += _leak("device", memory.device, settings.growth * (size or peak), room, settings)
    if host is not None:
        found += _leak("host", memory.host, settings.host_growth, max(0.0, 1.0 - host), settings)
    return found


def _leak(
    kind: str, series: Series, least: float, room: float | None, settings: MemoryPressureSettings
) -> Iterator[dict[str, Any]]:
    """Slope per second, and seconds until full where the room is known, of a series that grows steadily."""
    if series.count < settings.points:
        return
    slope, watched = series.slope(), series.times[-1] - series.times[0]
    if slope <= 0 or slope * watched < max(least, _CLEAR * series.spread()):
        return
    third = len(series.times) // 3
    if series.slope(-third) < settings.flattening * max(series.slope(0, third), slope):
        return
    full_in = room / slope if room is not None else None
    if watched >= min(settings.sustained, math.inf if full_in is None else full_in / _SHARE):
        yield {"kind": kind, "slope": slope, "full_in": full_in, "reports": series.count}


def check(state: RunState, memory: Memory, _now: float, settings: MemoryPressureSettings) -> Verdict:
    """Fires near the limit, and while a leak is seen: urgent by the time that is left."""
    if state.launch.phase == "finished":
        return CLEAR
    near = _near(state, memory, settings) if state.launch.iterations else []
    severities: list[Severity] = ["warning"] * len(near)
    texts = [text for _, text, _ in near]
    evidence: dict[str, Any] = {kind: detail for kind, _, detail in near}
    for leak in memory.leaks:
        severity = _urgency(state.launch, leak["full_in"], settings)
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
    onset, quiet = state.launch.latest.iteration, worst == "info"
    return Verdict("firing", worst, "; ".join(texts), evidence, onset=onset, quiet=quiet)


def _urgency(launch: Launch, full_in: float | None, settings: MemoryPressureSettings) -> Severity:
    """What is full before the run is done, or whose end is not known, is a warning; the rest is worth knowing."""
    if full_in is None:
        return "info"
    if full_in <= settings.now:
        return "critical"
    last, total, pace = launch.latest.iteration, launch.train_iterations, launch.pace.baseline
    left = (total - last) * pace if total is not None and last is not None and pace is not None else None
    return "info" if full_in > settings.soon and left is not None and full_in > left else "warning"


def _leak_text(leak: dict[str, Any]) -> str:
    per_day = leak["slope"] * 86400.0
    when = "" if leak["full_in"] is None else f": full in {duration(leak['full_in'])} of training"
    if leak["kind"] == "host":
        return f"the host's memory grows by {per_day:.1%} a day{when}"
    return f"GPU memory grows by {per_day / _GIB:.2f} GiB a day{when}"


_LISTENS = (MemoryReported, FailureSeen)
DETECTOR = Detector(MemoryPressureSettings, check, Memory, update, on_event, _LISTENS, level=True)
