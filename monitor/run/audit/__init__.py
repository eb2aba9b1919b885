"""Consistency checks of a run: do its arguments, its lines and its names agree with each other?

`audit(state)` reads a RunState and changes nothing. A check whose inputs are not all known is silent, and so is one
whose arithmetic does not hold for this configuration (traits.py). The numbers are those of the rules that were drawn
from benchmark tables: K02 world size, K03 nodes, K04 batch, K05 layers, K06 tensor parallelism, K07 model size, K08
formula, K09 samples per second, K10 counters, K11 implied size, K12 ratio, K15 scaling with the batch, K16 memory of
the stages, K17 plausibility, K19 slips, K20 kernel shapes, K21 ramp-up, K27 bubble.
"""

from __future__ import annotations

from monitor.run.audit.counters import counters
from monitor.run.audit.figures import figures
from monitor.run.audit.finding import RANK, Finding
from monitor.run.audit.kernels import kernels
from monitor.run.audit.layout import layout
from monitor.run.audit.model import model
from monitor.run.audit.stages import stages
from monitor.run.state import RunState

__all__ = ["RANK", "Finding", "audit"]
_OF_ARGUMENTS = (layout, model, kernels)
_OF_LINES = (counters, figures, stages)


def audit(state: RunState) -> list[Finding]:
    """Every inconsistency that the log shows so far, the worst first."""
    # the lines of the last launch say nothing of this one's arguments
    lined = state.observed.attempt == state.attempt.number
    checks = (*_OF_ARGUMENTS, *_OF_LINES) if lined else _OF_ARGUMENTS
    found = [finding for check in checks for finding in check(state)]
    return sorted(found, key=lambda finding: (-RANK[finding.severity], finding.check))
