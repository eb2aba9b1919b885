"""A spike in words and figures."""

from __future__ import annotations

import math

from monitor.detectors.base import advice, percent
from monitor.detectors.loss_spike.memory import Spike

_CAUSES = {"spike": "spike", "resume_bump": "restart"}


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


def summary_of(spike: Spike, facts: dict[str, object], patience: int) -> str:
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
        return f"loss not back since the {_CAUSES[spike.kind]} of iteration {spike.onset}: {values}; {advice(facts)}"
    if spike.stage == "rising":
        return (
            f"loss still rising since the {_CAUSES[spike.kind]} of iteration {spike.onset}: {values}; {advice(facts)}"
        )
    if spike.kind == "resume_bump":
        return (
            f"loss bump after the restart at iteration {spike.onset}: {values}; if it stays, check that optimizer "
            "state, learning rate and data order were restored"
        )
    return (
        f"{spike.by} spike since iteration {spike.onset}: {values}; most come back by themselves, look again at "
        f"iteration {spike.onset + patience}"
    )
