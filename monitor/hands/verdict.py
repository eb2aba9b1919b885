"""What a launcher that asks should do with a run: wait, restart it, stop it, or nothing. Pure.

It is what the remediations would do about the run's open incidents (monitor/hands/plan.py), whether they may act or
not: he who asks acts. Where no remediation is for them, `USUAL` is: what a restart may mend is restarted, a hang after
ten minutes; what the program did wrong, and what came three times without a new checkpoint, is stopped.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from msgspec import Struct, field

from megatron_monitor.config.remediations import RESTARTS, Action, Remediation, kinds
from megatron_monitor.detectors.base import RANK, duration
from megatron_monitor.hands.plan import choice, matches, named_nodes
from megatron_monitor.hands.record import Record
from megatron_monitor.incidents import Incident
from megatron_monitor.run.nodes import expand_some, listed_nodes
from megatron_monitor.run.state import RunState

USUAL: Final = Remediation(
    name="the usual",
    incidents=("hang", "crash", "crash_without_exit"),
    failures=(
        "nccl", "cuda_error", "ecc", "bus_error", "segfault", "host_oom", "node_failure", "killed", "preempted",
        "requeued", "time_limit", "unknown",
    ),
    actions=(Action(type="requeue"),),
    after=600.0,
)  # fmt: skip
"""Where no remediation is configured. An unknown cause is tried again, as launchers do who ask nobody."""
_FOR_PEOPLE: Final = frozenset({"crash", "crash_loop", "nan_loss", "divergence"})
"""Where no remediation is for them, a critical one stops the run: the next launch would come to the same."""


class Verdict(Struct, frozen=True):
    """The answer. Absent is None or empty."""

    run: str
    verdict: Literal["wait", "restart", "stop", "none"]
    reason: str
    exclude: list[str] = field(default_factory=list)
    """Nodes that a restart should leave out."""
    evidence: list[str] = field(default_factory=list)
    """Lines of the log."""
    since: float | None = None
    """Unix seconds: when the trouble began."""
    checkpoint: int | None = None
    """The iteration to go on from."""
    same_cause_before: int = 0
    """Launches that ended of it before this one."""


def verdict_of(
    state: RunState, incidents: Iterable[Incident], remediations: Sequence[Remediation], record: Record, now: float,
    *, archived: bool = False,
) -> Verdict:  # fmt: skip
    """What to do with the run at the instant `now`. `archived`: its log was old when it was opened."""
    checkpoint = state.past.checkpoints.last_iteration
    if state.launch.phase == "finished":
        return Verdict(state.name, "none", "the training has finished", checkpoint=checkpoint)
    found = sorted(incidents, key=lambda one: (-RANK[one.severity], one.opened_at))
    if (verdict := _of_incidents(state, found, remediations, record, now)) is not None:
        return verdict
    if state.launch.phase == "crashed" and not archived:
        return Verdict(state.name, "wait", "the launch has ended: its cause is believed in some seconds")
    why = found[0].summary if found else "nothing is wrong"
    if state.lost or archived:
        why = "its log cannot be read" if state.lost else "its log was old when the monitor first saw it"
    return Verdict(state.name, "none", why, checkpoint=checkpoint)


def _of_incidents(
    state: RunState, found: Sequence[Incident], remediations: Sequence[Remediation], record: Record, now: float
) -> Verdict | None:
    """By what stands, the worst first; None if that asks for nothing."""
    acting = [one for one in remediations if one.acts]
    for incident in found:
        if incident.incident == "crash_loop" and not incident.evidence.get("nodes"):
            return _told(state, incident, "stop", incident.summary)
    for incident in found:
        for remediation in (*acting, USUAL):
            if matches(remediation, state.name, incident, "info" if remediation is USUAL else "critical"):
                return _by(remediation, state, incident, record, now)
    for incident in found:
        if incident.incident in _FOR_PEOPLE and (incident.severity == "critical" or incident.incident == "crash"):
            return _told(state, incident, "stop", incident.summary)
    late = bool(found) and found[0].incident == "hang"  # so far
    return _told(state, found[0], "wait", found[0].summary) if late else None


def _by(remediation: Remediation, state: RunState, incident: Incident, record: Record, now: float) -> Verdict:
    """What this remediation is for."""
    if any(course.open and course.run == state.name and not course.dry_run for course in record.courses):
        return _told(state, incident, "wait", f"remediation {remediation.name} is at work: {incident.summary}")
    hung_at = incident.since + incident.evidence.get("budget_seconds", 0.0)  # late is no hang yet
    left = max(incident.opened_at, hung_at) + remediation.after - now
    if incident.incident != "crash" and left > 0:  # it may go on yet
        return _told(state, incident, "wait", f"in {duration(left)} it has lasted long enough: {incident.summary}")
    before = _same_before(state, incident, since_checkpoint=True)
    actions, gave_up = choice(remediation, state, record, before)
    if gave_up:
        why = f"it came {before + 1} times without a new checkpoint" if before else "no restart brought a checkpoint"
        return _told(state, incident, "stop", f"{why}: {incident.summary}")
    if RESTARTS.isdisjoint(kinds(actions)):
        return _told(state, incident, "stop", incident.summary)
    own: set[Any] = {*listed_nodes(state), *expand_some(state.job.nodes if state.job is not None else "")}
    own = own or {*incident.evidence.get("nodes", ()), incident.evidence.get("node")}  # no list: whom the log names
    return _told(state, incident, "restart", incident.summary, sorted(named_nodes(incident, own)))


def _told(
    state: RunState, incident: Incident, verdict: Literal["wait", "restart", "stop"], reason: str,
    exclude: Sequence[str] = (),
) -> Verdict:  # fmt: skip
    line = incident.evidence.get("line")
    return Verdict(
        run=state.name,
        verdict=verdict,
        reason=reason,
        exclude=list(exclude),
        evidence=[text for text in (line, state.launch.last_line) if isinstance(text, str) and text],
        since=state.unix(incident.since),
        checkpoint=incident.evidence.get("rollback_iteration", state.past.checkpoints.last_iteration),
        same_cause_before=_same_before(state, incident),
    )


def _same_before(state: RunState, incident: Incident, *, since_checkpoint: bool = False) -> int:
    """Earlier launches that ended of what this incident tells: of this failure, or hung where it is no crash."""
    cause = incident.evidence.get("failure", incident.incident)
    last = state.past.checkpoints.last_iteration
    return sum(end.failure == cause and (not since_checkpoint or end.checkpoint == last) for end in state.ends)
