"""What a step says of the model: its loss and grad norm, whoever reports them.

The training loop's own line leaves them in `state.latest` before detectors see the step (`state.driver` says so). HF
Trainer and a lone DeepSpeed engine tell them in events of their own: after their steps older values still stand there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from monitor.run.state import RunState
from parsers.events import EngineStepLogged, Event, TrainerLogged

LISTENS: tuple[type[Event], ...] = (TrainerLogged, EngineStepLogged)


class Signal(NamedTuple):
    """As printed; None where it was not."""

    loss: float | None
    grad_norm: float | None


def of_event(state: RunState, event: Event) -> Signal | None:
    """Of a report that stands for the loop's line in runs that have none."""
    if isinstance(event, TrainerLogged):
        return Signal(event.loss, event.grad_norm) if state.driver == "trainer" and event.loss is not None else None
    if isinstance(event, EngineStepLogged) and state.driver == "engine" and event.loss is not None:
        return Signal(event.loss, None)
    return None


def rollback(state: RunState, onset: int, samples_before: int | None, checkpoint: int | None) -> dict[str, Any]:
    """What a person who goes back needs: the last checkpoint before the onset, the samples to skip."""
    facts: dict[str, Any] = {}
    if checkpoint is not None and checkpoint <= onset:
        facts["rollback_iteration"] = checkpoint
    if samples_before is not None:
        facts["samples_from"] = samples_before
        if state.latest.consumed_samples is not None:
            facts["samples_to"] = state.latest.consumed_samples
    return facts


def advice(facts: dict[str, Any]) -> str:
    """The same in words."""
    checkpoint, first, last = (facts.get(key) for key in ("rollback_iteration", "samples_from", "samples_to"))
    where = "a checkpoint from before" if checkpoint is None else f"the checkpoint of iteration {checkpoint}"
    words = f"go back to {where}"
    if first is not None and last is not None:
        words += f" and skip samples {first} to {last}"
    return words


def percent(log_ratio: float) -> str:
    """A difference of logarithms as people say it."""
    ratio = 2.718281828459045**log_ratio
    return f"{ratio:.1f} x" if ratio >= 3 else f"{100 * (ratio - 1):+.1f} %"
