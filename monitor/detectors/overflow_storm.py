"""Overflow storm: step after step is skipped, so nothing is learned while the log looks alive.

Three witnesses, the strongest counts: DeepSpeed's OVERFLOW lines, the loop's own count of skipped iterations (always 0
in BigScience's fork), and a grad norm repeated bit for bit, which is the one of the last step that was not skipped.
Health skips one or two steps (hysteresis) each time the scale is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct

from monitor.detectors.memory import recall
from monitor.detectors.scaler import Search
from monitor.detectors.verdict import Verdict
from monitor.run.phases import ENDED
from monitor.run.state import RunState
from monitor.run.units import Ratio
from parsers.events import Event, OverflowSkipped

LISTENS: tuple[type[Event], ...] = (OverflowSkipped,)
_SPAN = 10  # iterations within which skipped steps are counted
_DIGITS = 1000.0  # a norm printed with seven digits is not equal to the one before by chance; 0.139 is, often


class OverflowStormSettings(Struct, frozen=True):
    """Thresholds, each with its reason."""

    skipped: int = 3
    """Within 10 iterations: hysteresis lets two meet in health, a third is a storm."""
    share: Ratio = 0.3
    """Of the steps of a line that tells more than 10 of them."""
    critical: Ratio = 0.8
    """Share of skipped steps from which on the run stands still."""
    calm: int = 20
    """Iterations without a skipped step that end the storm."""


@dataclass(slots=True)
class StormMemory:
    """Skipped steps of the last iterations."""

    attempt: int = 0
    search: Search = field(default_factory=Search)
    told: list[int] = field(default_factory=list)
    """Iterations after which an overflow line came, one entry each."""
    skips: list[tuple[int, int]] = field(default_factory=list)
    """(iteration, skipped steps that its line tells)."""
    skipped_total: int = 0
    overflow_since_line: bool = False
    scale: float | None = None
    norm: float | None = None
    varied: bool = False
    """The norm has changed before: it is computed."""
    repeats: int = 0
    frozen: bool = False
    witness: str = ""
    firing: bool = False
    onset: int = 0
    since: float = 0.0
    worst: float = 0.0
    last_bad: int = 0


def on_step(state: RunState, settings: OverflowStormSettings) -> bool:
    """See each step: what it says of skipped ones, and its grad norm."""
    memory = _memory(state)
    latest = state.latest
    scale = latest.loss_scale
    skipped = state.skipped_iterations_total - memory.skipped_total
    if (scale is None or scale <= 1.0) and not (skipped or memory.firing or memory.overflow_since_line):
        return False  # without a loss scale no step is skipped
    memory.skipped_total = state.skipped_iterations_total
    iteration = latest.iteration or 0
    fell = memory.scale is not None and scale is not None and scale < memory.scale
    memory.scale = scale
    explained = fell or memory.overflow_since_line
    repeated = state.driver == "iteration" and _norm(memory, latest.grad_norm, explained)
    bad = skipped > 0 or explained
    memory.overflow_since_line = False
    searching = memory.search.on(state, bad)
    if not (bad or repeated or memory.firing):
        return False
    if skipped > 0:
        memory.skips.append((iteration, skipped))
    if skipped > 0 or fell or repeated:
        memory.last_bad = iteration
    if searching:
        memory.told, memory.skips = [], []
        return False
    return _weigh(memory, state, iteration, settings)


def on_event(state: RunState, event: Event, settings: OverflowStormSettings) -> bool:
    """See each overflow when it is told."""
    if not isinstance(event, OverflowSkipped):
        return False
    memory = _memory(state)
    memory.overflow_since_line = True
    iteration = state.latest.iteration or 0
    memory.last_bad = iteration
    if memory.search.on(state, True):
        return False
    memory.told.append(iteration)
    return _weigh(memory, state, iteration, settings)


def _memory(state: RunState) -> StormMemory:
    memory = recall(state, "overflow_storm", StormMemory)
    if memory.attempt != state.attempt.number:
        memory = StormMemory(attempt=state.attempt.number, skipped_total=memory.skipped_total)
        state.memory_of["overflow_storm"] = memory
    return memory


def _norm(memory: StormMemory, norm: float | None, explained: bool) -> bool:
    """Whether the norm is frozen: repeated more often than one halving with its hysteresis explains.

    `explained`: the scale fell or an overflow was told, so that a repeat is what a skipped step prints.
    """
    if norm is None or not norm > 0:
        memory.repeats = 0
        memory.norm = None
        return False
    if norm != memory.norm:
        memory.varied = memory.varied or memory.norm is not None
        memory.norm, memory.repeats, memory.frozen = norm, 0, False
        return False
    if not memory.varied or memory.scale is None or memory.scale <= 1.0:
        return False  # a constant is not computed; without a loss scale no step is skipped
    memory.repeats += 1
    # Each skipped step repeats it. An explained one is health up to twice; an unexplained one, printed to seven
    # digits, cannot be chance.
    chance = norm < _DIGITS
    needed = 3 if explained or chance else 1
    memory.frozen = memory.frozen or memory.repeats >= needed
    return True


def _weigh(memory: StormMemory, state: RunState, iteration: int, settings: OverflowStormSettings) -> bool:
    """Count the witnesses of the last iterations. Whether the verdict may have changed."""
    every = state.log_interval or 1
    span = max(_SPAN, every)
    memory.told = [at for at in memory.told if at > iteration - span]
    memory.skips = [item for item in memory.skips if item[0] > iteration - span]
    told, counted = len(memory.told), sum(skipped for _, skipped in memory.skips)
    needed = settings.skipped if every <= _SPAN else max(settings.skipped, settings.share * every)
    most = max(told, counted, memory.repeats if memory.frozen else 0)
    storm = max(told, counted) >= needed or memory.frozen
    if storm:
        memory.worst = max(memory.worst, most / span)
        named = "overflow lines" if told >= counted and told >= needed else "skipped iterations"
        memory.witness = named if max(told, counted) >= needed else "frozen grad norm"
        if not memory.firing:
            memory.firing = True
            memory.onset = min([*memory.told, *(at for at, _ in memory.skips), iteration])
            memory.since = state.last_iteration_at if state.last_iteration_at is not None else state.updated_at
        return True
    if memory.firing and iteration - memory.last_bad >= settings.calm:
        memory.firing, memory.worst = False, 0.0
        return True
    return False


def check(state: RunState, now: float, settings: OverflowStormSettings) -> Verdict:  # noqa: ARG001
    """A warning from the third skipped step, critical when hardly any step succeeds."""
    if state.lost:
        return Verdict("overflow_storm", "unknown")
    memory = recall(state, "overflow_storm", StormMemory)
    if not memory.firing or memory.attempt != state.attempt.number:
        return Verdict("overflow_storm")
    if state.phase in ENDED:
        return Verdict("overflow_storm", "unknown")
    told, counted = len(memory.told), sum(skipped for _, skipped in memory.skips)
    span = max(_SPAN, state.log_interval or 1)
    scale = state.latest.loss_scale
    if memory.witness == "frozen grad norm":
        figure = f"grad norm {memory.norm} repeated bit for bit on {memory.repeats + 1} lines, steps are being skipped"
    else:
        figure = f"{max(told, counted)} of the last {span} steps skipped, normal is 2 at most"
    evidence: dict[str, object] = {
        "witness": memory.witness,
        "overflow_lines": told,
        "skipped_iterations": counted,
        "repeated_grad_norms": memory.repeats,
        "worst_share": round(min(1.0, memory.worst), 3),
        "overflows_total": state.overflows_total,
    }
    if scale is not None:
        evidence["loss_scale"] = scale
    if state.checkpoints.last_iteration is not None:
        evidence["last_checkpoint_iteration"] = state.checkpoints.last_iteration
    return Verdict(
        "overflow_storm",
        "firing",
        severity="critical" if memory.worst >= settings.critical else "warning",
        summary=f"overflow storm since iteration {memory.onset}: {figure}"
        + (f", loss scale {scale:.0f}" if scale is not None else "")
        + "; if it goes on, go back to a checkpoint from before and skip the data or lower the learning rate",
        onset_iteration=memory.onset,
        since=memory.since,
        evidence=evidence,
    )
