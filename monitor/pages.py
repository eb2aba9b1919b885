"""A run as plain data, for the page and the API."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from megatron_monitor.causes import cause_of, failure_of
from megatron_monitor.detectors import hang, memory_pressure, slowdown
from megatron_monitor.detectors.base import RANK
from megatron_monitor.detectors.hang import HangSettings
from megatron_monitor.detectors.slowdown.messages import normal
from megatron_monitor.incidents import Incident, IncidentBook, Transition
from megatron_monitor.metrics import RunView
from megatron_monitor.run import derived
from megatron_monitor.run.ending import PLANNED
from megatron_monitor.run.job import page as job_page
from megatron_monitor.run.state import RunState


def page_of(view: RunView, settings: HangSettings, runbook_url: str | None = None) -> dict[str, Any]:
    """Return the figures of one run. A value is None if the log does not have it. Instants are Unix seconds."""
    state = view.state
    latest = state.attempt.latest
    computed = derived.computed_tflops(state)
    mfu = derived.mfu(state, view.peak_tflops)
    printed = derived.printed_tflops(state)
    tflops = printed if printed is not None else computed[1] if computed else None
    return {
        "run": state.name,
        "state": view.run_state,
        "phase": state.attempt.phase,
        "iteration": latest.iteration,
        "train_iterations": state.attempt.train_iterations,
        "seconds_per_iteration": state.attempt.pure_seconds,
        "baseline_seconds": state.attempt.pace.baseline,
        "normal_seconds": normal(state),
        "slowdown_ratio": slowdown.ratio(state),
        "baseline_band": state.attempt.pace.band,
        "samples_per_second": derived.samples_per_second(state),
        "tokens_per_second": derived.tokens_per_second(state),
        "tflops": tflops,
        "tflops_formula": state.attempt.tflops_formula or (computed[0] if computed else None),
        "mfu": mfu,
        "lm_loss": latest.lm_loss,
        "losses": dict(latest.losses),
        "grad_norm": latest.grad_norm,
        "learning_rate": latest.learning_rate,
        "loss_scale": latest.loss_scale,
        "global_batch_size": derived.batch_size(state),
        "consumed_tokens": latest.consumed_tokens or state.history.consumed.tokens,
        "validation_loss": {name: result.loss for name, result in state.attempt.validations.items()},
        "progress_at": _progressed(state),
        "timeout_seconds": hang.progress_timeout(state, settings).seconds if hang.watched(state) else None,
        "eta": derived.eta(state),
        "last_checkpoint_iteration": state.learned.checkpoints.last_iteration,
        "unsaved_progress_seconds": derived.unsaved_progress_seconds(state),
        "restarts": state.restarts,
        "lost_iterations": state.lost_iterations_total,
        "goodput": derived.goodput(state, view.now),
        "max_memory_bytes": state.attempt.memory.max_reserved or state.attempt.memory.max_allocated,
        "gpu_memory_capacity_bytes": memory_pressure.device_bytes(state),
        "topology": {name: value for name, value in state.attempt.topology.labels().items() if value},
        "environment": dict(state.attempt.environment),
        "arguments": state.attempt.arguments,
        "software": dict(state.attempt.software),
        "job": job_page(state),
        "identity": _identity(view),
        "actions": list(view.actions),
        "died": _died(state, runbook_url),
        "failure": f"{state.attempt.failure.failure}: {state.attempt.failure.message}"
        if state.attempt.failure
        else None,
        "sources": list(state.sources),
        "last_line": state.attempt.last_line,
        "incidents": [
            {
                "run": state.name,
                "incident": incident.incident,
                "severity": incident.severity,
                "since": state.unix(incident.since),
                "summary": incident.summary,
                "iteration": latest.iteration,
                "onset_iteration": incident.onset_iteration,
                "phase": incident.phase,
                "evidence": dict(incident.evidence),
                **_cause(incident, state.attempt.topology.world_size, runbook_url),
            }
            for incident in sorted(view.book.open.values(), key=lambda one: -RANK[one.severity])
        ],
        "watched": state.live,
        "history": [item.to_json() for item in transitions_of(state, view.book)[-20:]],
    }


def transitions_of(state: RunState, book: IncidentBook) -> Sequence[Transition]:
    """Return the incidents of a run, the oldest first. For a log that was read after its end, return the ends of its
    attempts, because nothing was detected while they ran.
    """
    return book.history if state.live or book.history else list(_ends(state))


def _ends(state: RunState) -> Iterator[Transition]:
    """Yield each crash, at its time in the log if there is one, and its end by the next attempt."""
    attempt, failure, phases = state.attempt, state.attempt.failure, state.history.phases
    ends = [(end.failure, end.message, end.last_iteration, end.at) for end in state.ends if end.crashed]
    if attempt.phase == "crashed" and failure is not None:
        ends.append((failure.failure, failure.message, attempt.latest.iteration, failure.at))
    times = [time for time, _, phase in phases if phase == "crashed"]
    if len(times) != len(ends):  # some are older than the stored ones
        times = [None] * len(ends)
    for number, ((kind, message, iteration, at), printed) in enumerate(zip(ends, times, strict=True), 1):
        last = Transition(
            incident="crash", severity="info" if kind in PLANNED else "critical", run=state.name, status="firing",
            summary=message or kind.replace("_", " "), iteration=iteration,
            time=at + state.wall_offset if printed is None else printed + state.history.zone,
        )  # fmt: skip
        yield last
        if number <= len(state.ends):
            yield replace(last, status="resolved", summary="the next attempt began")


def _identity(view: RunView) -> dict[str, Any]:
    """Return why the run is this job and these streams belong to it. Slurm's facts about the job are last."""
    job, identity = view.state.job, dict(view.identity)
    known = identity.get("job") or {}
    if identity and job is not None and known.get("id") in (job.id, job.array_id) and not known.get("believed"):
        identity["job"] = {**known, "why": "Slurm says that this file is its output", "believed": True}
    return identity


def _died(state: RunState, runbook_url: str | None) -> dict[str, str] | None:
    """Return the failure of a crashed run for a person on call. None: another state."""
    cause = failure_of(state)
    return None if cause is None else cause._asdict() | {"runbook_url": f"{runbook_url}#crash" if runbook_url else ""}


# Seconds by which a line's timestamp precedes its file's time: more than any zone, so the file was copied.
_COPIED = 86400.0


def _progressed(state: RunState) -> float | None:
    """Return the instant of the last progress. For a log that was not followed, its own clock is more reliable than the
    file's time, because the file may be a copy.
    """
    at, stamp = state.unix(state.progress_at), state.attempt.progress_clock
    if at is not None and stamp is not None and not state.live and at - stamp > _COPIED:
        return stamp
    return at


_SHOWN_ELSEWHERE = ("incident", "severity", "phase", "summary")


def _cause(incident: Incident, gpus: int | None, runbook_url: str | None) -> dict[str, Any]:
    """Return place, advice and link to the runbook, or None if nothing is known."""
    cause = cause_of(incident)
    section = incident.incident.replace("_", "-")
    return {
        **{name: text or None for name, text in cause._asdict().items() if name not in _SHOWN_ELSEWHERE},
        "advice": incident.evidence.get("advice") or cause.advice,
        "gpus": gpus,
        "runbook_url": f"{runbook_url}#{section}" if runbook_url else None,
    }
