"""The advice for a run: wait, restart it, stop it, or nothing. Pure.

It follows the configured remediations, whether they are dry runs or not: the program that asks acts by itself. Where no
remediation is for an incident, `USUAL` is: what a restart may cure is restarted, a hang after ten minutes. A failure of
the program itself, and one that came three times without a new checkpoint, is stopped.
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
"""Where no remediation is configured. An unknown cause is tried again."""
_FOR_PEOPLE: Final = frozenset({"crash", "crash_loop", "nan_loss", "divergence"})
"""Where no remediation is for them, a critical one stops the run: the next attempt would end in the same way."""
_MOST_NAMED: Final = 2  # nodes: where the log names more, none of them is the cause


def matches(remediation: Remediation, run: str, incident: OpenIncident, least: Severity = "critical") -> bool:
    """Is the remediation for this incident? An end that somebody planned is `info`: it is left alone."""
    return (
        incident.incident in remediation.incidents
        and RANK[incident.severity] >= RANK[least]
        and (not remediation.failures or incident.incident != "crash" or incident.failure in remediation.failures)
        and (not remediation.runs or any(fnmatchcase(run, pattern) for pattern in remediation.runs))
    )


def actions_of(remediation: Remediation, restarts: int) -> tuple[Sequence[Action], bool]:
    """Its actions, and whether it gives up after so many `restarts` without a new checkpoint: then without a restart; a
    job that it would requeue is cancelled.
    """
    if RESTARTS.isdisjoint(kinds(remediation.actions)) or restarts < remediation.attempts:
        return remediation.actions, False
    kept = [action for action in remediation.actions if action.type not in RESTARTS]
    return [*kept, Action(type="cancel")] if "requeue" in kinds(remediation.actions) else kept, True


def named_nodes(named: Iterable[str], own: set[str]) -> set[str]:
    """Those of the job's `own` nodes that are named; none where too many are. A domain is left out where the job's list
    has none.
    """
    names = {name if name in own else name.partition(".")[0] for name in named} & own
    return names if len(names) <= _MOST_NAMED else set()


def opened(state: RunState, incident: Incident) -> OpenIncident:
    """An incident as the API shows it."""
    evidence = incident.evidence
    nodes = evidence.get("nodes")
    names = [*(nodes if isinstance(nodes, list) else ()), evidence.get("node")]
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
    """The advice at the instant `now`. `archived`: the log was old when it was opened; `at_work`: the remediation that
    acts on the run.
    """
    found = sorted(incidents, key=lambda one: (-RANK[one.severity], one.opened_at))
    none = Advice(state.name, exclude=[], checkpoint=state.learned.checkpoints.last_iteration)
    if state.attempt.phase == "finished":
        return replace(none, reason="the training has finished")
    if (advice := _of_incidents(state, found, remediations, at_work, now)) is not None:
        return advice
    if state.attempt.phase == "crashed" and not historical:
        return replace(none, advice="wait", reason="the attempt has ended: its cause is known in some seconds")
    why = found[0].summary if found else "nothing is wrong"
    if state.lost or historical:
        why = "its log cannot be read" if state.lost else "its log was old when the monitor first saw it"
    return replace(none, reason=why)


def _of_incidents(
    state: RunState, found: Sequence[Incident], remediations: Sequence[Remediation], at_work: str, now: float
) -> Advice | None:
    """By the open incidents, the worst first; None if they ask for nothing."""
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
    late = bool(found) and found[0].incident == "hang"  # so far
    return _advice(state, found[0], "wait", found[0].summary) if late else None


def _by(remediation: Remediation, state: RunState, incident: Incident, at_work: str, now: float) -> Advice:
    """What this remediation is for."""
    if at_work:
        return _advice(state, incident, "wait", f"remediation {at_work} is at work: {incident.summary}")
    hung_at = incident.since + incident.evidence.get("budget_seconds", 0.0)  # late is no hang yet
    left = max(incident.opened_at, hung_at) + remediation.after - now
    if incident.incident != "crash" and left > 0:  # it may go on yet
        return _advice(state, incident, "wait", f"in {duration(left)} it has lasted long enough: {incident.summary}")
    before = _same_before(state, incident, since_checkpoint=True)
    actions, gave_up = actions_of(remediation, before)
    if gave_up:
        why = f"it came {before + 1} times without a new checkpoint"
        return _advice(state, incident, "stop", f"{why}: {incident.summary}")
    if RESTARTS.isdisjoint(kinds(actions)):
        return _advice(state, incident, "stop", incident.summary)
    names = opened(state, incident).nodes
    own = {*listed_nodes(state), *expand_some(state.job.nodes if state.job is not None else "")}
    exclude = named_nodes(names, own or set(names))  # no list: those that the log names
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
    """Earlier attempts that ended for this cause, or hung where it is no crash."""
    cause = incident.evidence.get("failure", incident.incident)
    last = state.learned.checkpoints.last_iteration
    return sum(end.failure == cause and (not since_checkpoint or end.checkpoint == last) for end in state.ends)
