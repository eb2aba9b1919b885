"""Straggler: one rank computes longer than its peers and goes on doing so, whether the iteration suffers yet or not.

Ranks are compared with what must be alike: with the ranks of their own pipeline stage where the log prints each rank's
timers, with the run's own past where it prints the least and the most over the ranks, or Megatron's straggler report.
Stages differ by construction (the first embeds, the last has the loss): their difference is part of that past. Once
iterations are slower, the slowdown says so and names its cause: this incident is for what comes before.
"""

import math
from collections.abc import Sequence

from msgspec import Struct, field

from megatron_monitor.breakdown.account import Timed
from megatron_monitor.detectors.base import CLEAR, AttemptRule, Finding, RuleSettings, Severity, stated
from megatron_monitor.parsers.events import StragglerReported
from megatron_monitor.run.state import Launch, RunState
from megatron_monitor.run.steps.step import Step
from megatron_monitor.statistics.median import deviation, median

_WARM_UP = 8  # lines with timers of a launch that say nothing
_LEARN = 32  # lines that show what is usual
_LAST = 16  # lines that must show it
_MOST = 14  # ... of them
_SCALES = 6.0  # of the usual spread between lines, or between peers
_PEERS = 4  # ranks of a stage that make peers
_REPORTS = 8  # straggler reports in a row that name one rank


_THRESHOLD = 0.03  # Compute of one rank over its peers': GPUs of one kind differ by 1 to 2 %.
_WARNING = 0.10  # From here on it is a warning, below it is information.


class Found(Struct):
    """A rank that stands out. `excess` is a logarithm."""

    onset: int
    at: float
    excess: float
    rank: int | None = None


def _ratio(timed: Timed) -> float | None:
    """Logarithm of the most over the least compute of the ranks."""
    low = high = 0.0
    for name in ("forward-compute", "backward-compute"):
        took = timed.timers.get(name)
        if took is not None:
            low, high = low + took[0], high + took[1]
    data = timed.timers.get("batch-generator")  # taken inside the forward pass
    if data is not None:
        low, high = low - data[0], high - data[1]
    return math.log(high / low) if 0 < low <= high else None


def _behind(timed: Timed, size: int, threshold: float) -> dict[int, float]:
    """Ranks that are clearly slower than the others of their stage of `size` ranks -> by how much (a logarithm)."""
    of_stage: dict[int, list[tuple[int, float]]] = {}
    for rank, seconds in timed.ranks.items():
        if seconds > 0:
            of_stage.setdefault(rank // size, []).append((rank, math.log(seconds)))
    out: dict[int, float] = {}
    for ranks in of_stage.values():
        if len(ranks) >= _PEERS:
            times = [x for _, x in ranks]
            base = median(times)
            limit = max(math.log1p(threshold), _SCALES / 2 * deviation(times, base))
            out |= {rank: x - base for rank, x in ranks if x - base > limit}
    return out


class Straggler(AttemptRule):
    """What is remembered of this launch."""

    name = "straggler"
    listens = (StragglerReported,)
    inhibited_by = ("slowdown", "hang", "crash")  # which say more of the same
    is_level = True

    lines: int = 0
    usual: list[float] = field(default_factory=list)
    """Logarithms of most over least of the first lines, while there are too few of them."""
    base: float | None = None
    """Their median,"""
    limit: float = 0.0
    """and how far above it a rank stands out."""
    last: list[float] = field(default_factory=list)
    streaks: dict[int, int] = field(default_factory=dict)
    """Rank -> lines in a row in which it stood out of its stage."""
    named: int | None = None
    """The rank that straggler reports name, and how often in a row,"""
    reports: int = 0
    shares: list[float] = field(default_factory=list)
    """and the logarithms of the fastest over the slowest rank's throughput."""
    found: Found | None = None

    def on_steps(self, state: RunState, steps: Sequence[Step], _settings: RuleSettings) -> bool:
        """Take the timers that came with the steps."""
        changed = False
        for step in steps:
            timed = step.timed
            if timed is None or timed.across != "range":
                continue
            self.lines += 1
            if self.lines > _WARM_UP:
                changed |= self._take(state.launch, timed, step.at)
        return changed

    def _take(self, launch: Launch, timed: Timed, at: float) -> bool:
        stages = launch.topology.pipeline_parallel_size
        if timed.ranks and stages is not None:
            return self._peers(timed, at, stages, launch.topology.world_size)
        ratio = _ratio(timed)
        if ratio is None:
            return False
        if self.base is None:
            self.usual.append(ratio)
            if len(self.usual) >= _LEARN:
                self.base = median(self.usual)
                self.limit = max(math.log1p(_THRESHOLD), _SCALES * deviation(self.usual, self.base))
                self.usual = []
            return False
        self.last.append(ratio)
        del self.last[:-_LAST]
        base, limit = self.base, self.limit
        if len(self.last) < _LAST:
            return False
        excess = median(self.last) - base
        still = ratio - base > limit / 2 and sum(x - base > limit / 2 for x in self.last) >= _MOST
        return self._weigh(excess, limit, Found(timed.iteration, at, excess) if still and excess > limit else None)

    def _weigh(self, excess: float, limit: float, found: Found | None) -> bool:
        """`found` where nothing stood out before; what does lasts until its `excess` is half of the limit or less."""
        if self.found is None:
            self.found = found
            return found is not None
        if excess > limit / 2:
            self.found.excess = excess
            return False
        self.found = None
        return True

    def _peers(self, timed: Timed, at: float, stages: int, world: int | None) -> bool:
        """Compare each rank with the others of its stage; pipeline stages are the outermost order of ranks."""
        out = _behind(timed, max(1, (world or len(timed.ranks)) // max(1, stages)), _THRESHOLD)
        self.streaks = {rank: self.streaks.get(rank, 0) + 1 for rank in out}
        known = self.found
        if known is not None:
            if known.rank in out:
                known.excess = out[known.rank]
                self.last = []
                return False
            self.last.append(0.0)  # lines without it
            if len(self.last) < _LAST:
                return False
            self.found, self.last = None, []
            return True
        lasting = {rank: out[rank] for rank, count in self.streaks.items() if count >= _LAST}
        if not lasting:
            return False
        rank = max(lasting, key=lambda each: lasting[each])
        self.found, self.last = Found(timed.iteration, at, lasting[rank], rank), []
        return True

    def on_event(self, state: RunState, event: StragglerReported, _settings: RuleSettings) -> bool:
        """Megatron's own report names the rank with the lowest throughput."""
        launch = state.launch
        lowest, highest = event.values.get("MnEtpt"), event.values.get("MxEtpt")
        if lowest is None or highest is None or not 0 < lowest[0] <= highest[0]:
            return False
        share, rank = math.log(highest[0] / lowest[0]), lowest[1]
        self.reports = self.reports + 1 if rank == self.named else 1
        self.named = rank
        self.shares.append(share)
        del self.shares[: -4 * _REPORTS]
        # stages do not compute alike: there only what has grown since the first reports counts
        several = launch.topology.pipeline_parallel_size != 1
        usual = median(self.shares[:_REPORTS]) if several else 0.0
        if several and len(self.shares) < 2 * _REPORTS:
            return False
        excess = median(self.shares[-_REPORTS:]) - usual
        limit = math.log1p(_THRESHOLD)
        named = self.reports >= _REPORTS and excess > limit
        found = Found(launch.latest.iteration or 0, state.updated_at, excess, rank) if named else None
        return self._weigh(excess if self.reports > 1 else 0.0, limit, found)

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Firing while a rank stands out."""
        launch = state.launch
        found = self.found
        if found is None or self.attempt != launch.number:
            return CLEAR
        excess = math.expm1(found.excess)
        world = launch.topology.world_size
        who = f"rank {found.rank}" if found.rank is not None else "one rank"
        than = "its peers" if found.rank is not None else "it did, while the fastest does not"
        waiting = f"; {world - 1} GPUs wait for it" if world and world > 1 else ""
        waits = world - 1 if world else None
        evidence = {
            "excess_ratio": round(excess, 4), "last_line": launch.last_line, "rank": found.rank, "gpus_waiting": waits,
        }  # fmt: skip
        named = "" if found.rank is not None else "; --timing-log-option all names the rank at the next restart"
        severity: Severity = "warning" if excess >= _WARNING else "info"
        summary = (
            f"{who} computes {100 * excess:.1f} % longer than {than}, from iteration {found.onset}{waiting}{named}"
        )
        return Finding("firing", severity, summary, stated(evidence), onset=found.onset, since=found.at)
