"""An open loss spike: what is measured of it line by line, and the words for it. Values are logarithms."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from monitor.detectors.signals import advice, percent

_RECENT = 50  # lines whose median says whether the loss has come back (docs/incident-record.md, "Change detection")
_NAMES = {"spike": "spike", "resume_bump": "restart"}


@dataclass(slots=True)
class Spike:
    """An open spike; logarithms against the frozen normal."""

    onset: int
    since: float
    kind: str = "spike"
    stage: str = "spike"
    by: str = "loss"
    loss_base: float | None = None
    norm_base: float | None = None
    loss_band: float = 0.0
    norm_band: float = 0.0
    loss: float | None = None
    norm: float | None = None
    loss_peak: float = 0.0
    norm_peak: float = 0.0
    lines: int = 0
    normal_lines: int = 0
    recent: list[float] = field(default_factory=list)
    samples_before: int | None = None
    checkpoint: int | None = None


def measure(spike: Spike, loss: float | None, norm: float | None) -> tuple[float | None, float | None]:
    """(excess of the loss, of the grad norm) of a line of an open spike."""
    spike.lines += 1
    spike.loss, spike.norm = loss, norm
    loss_excess = loss - spike.loss_base if loss is not None and spike.loss_base is not None else None
    norm_excess = norm - spike.norm_base if norm is not None and spike.norm_base is not None else None
    spike.loss_peak = max(spike.loss_peak, loss_excess or 0.0)
    spike.norm_peak = max(spike.norm_peak, norm_excess or 0.0)
    if loss_excess is not None:
        spike.recent.append(loss_excess)
        del spike.recent[:-_RECENT]
    return loss_excess, norm_excess


def figures(spike: Spike) -> list[tuple[str, float]]:
    """Name and logarithm of each figure that is known, as evidence."""
    named = (
        ("lm_loss", spike.loss),
        ("normal_lm_loss", spike.loss_base),
        ("peak_lm_loss", None if spike.loss_base is None else spike.loss_base + spike.loss_peak),
        ("grad_norm", spike.norm),
        ("normal_grad_norm", spike.norm_base),
        ("peak_grad_norm", None if spike.norm_base is None else spike.norm_base + spike.norm_peak),
    )
    return [(name, value) for name, value in named if value is not None]


def summary(spike: Spike, facts: dict[str, object], patience: int) -> str:
    """One sentence: what, since when, the number against its normal, what to do."""
    parts = []
    if spike.loss is not None and spike.loss_base is not None:
        parts.append(
            f"lm loss {math.exp(spike.loss):.4g}, normal {math.exp(spike.loss_base):.4g} "
            f"({percent(spike.loss - spike.loss_base)})"
        )
    if spike.norm is not None and spike.norm_base is not None and spike.norm_peak > spike.norm_band:
        parts.append(f"grad norm {math.exp(spike.norm):.4g}, normal {math.exp(spike.norm_base):.4g}")
    values = "; ".join(parts)
    if spike.stage == "not recovered":
        return f"loss not back since the {_NAMES[spike.kind]} of iteration {spike.onset}: {values}; {advice(facts)}"
    if spike.stage == "rising":
        return f"loss still rising since the {_NAMES[spike.kind]} of iteration {spike.onset}: {values}; {advice(facts)}"
    if spike.kind == "resume_bump":
        return (
            f"loss bump after the restart at iteration {spike.onset}: {values}; if it stays, check that optimizer "
            "state, learning rate and data order were restored"
        )
    return (
        f"{spike.by} spike since iteration {spike.onset}: {values}; most come back by themselves, look again at "
        f"iteration {spike.onset + patience}"
    )
