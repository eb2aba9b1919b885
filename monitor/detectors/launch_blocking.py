"""The rule `launch_blocking`: the cost of CUDA_LAUNCH_BLOCKING if the log shows that it is set.

BLOOM trained with =1, because without it runs of 160 GPUs and more hung. It cost 6.3 % on 80 GPUs and nothing on 160
(docs/development/incident-record.md, "CUDA_LAUNCH_BLOCKING"). So =1 is not a mistake, and a missing value is unknown,
not 0. The variable leaves no trace within an attempt: the whole attempt is slower than attempts with the other setting.
"""

import math

from megatron_monitor.breakdown import messages
from megatron_monitor.breakdown.attribution import Attribution, attribute
from megatron_monitor.detectors import slowdown
from megatron_monitor.detectors.base import CLEAR, UNKNOWN, Finding, Rule, RuleSettings
from megatron_monitor.run.state import RunState

VARIABLE = "CUDA_LAUNCH_BLOCKING"
_RISK = 160  # GPUs from which attempts without the variable were seen to hang


_COST = 0.03  # Minimum cost that is notified: two attempts of the same setting differ by less.


class LaunchBlocking(Rule):
    """Has no memory: the rule `slowdown` knows the levels of the attempts."""

    name = "launch_blocking"
    is_level = True

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Compare the present attempt, once its level is known, with the last one of the other setting."""
        segments, number = slowdown.Slowdown.of(state).segments, state.attempt.number
        here = next((segment for segment in reversed(segments) if segment.attempt == number), None)
        if here is None:
            return UNKNOWN
        if not here.is_blocking:
            return CLEAR
        others = [segment for segment in segments if segment.key == here.key and segment.attempt != here.attempt]
        opposite = [segment for segment in others if segment.differs_by_setting(here)]
        return self._compared(state, here, opposite[-1]) if opposite else CLEAR

    def _compared(self, state: RunState, here: slowdown.Segment, other: slowdown.Segment) -> Finding:
        cost = math.expm1(here.level - other.level)
        world, found = state.attempt.topology.world_size, None
        if here.profile is not None and other.profile is not None:
            found = attribute(other.profile, here.profile, state.attempt.topology.pipeline_parallel_size)
        if cost < _COST:
            return CLEAR
        against = "unset it unless it prevents a hang"
        if world is None or world >= _RISK:
            against = "runs of this size have hung without it, so compare the cost with that risk"
        summary = (
            f"{VARIABLE}=1 costs {100 * cost:.1f} % here: {math.exp(here.level):.4g} s per iteration since iteration "
            f"{here.first_iteration}, {math.exp(other.level):.4g} s without it; {against}{_where(found)}"
        )
        evidence = {
            "seconds_per_iteration": round(math.exp(here.level), 4),
            "cost_ratio": round(cost, 4),
            "cuda_launch_blocking": "1",
            **(messages.evidence(found, None) if found is not None else {}),
        }
        return Finding("firing", "warning", summary, evidence, onset=here.first_iteration, since=here.at)


def _where(found: Attribution | None) -> str:
    """Return the part of the iteration that took the added time, by the log's timers. The variable lengthens compute on
    all ranks. Another part shows that something else has changed as well.
    """
    if found is None or not found.part:
        return ""
    other = "" if found.cause == "compute" else ", which the variable does not lengthen: look for another cause as well"
    return f"; {messages.sentence(found)}{other}"
