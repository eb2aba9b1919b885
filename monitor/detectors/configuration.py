"""Configuration: the run's arguments and lines contradict each other, or waste what it has (monitor/audit.py).

One incident a run that lists every finding, the worst first; it is told again when a worse one appears. Findings that
are only worth knowing are shown and never sent. Judged when the arguments are there, and again now and then as lines
come: an audit takes half a millisecond, a step in between two microseconds.
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import field, structs

from megatron_monitor.audit import CHECKS, Inconsistency, audit
from megatron_monitor.detectors.base import CLEAR, UNKNOWN, Finding, Rule, RuleSettings, Severity
from megatron_monitor.parsers.events import (
    ArgumentsDumped,
    BatchSizeRampupPlanned,
    Event,
    ModelSettingLogged,
    TopologyLogged,
)
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step

_AT_ONCE = (ArgumentsDumped, ModelSettingLogged, BatchSizeRampupPlanned)
"""Launchers print a world size as each of them sees it: theirs is judged at the first iteration."""
_FIRST = 3  # steps until the first audit of lines: the first one of a launch is an outlier
_KNOWN = 64  # reports that are remembered
_MOST = 4096  # steps between two audits when nothing new was reported


class ConfigurationSettings(RuleSettings, frozen=True, kw_only=True):
    """The checks' own thresholds stand with their reasons in monitor/audit.py: the report uses the same."""

    ignore: tuple[str, ...] = ()
    """Checks to leave out, by code (docs/checks.md), e.g. K27: a small pipeline may be meant to wait."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """(key, message) for each code that is no check of this incident."""
        known = ", ".join(f"{code} {check.name}" for code, check in CHECKS.items())
        for code in self.ignore:
            if code not in CHECKS:
                yield "ignore", f"there is no check {code!r}; known: {known} (docs/checks.md)"


class Configuration(Rule):
    """The findings of the last audit, and when each was first made."""

    name = "configuration"
    settings = ConfigurationSettings
    listens = (ArgumentsDumped, TopologyLogged, ModelSettingLogged, BatchSizeRampupPlanned)

    findings: list[Inconsistency] = field(default_factory=list)
    since: dict[str, float] = field(default_factory=dict)
    stale: bool = False
    next_step: int = _FIRST
    attempt: int = 0
    known: list[int] = field(default_factory=list)
    """Checksums of what was reported."""

    def on_event(self, state: RunState, event: Event, settings: ConfigurationSettings) -> bool:
        """More is known. Arguments are judged at once: a wrong one may end the run before its first step."""
        launch = state.launch
        plain = zlib.crc32(repr(structs.replace(event, node=None, logged_at=None)).encode())
        if plain in self.known and self.attempt == launch.number:
            return False  # programs print some settings again and again
        self.known = [*self.known[-_KNOWN:], plain]
        self.stale = True
        ready = launch.iterations == 0 and "arguments" in launch.boundaries
        return ready and isinstance(event, _AT_ONCE) and self._audit(state, settings)

    def on_steps(self, state: RunState, steps: Sequence[Step], settings: ConfigurationSettings) -> bool:
        """Judge again at the third step, then at twice as many each time; of many steps once, after the last."""
        launch = state.launch
        if launch.number == self.attempt and state.iterations_total < self.next_step and not self.stale:
            return False
        if not any(step.counted for step in steps):
            return False
        if launch.number != self.attempt:
            self.attempt, self.next_step = launch.number, state.iterations_total + _FIRST - 1
        if state.iterations_total < self.next_step:
            if not self.stale or launch.iterations < 1:
                return False
        else:
            self.next_step = state.iterations_total + min(max(launch.iterations, 1), _MOST)
        return self._audit(state, settings)

    def _audit(self, state: RunState, settings: ConfigurationSettings) -> bool:
        self.stale = False
        findings = [finding for finding in audit(state) if finding.check not in settings.ignore]
        if findings == self.findings:
            return False
        self.findings = findings
        self.since = {finding.key: self.since.get(finding.key, state.updated_at) for finding in findings}
        return True

    def evaluate(self, state: RunState, _now: float, settings: ConfigurationSettings) -> Finding:
        """Fires while an audit finds anything; quiet while it is nothing worse than worth knowing."""
        launch = state.launch
        findings = [finding for finding in self.findings if finding.check not in settings.ignore]
        if not findings:
            return CLEAR
        if launch.phase == "finished":
            return UNKNOWN  # the findings stay, and are not notified again
        worst: Severity = findings[0].severity
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        summary, evidence = f"{findings[0].check}: {findings[0].message}{more}", {"findings": [*map(_shown, findings)]}
        onset, quiet = launch.first_iteration, worst == "info"
        return Finding("firing", worst, summary, evidence, onset=onset, since=min(self.since.values()), quiet=quiet)


def _shown(finding: Inconsistency) -> dict[str, Any]:
    shown = {"check": finding.check, "severity": finding.severity, "message": finding.message}
    return {**shown, "evidence": finding.evidence} if finding.evidence else shown
