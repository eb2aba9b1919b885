"""Decides the advice for a run: wait, restart, stop or none. Pure.

The advice follows the configured remediations, dry runs included, because the program that asks acts by itself. Without
a remediation for an incident, `USUAL` applies: restart what a restart may cure, a hang after ten minutes. The advice is
`stop` for a failure of the program itself, and for a failure that came three times without a new checkpoint.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from msgspec.structs import replace

from megatron_monitor.advice import Advice, OpenIncident
from megatron_monitor.config.remediations import RESTARTS, Action, Remediation, kinds
from megatron_monitor.detectors.base import RANK, Severity, duration
from megatron_monitor.incidents import Incident
from megatron_monitor.nodes.hostlist import is_node_name
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
"""The remediation without configuration. An unknown cause is retried."""
_FOR_PEOPLE: Final = frozenset({"crash", "crash_loop", "nan_loss", "divergence"})
"""Critical incidents that stop a run without a remediation for them: the next attempt would fail in the same way."""
_MAX_CAUSES: Final = 2  # nodes: if the log names more, none of them is taken for the cause


def matches(remediation: Remediation, run: str, incident: OpenIncident, least: Severity = "critical") -> bool:
    """Return True if the remediation applies to this incident. A planned end is `info` and does not match."""
    return (
        incident.incident in remediation.incidents
        and RANK[incident.severity] >= RANK[least]
        and (not remediation.failures or incident.incident != "crash" or incident.failure in remediation.failures)
        and (not remediation.runs or any(fnmatchcase(run, pattern) for pattern in remediation.runs))
    )


def actions_of(remediation: Remediation, restarts: int) -> tuple[Sequence[Action], bool]:
    """Return (actions, whether it gives up) after so many `restarts` without a new checkpoint.

    A remediation that gives up does not restart: it cancels a job that it would otherwise requeue.
    """
    if RESTARTS.isdisjoint(kinds(remediation.actions)) or restarts < remediation.attempts:
        return remediation.actions, False
    kept = [action for action in remediation.actions if action.type not in RESTARTS]
    return [*kept, Action(type="cancel")] if "requeue" in kinds(remediation.actions) else kept, True


def named_nodes(named: Iterable[str], own: set[str]) -> set[str]:
    """Return the named nodes among the job's `own` nodes; none if too many are named.

    A domain is removed if the job's list has names without a domain.
    """
    names = {name if name in own else name.partition(".")[0] for name in named} & own
    return names if len(names) <= _MAX_CAUSES else set()


def opened(state: RunState, incident: Incident) -> OpenIncident:
    """Return an incident in the form of the API."""
    evidence = incident.evidence
    names = evidence.get("nodes", ())
    return OpenIncident(
        id=f"{incident.event} {incident.incident} {incident.attempt}",
        incident=incident.incident,
        severity=incident.severity,
        since=incident.since + state.wall_offset,
        attempt=evidence.get("attempt", incident.attempt),
        failure=str(evidence.get("failure", "")),
        nodes=[name for name in names if isinstance(name, str) and is_node_name(name)],
    )


def advice_of(
    state: RunState, incidents: Iterable[Incident], remediations: Sequence[Remediation], now: float,
    *, historical: bool = False, at_work: str = "",
) -> Advice:  # fmt: skip
    """Return the advice at the instant `now`.

    `historical`: the log was old when it was opened. `at_work`: the remediation that is acting on the run.
    """
    found = sorted(incidents, key=lambda one: (-RANK[one.severity], one.opened_at))
    none = Advice(state.name, exclude=[], checkpoint=state.learned.checkpoints.last_iteration)
    if state.attempt.phase == "finished":
        return replace(none, reason="the training has finished")
    if (advice := _of_incidents(state, found, remediations, at_work, now)) is not None:
        return advice
    if state.attempt.phase == "crashed" and not historical:
        return replace(none, advice="wait", reason="the attempt has ended: its cause will be known in a few seconds")
    why = found[0].summary if found else "nothing is wrong"
    if state.lost or historical:
        why = "its log cannot be read" if state.lost else "its log was old when the monitor first read it"
    return replace(none, reason=why)


def _of_incidents(
    state: RunState, found: Sequence[Incident], remediations: Sequence[Remediation], at_work: str, now: float
) -> Advice | None:
    """Return the advice for the open incidents, the worst first; None if they need no action."""
    acting = [one for one in remediations if one.acts]
    for incident in found:
        if incident.incident == "crash_loop" and not incident.evidence.get("nodes"):
            return _advice(state, incident, "stop", incident.summary)
    for incident in (one for one in found if not one.display_only):
        for remediation in (*acting, USUAL):
            least: Severity = "info" if remediation is USUAL else "critical"
            if matches(remediation, state.name, opened(state, incident), least):
                return _by(remediation, state, incident, at_work, now)
    for incident in found:
        if incident.incident in _FOR_PEOPLE and (incident.severity == "critical" or incident.incident == "crash"):
            return _advice(state, incident, "stop", incident.summary)
    late = bool(found) and found[0].incident == "hang"
    return _advice(state, found[0], "wait", found[0].summary) if late else None


def _by(remediation: Remediation, state: RunState, incident: Incident, at_work: str, now: float) -> Advice:
    """Return the advice that this remediation implies."""
    if at_work:
        return _advice(state, incident, "wait", f"remediation {at_work} is under way: {incident.summary}")
    hung_at = incident.since + incident.evidence.get("timeout_seconds", 0.0)  # a late run is not a hang yet
    left = max(incident.opened_at, hung_at) + remediation.after - now
    if incident.incident != "crash" and left > 0:  # the run may still continue
        due = "a restart is advised" if remediation is USUAL else f"remediation {remediation.name} is due"
        return _advice(state, incident, "wait", f"{due} in {duration(left)}: {incident.summary}")
    before = _same_before(state, incident, since_checkpoint=True)
    actions, gave_up = actions_of(remediation, before)
    if gave_up:
        why = f"it occurred {before + 1} times without a new checkpoint"
        return _advice(state, incident, "stop", f"{why}: {incident.summary}")
    if RESTARTS.isdisjoint(kinds(actions)):
        return _advice(state, incident, "stop", incident.summary)
    names = opened(state, incident).nodes
    own = {*listed_nodes(state), *expand_some(state.job.nodes if state.job is not None else "")}
    exclude = named_nodes(names, own or set(names))  # without a node list, the log's names count
    return _advice(state, incident, "restart", incident.summary, sorted(exclude))


def _advice(
    state: RunState, incident: Incident, advice: Literal["wait", "restart", "stop"], reason: str,
    exclude: Sequence[str] = (),
) -> Advice:  # fmt: skip
    line: Any = incident.evidence.get("line")
    return Advice(
        run=state.name,
        advice=advice,
        reason=reason,
        exclude=list(exclude),
        evidence=[text for text in (line, state.attempt.last_line) if isinstance(text, str) and text],
        since=state.unix(incident.since),
        checkpoint=incident.evidence.get("rollback_iteration", state.learned.checkpoints.last_iteration),
        same_cause_before=_same_before(state, incident),
    )


def _same_before(state: RunState, incident: Incident, *, since_checkpoint: bool = False) -> int:
    """Return the number of earlier attempts that ended for the same cause, or hung."""
    cause = incident.evidence.get("failure", incident.incident)
    last = state.learned.checkpoints.last_iteration
    return sum(end.failure == cause and (not since_checkpoint or end.checkpoint == last) for end in state.ends)
