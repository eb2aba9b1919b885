"""A run as plain data: what the page and the API show."""

from __future__ import annotations

from typing import Any

from monitor.detectors import hang, memory_pressure
from monitor.detectors.hang import HangSettings
from monitor.metrics import View
from monitor.run import derived, goodput
from monitor.run.job import page as job_page


def page_of(view: View, settings: HangSettings) -> dict[str, Any]:
    """The figures of one run; a value is None where the log printed nothing. Instants are Unix seconds."""
    state = view.state
    latest = state.latest
    computed = derived.computed_tflops(state)
    mfu, hfu = derived.utilisation(state, view.peak_tflops)
    printed = derived.printed_tflops(state)
    tflops = printed if printed is not None else computed[1] if computed else None
    return {
        "run": state.name,
        "state": view.run_state,
        "phase": state.phase,
        "iteration": latest.iteration,
        "train_iterations": state.train_iterations,
        "seconds_per_iteration": derived.seconds_per_iteration(state),
        "baseline_seconds": state.pace.baseline,
        "baseline_band": state.pace.band,
        "samples_per_second": derived.samples_per_second(state),
        "tokens_per_second": derived.tokens_per_second(state),
        "tflops": tflops,
        "tflops_computed": computed[1] if computed else None,
        "tflops_formula": state.tflops_formula or (computed[0] if computed else None),
        "mfu": mfu,
        "hfu": hfu,
        "lm_loss": latest.lm_loss,
        "grad_norm": latest.grad_norm,
        "learning_rate": latest.learning_rate,
        "loss_scale": latest.loss_scale,
        "global_batch_size": derived.batch_size(state),
        "consumed_samples": latest.consumed_samples,
        "consumed_tokens": latest.consumed_tokens,
        "validation_loss": {name: result.loss for name, result in state.validations.items()},
        "progress_at": state.unix(state.progress_at),
        "budget_seconds": hang.budget(state, settings).seconds if hang.watched(state) else None,
        "hang_deadline": view.hang_deadline,
        "eta": derived.eta(state),
        "last_checkpoint_iteration": state.checkpoints.last_iteration,
        "checkpoint_save_seconds": state.checkpoints.save_seconds,
        "at_risk_seconds": derived.at_risk_seconds(state),
        "restarts": state.restarts,
        "lost_iterations": state.lost_iterations_total,
        "lost_seconds": sum(state.lost_seconds_total.values()),
        "unplanned_restarts": state.unplanned_ends,
        "mean_time_between_failures_seconds": goodput.mean_time_between_failures_seconds(state),
        "advised_save_interval_seconds": goodput.advised_save_interval(state),
        "effective_training_time_ratio": derived.effective_ratio(state),
        "skipped_iterations": state.skipped_iterations_total,
        "overflows": state.overflows_total,
        "max_memory_bytes": state.memory.max_reserved or state.memory.max_allocated,
        "gpu_memory_capacity_bytes": memory_pressure.device_bytes(state),
        "topology": {name: value for name, value in state.topology.labels().items() if value},
        "environment": dict(state.environment),
        "software": dict(state.software),
        "job": job_page(state),
        "actions": list(view.actions),
        "failure": f"{state.failure.failure}: {state.failure.message}" if state.failure else None,
        "sources": list(state.sources),
        "last_line": state.last_line,
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
            }
            for incident in view.book.open.values()
        ],
        "history": [item.to_json() for item in view.book.history[-20:]],
    }
