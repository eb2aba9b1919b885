"""The rule `configuration`: a batch size ramp-up reaches a size that the layout cannot divide.

Megatron asserts this when the size is reached, possibly days after the start. Settings that Megatron refuses at its
start are not reported.
"""

import math
from collections.abc import Sequence

from megatron_monitor.detectors.base import CLEAR, AttemptRule, Finding, RuleSettings, Severity
from megatron_monitor.parsers import events
from megatron_monitor.parsers.events import Event
from megatron_monitor.run.state import Attempt, RunState
from megatron_monitor.run.steps.step import Step

_SIZES = 10_000  # ramp-ups with more batch sizes are not checked one by one


class Configuration(AttemptRule):
    """The run's state has the arguments."""

    name = "configuration"
    listens = (events.ArgumentsDumped, events.TopologyLogged, events.ModelSettingLogged, events.BatchSizeRampupPlanned)

    def on_event(self, _state: RunState, _event: Event, _settings: RuleSettings) -> bool:
        """A new setting is known. It is evaluated at once, because the first step may be hours away."""
        return True

    def on_steps(self, state: RunState, _steps: Sequence[Step], _settings: RuleSettings) -> bool:
        """The attempt trains: it will stop at a wrong size."""
        self.idle_until = math.inf
        return state.attempt.topology.rampup is not None

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fire a warning, or a critical finding once the run trains, because it will stop."""
        attempt = state.attempt
        if (planned := _planned(attempt)) is None:
            return CLEAR
        sizes, samples, step = planned
        start, increment, batch = sizes.start, sizes.step, sizes.stop - 1
        wrong, now = [size for size in sizes if size % step], attempt.latest.global_batch_size or 0
        evidence = {"start": start, "increment": increment, "global_batch_size": batch, "step": step}
        severity: Severity = "warning"
        if sizes[-1] != batch:
            text = f"the batch size ramp-up from {start} by {increment} does not end at {batch}"
        elif not wrong:
            return CLEAR
        else:
            evidence["first_wrong"] = size = next((size for size in wrong if size > now), wrong[0])
            text = (
                f"{len(wrong)} batch sizes of the ramp-up {start} + n x {increment} to {batch} are not multiples of "
                f"micro batch {attempt.topology.micro_batch_size} x DP {attempt.topology.data_parallel_size} = {step}"
            )
            if size > now and attempt.iterations > 0:
                when = (size - start) * samples // (batch - start)
                severity = "critical"
                text = f"{text}: the run will stop at batch size {size}, after about {when} samples"
            else:
                text = f"{text}, e.g. {size}"
        return Finding("firing", severity, text, evidence, onset=attempt.first_iteration)


def _planned(attempt: Attempt) -> tuple[range, int, int] | None:
    """Return (batch sizes of the ramp-up, its samples, the number of which each size must be a multiple), or None.

    The data-parallel size is awaited: during set-up only half of the sizes are known.
    """
    topology = attempt.topology
    batch, step = topology.global_batch_size, (topology.micro_batch_size or 0) * (topology.data_parallel_size or 0)
    early = not attempt.iterations and "data_parallel_size" not in topology.reported
    if topology.rampup is None or early or topology.flexible_batch or topology.other_parallelism:
        return None
    start, increment, samples = topology.rampup
    if not (step and batch) or min(start, increment) <= 0 or start >= batch or (batch - start) // increment > _SIZES:
        return None
    return range(start, batch + 1, increment), samples, step
