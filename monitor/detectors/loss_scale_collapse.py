"""Loss scale collapse: it halves again and again, sinks over thousands of iterations, or has reached its minimum.

Healthy is: halved once, doubled after a window of clean steps (1000 by default). Each fall counts in halvings, from
overflow lines or from the iteration lines, whichever shows more. A scale that never moves (bf16 prints none or 1.0, a
static one is constant) is no evidence; -1 is no scale.
"""

import math
from collections.abc import Sequence

from msgspec import Struct, field

from megatron_monitor.detectors.base import Detector, OfLaunch, Severity, Verdict, stated, unless_standing
from megatron_monitor.parsers.dialects import dialect_of
from megatron_monitor.parsers.events import LossScaleExhausted, OverflowSkipped
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step
from megatron_monitor.statistics.median import median_high
from megatron_monitor.statistics.series import ScaleSearch

_BLOCKS = 16  # blocks of the slow decline that are remembered
_DYNAMIC = 16.0  # a launch that never had this scale was never far from the minimum: it did not fall there
_SHORT, _LONG = 10, 50  # iterations within which halvings are counted
_GROWN = 1.25  # of the least median of a block: a norm that rises so far and lasts is no noise
_ORDER = ("", "declining", "falling", "minimum", "exhausted")
"""Reasons, the worst last."""


class LossScaleCollapseSettings(Struct, frozen=True):
    """Thresholds, each with its reason."""

    halvings: int = 3
    """Within 10 iterations: health halves once, with hysteresis at the second overflow; GLM-130B fell like this 30
    iterations before its loss exploded."""
    halvings_slow: int = 4
    """Within 50 iterations: at one overflow in 1000 iterations four of them meet by chance once in millions."""
    minimum: float = 1.0
    """The smallest scale of Megatron and DeepSpeed by default; at twice that there is one step left."""
    calm: int = 100
    """Iterations without a further fall that end the incident: doubling again takes thousands, it is not waited for."""
    block: int = 500
    """Iterations whose median shows a slow decline: half the window after which a scale doubles."""
    decline: float = 3.0
    """Halvings between such medians: a 104B run sank 8-fold over 2,300 iterations before it broke."""


class Memory(OfLaunch):
    """Falls of the last iterations, and medians of the past. Scales as logarithms to base 2."""

    search: ScaleSearch = field(default_factory=ScaleSearch)
    line_scale: float | None = None
    counted: float = 0.0
    """Halvings that overflow lines reported since the last iteration line."""
    pair: tuple[float, float] | None = None
    highest: float = 0.0
    """The largest scale of this launch since its search ended."""
    falls: list[tuple[int, float]] = field(default_factory=list)
    """(iteration, halvings)."""
    block: list[float] = field(default_factory=list)
    block_from: int = 0
    blocks: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    """Grad norms of the block,"""
    usual_norms: list[float] = field(default_factory=list)
    """... and the medians of the blocks that have them."""
    reason: str = ""
    onset: int = 0
    since: float = 0.0
    before: float = 0.0
    last_fall: int = 0
    HANDED_ON = ("blocks", "usual_norms")
    """In a new launch the scaler starts anew; what the scale used to be is remembered."""


def update(state: RunState, memory: Memory, steps: Sequence[Step], settings: LossScaleCollapseSettings) -> bool:
    """See the scale of each step."""
    launch = state.launch
    lines, first, changed = launch.whole_lines, launch.first_iteration, False
    minimum = dialect_of(launch.dialect).minimum_loss_scale or settings.minimum
    for step in steps:
        scale = step.loss_scale
        if scale is None or scale <= 0 or not step.counted or (scale == 1.0 and not memory.line_scale):
            continue  # bf16 prints none or 1.0: there is nothing to scale
        changed |= _seen(memory, step, math.log2(scale), lines, first == step.iteration, minimum, settings)
    return changed


def _seen(
    memory: Memory, step: Step, level: float, lines: bool, first: bool, minimum: float,
    settings: LossScaleCollapseSettings,
) -> bool:  # fmt: skip
    """A step at which something may have moved. `lines`: the loop's, which show each level; `first`: of the launch."""
    known, iteration, fall, changed = memory.line_scale, step.iteration, 0.0, False
    if known is not None and lines:
        fall = max(0.0, known - level - memory.counted)
        if level > known:
            memory.pair = None
    memory.line_scale, memory.counted = level, 0.0
    searching = memory.search.going_on(step.finished, first, fall > 0)
    memory.highest = level if searching else max(memory.highest, level)
    # the minimum is reported once, and again where the scale has moved
    news = level != known or not _worse(memory, "minimum")
    if news and _floor(level, minimum) and max(memory.highest, level) >= math.log2(_DYNAMIC):
        changed = _open(memory, step.at, "minimum", iteration)
    if searching:
        memory.block_from = iteration
        return changed
    changed |= _slow(memory, step, level, lines, settings)
    if fall > 0:
        changed |= _fallen(memory, step.at, iteration, step.interval, fall, settings)
    if memory.reason:
        changed |= _calmed(memory, iteration, level, minimum, settings)
    return changed


def on_event(
    state: RunState, memory: Memory, event: OverflowSkipped | LossScaleExhausted, settings: LossScaleCollapseSettings
) -> bool:
    """See each overflow when it is reported, before the step's own line."""
    launch = state.launch
    iteration = launch.latest.iteration or 0
    at = launch.watch.at if launch.watch.at is not None else state.updated_at
    if isinstance(event, LossScaleExhausted):
        return _open(memory, at, "exhausted", iteration)
    if not event.loss_scale or not event.new_loss_scale:
        return False
    pair = (event.loss_scale, event.new_loss_scale)
    if pair == memory.pair or min(pair) <= 0:
        return False  # the same reduction reported twice, or another engine's copy
    memory.pair = pair
    fall = math.log2(event.loss_scale) - math.log2(event.new_loss_scale)
    memory.counted += max(0.0, fall)
    first_line = launch.first_iteration == launch.last_iteration
    if memory.search.going_on(launch.iterations, first_line, True) or fall <= 0:
        return False
    return _fallen(memory, at, iteration, launch.log_interval or 1, fall, settings)


def _fallen(
    memory: Memory, at: float, iteration: int, every: int, fall: float, settings: LossScaleCollapseSettings
) -> bool:
    memory.falls.append((iteration, fall))
    memory.falls = [item for item in memory.falls if item[0] > iteration - _LONG]
    memory.last_fall = iteration
    recent = sum(halvings for when, halvings in memory.falls if when > iteration - max(_SHORT, every))
    lately = sum(halvings for _, halvings in memory.falls)
    # one line of many iterations shows the net fall of all of them
    needed = settings.halvings + (every > _SHORT) + (every > _LONG)
    if recent >= needed or lately >= settings.halvings_slow + (every > _LONG):
        return _open(memory, at, "falling", memory.falls[0][0])
    return bool(memory.reason)


def _floor(level: float, minimum: float) -> bool:
    return level <= math.log2(2 * minimum)


def _slow(memory: Memory, step: Step, level: float, lines: bool, settings: LossScaleCollapseSettings) -> bool:
    """The level of whole blocks."""
    iteration = step.iteration
    memory.block.append(level)
    if lines and step.grad_norm is not None:
        memory.norms.append(step.grad_norm)
    if iteration - memory.block_from < settings.block:
        return False
    present, memory.block, memory.block_from = median_high(memory.block), [], iteration
    if memory.norms:
        memory.usual_norms = [*memory.usual_norms[1 - _BLOCKS :], median_high(memory.norms)]
        memory.norms = []
    past = memory.blocks
    declined = bool(past) and max(past) - present >= settings.decline
    past.append(present)
    del past[:-_BLOCKS]
    if declined:
        memory.before = max(memory.before, *past)
        return _open(memory, step.at, "declining", iteration)
    if memory.reason == "declining":
        memory.reason = ""
        return True
    return False


def _worse(memory: Memory, reason: str) -> bool:
    """Whether this or worse is reported already."""
    return _ORDER.index(reason) <= _ORDER.index(memory.reason)


def _open(memory: Memory, at: float, reason: str, onset: int) -> bool:
    if not memory.reason:
        memory.onset, memory.since = onset, at
        memory.before = max(memory.before, memory.highest)
    if not _worse(memory, reason):
        memory.reason = reason
    return True


def _calmed(memory: Memory, iteration: int, level: float, minimum: float, settings: LossScaleCollapseSettings) -> bool:
    """Whether the incident has ended with this step."""
    if memory.reason == "declining" or iteration - memory.last_fall < settings.calm or _floor(level, minimum):
        return False
    memory.reason, memory.falls, memory.before = "", [], 0.0
    memory.highest = level
    memory.block, memory.block_from, memory.blocks = [], iteration, []  # reported once: no decline on top of the fall
    memory.norms, memory.usual_norms = [], []
    return True


def check(state: RunState, memory: Memory, _now: float, _settings: LossScaleCollapseSettings) -> Verdict:
    """A warning while the scale falls, critical where it can fall no further."""
    exhausted = memory.reason == "exhausted"
    if verdict := unless_standing(state, memory.attempt, found=bool(memory.reason), outlives=exhausted):
        return verdict
    scale = state.launch.latest.loss_scale or 0.0
    before = 2.0**memory.before if memory.before else None
    was = f" from {before:.6g}" if before is not None and before > scale else ""
    severity: Severity = "critical" if memory.reason in ("minimum", "exhausted") else "warning"
    words = {
        "falling": f"falling since iteration {memory.onset}: {scale:.6g} now{was}; losses have blown up 30 iterations "
        "after such a fall: keep a checkpoint from before, watch grad norm and loss",
        "declining": f"sinking up to iteration {memory.onset}: {scale:.6g} now{was}; {_of_gradients(memory)}",
        "minimum": f"at its minimum since iteration {memory.onset}: {scale:.6g} now{was}; the model learns nothing: "
        "stop, go back to a checkpoint from before and skip the data or lower the learning rate",
        "exhausted": f"below its minimum at iteration {memory.onset}{was}: the program stops; go back to a checkpoint "
        "from before and skip the data or lower the learning rate",
    }
    evidence = {
        "reason": memory.reason,
        "loss_scale": scale,
        "halvings": round(sum(halvings for _, halvings in memory.falls), 2),
        "last_fall_iteration": memory.last_fall,
        "loss_scale_before": before,
        "last_checkpoint_iteration": state.past.checkpoints.last_iteration,
    }
    summary = f"loss scale {words[memory.reason]}"
    return Verdict("firing", severity, summary, stated(evidence), onset=memory.onset, since=memory.since)


def _of_gradients(memory: Memory) -> str:
    """What the grad norms of the blocks say of it: a scale also sinks where single steps overflow by chance."""
    norms, advice = memory.usual_norms, "lower the learning rate or go back before it breaks"
    if len(norms) < 2:
        return f"if gradients grow, {advice}"
    least, last = min(norms), norms[-1]
    told = f"grad norm {last:.3g}, {least:.3g} at its least"
    if last >= _GROWN * least:
        return f"gradients grow ({told}): {advice}"
    return f"gradients do not grow ({told}): watch the loss"


_LISTENS = (OverflowSkipped, LossScaleExhausted)
DETECTOR = Detector(LossScaleCollapseSettings, check, Memory, update, on_event, _LISTENS, level=True)
