"""Consistency checks of a run: do its arguments and its lines agree with each other?

`audit(state)` reads a RunState and changes nothing. A check whose inputs are not all known finds nothing, and neither
does one whose arithmetic does not hold for this configuration (arguments.py). checks.py lists all checks by code;
layout.py checks arguments, figures.py what the lines print.
"""

from megatron_monitor.audit.checks import CHECKS, GONE, IGNORABLE, RANK, Finding, Severity, described, not_ignorable
from megatron_monitor.audit.figures import figures
from megatron_monitor.audit.layout import layout
from megatron_monitor.run.state import RunState

__all__ = ["CHECKS", "GONE", "IGNORABLE", "RANK", "Finding", "Severity", "audit", "described", "not_ignorable"]


def audit(state: RunState) -> list[Finding]:
    """Everything that failed in what the log has shown so far, the worst first."""
    found = [finding for check in (layout, figures) for finding in check(state)]
    return sorted(found, key=lambda finding: (-RANK[finding.severity], finding.check))
