"""Texts of the rule `slowdown`: how much longer iterations take, since when, why, and the cost."""

import math
from typing import Any

from megatron_monitor.breakdown import messages
from megatron_monitor.breakdown.saves import SlowSaves
from megatron_monitor.breakdown.window import Explanation
from megatron_monitor.detectors.base import Finding, Severity, duration, percent
from megatron_monitor.detectors.slowdown.memory import Shift, SlowdownMemory, SlowdownSettings
from megatron_monitor.run.derived import batch_size
from megatron_monitor.run.state import RunState

_MAX_NODES = 8
_REASONS = {
    "shift": "a step between two iterations",
    "drift": "a slow drift",
    "launch": "slower than the attempts before",
}
_EXPLAINED = 0.6  # share of a difference that clocks must explain to be its cause; memory and network keep their speed


def slower(state: RunState, memory: SlowdownMemory, shift: Shift, settings: SlowdownSettings) -> Finding:
    """Return the finding that iterations take longer."""
    base, level = math.exp(shift.base), math.exp(shift.level)
    ratio = level / base
    figures = f"since iteration {shift.onset}: {level:.4g} s instead of {base:.4g} s"
    parts = [f"iterations take {100 * (ratio - 1):.1f} % longer {figures}"]
    evidence: dict[str, Any] = {
        "seconds_per_iteration": round(level, 4),
        "normal_seconds_per_iteration": round(base, 4),
        "ratio": round(ratio, 4),
        "reason": _REASONS[shift.reason],
        "last_line": state.attempt.last_line,
    }
    size, world = batch_size(state), state.attempt.topology.world_size
    if size:
        evidence["lost_samples_per_second"] = round(size / base - size / level, 4)
    if world:
        wasted = world * (1 - base / level)
        evidence["wasted_gpus"] = round(wasted, 1)
        parts.append(f"as much as {wasted:.1f} of {world} GPUs idle")
    last, total = state.attempt.latest.iteration, state.attempt.train_iterations
    if last is not None and total is not None and total > last:
        longer = (total - last) * (level - base)
        evidence["hours_added"] = round(longer / 3600, 2)
        parts.append(f"{duration(longer)} more until iteration {total}")
    if shift.reason == "launch":
        parts += [_nodes_of(memory), _clocks_of(memory, shift, evidence)]
    cause = shift.cause or Explanation()
    if cause.found is not None or "cause" not in evidence:
        parts += messages.explained(cause.found, state.attempt.format)
        evidence.update(messages.evidence(cause.found, cause.before))
    summary = "; ".join(part for part in parts if part)
    severity: Severity = "critical" if shift.stood and ratio >= 1 + settings.critical else "warning"
    return Finding(
        "firing", severity, summary, evidence, onset=shift.onset, since=shift.at, display_only=not shift.stood
    )


def _clocks_of(memory: SlowdownMemory, shift: Shift, evidence: dict[str, Any]) -> str:
    """Return what lower clocks than in the attempt before explain, if the log has both."""
    clocks = [
        int(clock)
        for segment in memory.segments[-2:]
        if (clock := segment.gpu_clock) and clock.isdecimal() and len(clock) < 19
    ]
    if len(clocks) < 2 or clocks[1] >= clocks[0]:
        return ""
    explained = math.log(clocks[0] / clocks[1]) / (shift.level - shift.base)
    evidence["gpu_clock_mhz"] = clocks
    if not _EXPLAINED <= explained <= 1 / _EXPLAINED:
        return f"GPU clocks were locked to {clocks[1]} MHz, {clocks[0]} MHz before"
    evidence.update(cause="compute", cause_scope="all")
    before, ratio = clocks[0], clocks[0] / clocks[1]
    return f"the GPU clocks explain it: locked to {clocks[1]} MHz, {before} MHz before, {ratio:.3f} x"


def _nodes_of(memory: SlowdownMemory) -> str:
    """Return the difference between the node lists of the last two attempts, if the log has them."""
    if len(memory.segments) < 2:
        return ""
    before, after = set(memory.segments[-2].nodes), set(memory.segments[-1].nodes)
    if not before or not after or before == after:
        return ""
    changes = (("new nodes", sorted(after - before)), ("gone", sorted(before - after)))
    return ", ".join(
        f"{what}: {', '.join(nodes[:_MAX_NODES])}{' ...' if len(nodes) > _MAX_NODES else ''}"
        for what, nodes in changes
        if nodes
    )


def slower_saves(state: RunState, found: SlowSaves) -> Finding:
    """Return the finding that saves take longer."""
    summary = (
        f"saves take {found.level:.4g} s instead of {found.base:.4g} s since iteration {found.onset}, "
        f"{100 * found.lost:.1f} % of the run's time; check the file system of the checkpoints"
    )
    evidence = {
        "cause": "checkpoint", "cause_scope": "all", "reason": "slower saves", "save_seconds": round(found.level, 3),
        "normal_save_seconds": round(found.base, 3), "ratio": round(1 + found.lost, 4),
        "last_line": state.attempt.last_line,
    }  # fmt: skip
    return Finding("firing", "warning", summary, evidence, onset=found.onset, since=found.at)


def before_hang(state: RunState) -> str:
    """Return the pace before the run hung: that iterations had become slower, and where. Empty: they had not."""
    memory = state.memory_of.get(SlowdownMemory.name)
    if not isinstance(memory, SlowdownMemory) or memory.shift is None:
        return ""
    shift = memory.shift
    found = None if shift.cause is None else shift.cause.found
    before = f"iterations had taken {percent(shift.level - shift.base)} since iteration {shift.onset}"
    return f"{before}, {messages.sentence(found)}" if found is not None and found.part else before


def level(state: RunState) -> tuple[int, float, float] | None:
    """Return the first iteration of a changed level and its seconds before and now."""
    memory = state.memory_of.get(SlowdownMemory.name)
    shift = memory.shift if isinstance(memory, SlowdownMemory) else None
    return None if shift is None else (shift.onset, math.exp(shift.base), math.exp(shift.level))


def standing(level: tuple[int, float, float]) -> str:
    """Return the level as `level` does, as a text for a report: it may have grown since it was first reported."""
    onset, before, now = level
    return f"changed its level at iteration {onset}: {now / before - 1:+.1%}, {now:.4g} s instead of {before:.4g} s"


def normal(state: RunState) -> float | None:
    """Return the normal seconds per iteration, as the log measures them. During a slowdown these are the seconds before
    it.
    """
    whole, usual = _whole_and_usual(state)
    return state.attempt.pace.baseline if usual is None or whole is not None else usual


def ratio(state: RunState) -> float | None:
    """Return the last iteration's pure time over the normal one: with the time outside the clock of DeepSpeed's engine,
    if the rule judges that.
    """
    whole, usual = _whole_and_usual(state)
    seconds = state.attempt.pure_seconds if whole is None else whole
    usual = usual or state.attempt.pace.baseline
    return seconds / usual if seconds and usual else None


def _whole_and_usual(state: RunState) -> tuple[float | None, float | None]:
    """Return (`SlowdownMemory.whole`, seconds of the level before a slowdown or else of the present one)."""
    memory = state.memory_of.get(SlowdownMemory.name)
    if not isinstance(memory, SlowdownMemory):
        return None, None
    known = memory.reference if memory.shift is None else memory.shift.base
    return (None, None) if known is None else (memory.whole, math.exp(known))
