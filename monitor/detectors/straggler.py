"""The rule `straggler`: the straggler reports (Megatron's, NVRx's) name the same rank again and again, and this rank is
slower.

Pipeline stages differ by design (the first has the embeddings, the last has the loss), so that in a pipeline only an
increase since the first reports counts. Once iterations are slower, the rule `slowdown` reports it with its cause. This
rule covers the time before.
"""

import math

from msgspec import Struct, field

from megatron_monitor.detectors.base import CLEAR, AttemptRule, Finding, RuleSettings, Severity, stated
from megatron_monitor.parsers.events import StragglerReported
from megatron_monitor.run.state import RunState
from megatron_monitor.statistics.median import median

_REPORTS = 8  # straggler reports in a row that name one rank
_THRESHOLD = 0.03  # Throughput of the fastest rank over its own: GPUs of one kind differ by 1 to 2 %.
_WARNING = 0.10  # From this value on it is a warning, below it information.


class SlowRank(Struct):
    """A slow rank. `excess` is a logarithm."""

    onset: int
    at: float
    excess: float
    rank: int


class Straggler(AttemptRule):
    """The ranks that the reports of this attempt named."""

    name = "straggler"
    listens = (StragglerReported,)
    inhibited_by = ("slowdown", "hang", "crash")  # they include this problem
    is_level = True

    named: int | None = None
    """The rank that the last report named."""
    reports: int = 0
    """Number of reports in a row that named it."""
    shares: list[float] = field(default_factory=list)
    """Logarithms of the fastest over the slowest rank's throughput."""
    found: SlowRank | None = None

    def on_event(self, state: RunState, event: StragglerReported, _settings: RuleSettings) -> bool:
        """A report names the rank with the lowest throughput."""
        attempt = state.attempt
        if not 0 < event.lowest <= event.highest:
            return False
        share, rank = math.log(event.highest / event.lowest), event.slowest
        self.reports = self.reports + 1 if rank == self.named else 1
        self.named = rank
        self.shares.append(share)
        del self.shares[: -4 * _REPORTS]
        several = attempt.topology.pipeline_parallel_size != 1
        if several and len(self.shares) < 2 * _REPORTS:
            return False
        usual = median(self.shares[:_REPORTS]) if several else 0.0
        excess = median(self.shares[-_REPORTS:]) - usual
        limit = math.log1p(_THRESHOLD)
        if self.found is None:
            if self.reports >= _REPORTS and excess > limit:
                self.found = SlowRank(attempt.latest.iteration or 0, state.updated_at, excess, rank)
            return self.found is not None
        if self.reports > 1 and excess > limit / 2:
            self.found.excess = excess
            return False
        self.found = None
        return True

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fire while a rank is slower."""
        attempt, found = state.attempt, self.found
        if found is None:
            return CLEAR
        excess, world = math.expm1(found.excess), attempt.topology.world_size
        waiting = f"; {world - 1} GPUs wait for it" if world and world > 1 else ""
        evidence = {
            "excess_ratio": round(excess, 4), "last_line": attempt.last_line, "rank": found.rank,
            "gpus_waiting": world - 1 if world else None,
        }  # fmt: skip
        severity: Severity = "warning" if excess >= _WARNING else "info"
        peers = f"rank {found.rank} computes {100 * excess:.1f} % longer than its peers"
        summary = f"{peers}, from iteration {found.onset}{waiting}"
        return Finding("firing", severity, summary, stated(evidence), onset=found.onset, since=found.at)
