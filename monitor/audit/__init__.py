"""Consistency checks of a run: do its arguments, its lines and its name agree with each other?

`audit(state)` reads a RunState and changes nothing. A check whose inputs are not all known finds nothing, and neither
does one whose arithmetic does not hold for this configuration (traits.py). checks.py lists all checks by code;
layout.py and model.py check arguments, figures.py checks what the lines print.
"""

from __future__ import annotations

from monitor.audit.checks import CHECKS, IGNORABLE, RANK, Finding, Severity, described, not_ignorable
from monitor.audit.figures import figures
from monitor.audit.layout import layout
from monitor.audit.model import model
from monitor.run.state import RunState

__all__ = ["CHECKS", "IGNORABLE", "RANK", "Finding", "Severity", "audit", "described", "not_ignorable"]


def audit(state: RunState) -> list[Finding]:
    """Everything that failed in what the log has shown so far, the worst first."""
    found = [finding for check in (layout, model, figures) for finding in check(state)]
    return sorted(found, key=lambda finding: (-RANK[finding.severity], finding.check))
