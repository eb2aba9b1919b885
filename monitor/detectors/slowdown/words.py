"""What is told: how much longer iterations take, since when, why, and what it costs."""

from __future__ import annotations

import math
from typing import Any

from monitor.breakdown import outside, saves, words
from monitor.detectors.base import Verdict, duration, percent
from monitor.detectors.slowdown.memory import NAME, Memory, Shift, SlowdownSettings
from monitor.run.derived import batch_size
from monitor.run.state import RunState

_NODESNAMED = 8
_EXPLAINED = 0.6  # of a difference: what the clocks make at least to be its cause; memory and network keep their pace


def slower(state: RunState, memory: Memory, shift: Shift, settings: SlowdownSettings) -> Verdict:
    """Iterations take longer."""
    base, level = math.exp(shift.base), math.exp(shift.level)
    ratio = level / base
    parts = [f"iterations take {100 * (ratio - 1):.1f} % longer since iteration {shift.onset}: "
             f"{level:.4g} s instead of {base:.4g} s"]  # fmt: skip
    evidence: dict[str, Any] = {
        "seconds_per_iteration": round(level, 4),
        "normal_seconds_per_iteration": round(base, 4),
        "ratio": round(ratio, 4),
        "reason": {"shift": "a step between two iterations", "drift": "a slow drift",
                   "launch": "slower than the launches before"}[shift.reason],
        "last_line": state.launch.last_line,
    }  # fmt: skip
    size, world = batch_size(state), state.launch.topology.world_size
    if size:
        evidence["lost_samples_per_second"] = round(size / base - size / level, 4)
    if world:
        wasted = world * (1 - base / level)
        evidence["wasted_gpus"] = round(wasted, 1)
        parts.append(f"as much as {wasted:.1f} of {world} GPUs standing idle")
    last, total = state.launch.latest.iteration, state.launch.train_iterations
    if last is not None and total is not None and total > last:
        longer = (total - last) * (level - base)
        evidence["hours_added"] = round(longer / 3600, 2)
        parts.append(f"{duration(longer)} more until iteration {total}")
    if shift.reason == "launch":
        parts += [_nodes_of(memory), _clocks_of(memory, shift, evidence)]
    found = memory.window.found
    if found is not None or "cause" not in evidence:
        dialect = state.launch.dialect
        parts.append(words.no_timers(dialect) if found is None else words.sentence(found))
        apart = found is not None and found.cause == "communication"
        parts.append(words.look(found) + (words.of_ranks(dialect) if apart else ""))
        evidence.update(words.evidence(found, memory.window.before))
    heavy = ratio >= 1 + settings.critical
    return Verdict(
        NAME,
        "firing",
        severity="critical" if heavy else "warning",
        summary="; ".join(part for part in parts if part),
        onset_iteration=shift.onset,
        since=shift.at,
        evidence=evidence,
        quiet=heavy and not shift.stood,
    )


def _clocks_of(memory: Memory, shift: Shift, evidence: dict[str, Any]) -> str:
    """What lower clocks than those of the launch before explain, where the log tells both."""
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
    return (
        f"its GPUs' clocks explain it: locked to {clocks[1]} MHz, {clocks[0]} MHz before, {clocks[0] / clocks[1]:.3f} x"
    )


def _nodes_of(memory: Memory) -> str:
    """How the node lists of the last two launches differ, where the log names nodes."""
    if len(memory.segments) < 2:
        return ""
    before, after = set(memory.segments[-2].nodes), set(memory.segments[-1].nodes)
    if not before or not after or before == after:
        return ""
    new, gone = sorted(after - before), sorted(before - after)
    words = []
    if new:
        words.append("new nodes: " + ", ".join(new[:_NODESNAMED]) + (" ..." if len(new) > _NODESNAMED else ""))
    if gone:
        words.append("gone: " + ", ".join(gone[:_NODESNAMED]) + (" ..." if len(gone) > _NODESNAMED else ""))
    return ", ".join(words)


def between_steps(state: RunState, found: outside.Longer, settings: SlowdownSettings) -> Verdict:
    """DeepSpeed's engine takes as long as ever, what lies between its steps takes longer."""
    heavy = outside.ratio(found) >= 1 + settings.critical
    return Verdict(
        NAME,
        "firing",
        severity="critical" if heavy else "warning",
        summary=outside.sentence(found),
        onset_iteration=found.onset,
        since=found.at,
        evidence={**outside.evidence(found), "last_line": state.launch.last_line},
        quiet=heavy and not found.lasts,
    )


def slower_saves(state: RunState, found: saves.SlowSaves) -> Verdict:
    """Saves take longer."""
    return Verdict(
        NAME,
        "firing",
        summary=saves.sentence(found),
        onset_iteration=found.onset,
        since=found.at,
        evidence={**saves.evidence(found), "last_line": state.launch.last_line},
    )


def faster(state: RunState, shift: Shift) -> Verdict:
    """Iterations take less: information."""
    base, level = math.exp(shift.base), math.exp(shift.level)
    return Verdict(
        NAME,
        "firing",
        severity="info",
        summary=f"iterations take {100 * (1 - level / base):.1f} % less time since iteration {shift.onset}: "
        f"{level:.4g} s instead of {base:.4g} s; nothing to do, unless code or data were changed by mistake",
        onset_iteration=shift.onset,
        since=shift.at,
        evidence={
            "seconds_per_iteration": round(level, 4),
            "normal_seconds_per_iteration": round(base, 4),
            "ratio": round(level / base, 4),
            "last_line": state.launch.last_line,
        },
        quiet=True,
    )


def before_hang(state: RunState) -> str:
    """What the pace said before the run stood still: that iterations had become slower, and where; empty if not."""
    memory = state.memory_of.get(NAME)
    if state.launch.phase == "saving":
        return saves.creeping(state.past.silences.values("saving"))
    if not isinstance(memory, Memory) or memory.shift is None:
        return ""
    shift, found = memory.shift, memory.window.found
    told = f"iterations had taken {percent(shift.level - shift.base)} since iteration {shift.onset}"
    return f"{told}, {words.sentence(found)}" if found is not None and found.part else told


def ratio(state: RunState) -> float | None:
    """The last iteration's pure time over the normal one; while a slowdown stands, over that of before it."""
    launch = state.launch
    memory, seconds, normal = state.memory_of.get(NAME), launch.pure_seconds, launch.pace.baseline
    if isinstance(memory, Memory):
        known = memory.reference if memory.shift is None else memory.shift.base
        normal = normal if known is None else math.exp(known)
    return seconds / normal if seconds and normal else None
