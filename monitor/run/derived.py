"""Figures that follow from a run's state: recomputed rates, FLOPs, utilisation, ETA, work at risk, goodput.

Recompute, keep the printed value beside it: early BigScience lines print samples per second 1000 times too small.
Goodput: docs/development/incident-record.md (Kokolis et al., arXiv 2410.21680; Young 1974, Daly 2006).
"""

import math

from megatron_monitor.model import flops, gpus
from megatron_monitor.run.ending import PLANNED
from megatron_monitor.run.phases import ENDED, STATE_OF_PHASE
from megatron_monitor.run.state import RunState


def batch_size(state: RunState) -> int | None:
    """Samples per iteration now."""
    attempt = state.attempt
    return attempt.latest.global_batch_size or attempt.topology.global_batch_size


def sequence_length(state: RunState) -> int | None:
    """Tokens per sample now (curriculum learning changes it)."""
    attempt = state.attempt
    return attempt.latest.sequence_length or attempt.topology.sequence_length


def samples_per_second(state: RunState) -> float | None:
    """Batch size over pure time; the printed figure where no batch size is known (gpt-neox, DeepSpeed alone)."""
    batch, seconds = batch_size(state), state.attempt.pure_seconds
    if batch and seconds:
        return batch / seconds
    return state.attempt.latest.samples_per_second


def tokens_per_second(state: RunState) -> float | None:
    """Over all GPUs; the printed figure where batch size or length is unknown."""
    attempt = state.attempt
    samples, length = samples_per_second(state), sequence_length(state)
    if samples is not None and length:
        return samples * length
    latest, world = attempt.latest, attempt.topology.world_size
    if latest.tokens_per_second is None and latest.tokens_per_second_per_gpu is not None and world:
        return latest.tokens_per_second_per_gpu * world
    return latest.tokens_per_second


def computed_tflops(state: RunState) -> tuple[str, float] | None:
    """(formula, TFLOP/s per GPU) by the formula that the run's own program uses, where the inputs are known."""
    attempt = state.attempt
    seconds = state.attempt.pure_seconds
    if not seconds:
        return None
    return flops.computed_tflops(
        attempt.topology,
        seconds,
        batch_size(state),
        sequence_length(state),
        attempt.dialect,
        attempt.tflops_formula,
        state.log_clock_first,
    )


def printed_tflops(state: RunState) -> float | None:
    """The newest printed figure: of the iteration's own line, else of a line of its own (`Effective Tera Flops`)."""
    attempt = state.attempt
    return attempt.latest.tflops if attempt.latest.tflops is not None else attempt.effective_tflops


def peak_tflops(state: RunState, configured: float | None) -> float | None:
    """Peak of one GPU: as configured, else by the name that the log tells, else unknown."""
    attempt = state.attempt
    if configured is not None:
        return configured
    return gpus.peak_of_rank(attempt.topology.gpu_name, attempt.topology.dtype)


def utilisation(state: RunState, configured_peak: float | None) -> tuple[float | None, float | None]:
    """(MFU, HFU): model FLOPs without, hardware FLOPs with recomputation, over the peak; printed ratios where given."""
    attempt = state.attempt
    mfu, hfu = attempt.latest.mfu, attempt.latest.hfu
    peak, seconds = peak_tflops(state, configured_peak), state.attempt.pure_seconds
    model, hardware = flops.utilisation(attempt.topology, seconds, batch_size(state), sequence_length(state), peak)
    return model if mfu is None else mfu, hardware if hfu is None else hfu


_COVERED = 0.9  # of the productive time: a clock that covers less does not tell the wall time (one stamp at the start)
_COPIED = 86400.0  # seconds by which a log is older than its reading: nobody knows what became of the run since


def effective_ratio(state: RunState, now: float | None = None) -> float | None:
    """Goodput, 0 to 1: productive time over wall time, from the run's first line to its last one by the log's clock.
    `now`: an instant, for a run that is watched: until then, unless it has finished, so that a hang and a crash count
    as lost while they last. None where nobody knows how much time has passed.
    """
    spans: list[float] = []
    if state.log_clock_first is not None and state.log_clock_last is not None:
        spans.append(state.log_clock_last - state.log_clock_first)
    if now is not None and state.live and state.first_at is not None:
        spans.append(state.updated_at - state.first_at)
        if not (state.lost or state.attempt.phase == "finished"):
            copied = state.read_at - state.updated_at > _COPIED
            last = state.read_at if copied else state.updated_at
            until = now if state.coverage.until is None else min(now, state.coverage.until)
            spans = [span + max(0.0, until - last) for span in spans]
    wall, productive = max(spans, default=0.0), state.productive_seconds
    if productive <= 0 or wall < _COVERED * productive:
        return None
    return min(1.0, productive / wall)


def eta(state: RunState) -> float | None:
    """Unix seconds when the run ends at its real efficiency, restarts and interruptions counted; None if unknown."""
    attempt = state.attempt
    last, total, baseline = attempt.latest.iteration, attempt.train_iterations, attempt.pace.baseline
    if last is None or total is None or baseline is None or state.progress_at is None:
        return None
    if attempt.phase in ENDED or not state.live:
        return None
    remaining = max(0, total - last) * baseline / (effective_ratio(state, state.updated_at) or 1.0)
    return state.unix(state.progress_at + remaining)


def at_risk_seconds(state: RunState) -> float | None:
    """Work that a crash now would lose: iteration time since the last whole checkpoint; none once it has finished."""
    attempt = state.attempt
    if attempt.phase == "finished" or (attempt.phase == "exiting" and not state.live):
        return 0.0
    return attempt.seconds_since_checkpoint if attempt.iterations or state.iterations_total else None


def run_state(state: RunState, history: bool) -> str:
    """One of phases.RUN_STATES. `history`: the log was dead when first seen, nobody knows what became of the run."""
    attempt = state.attempt
    if attempt.phase == "crashed" and attempt.failure is not None and attempt.failure.failure == "stopped":
        return "stopped"
    if attempt.phase in ENDED:
        return STATE_OF_PHASE[attempt.phase]
    if attempt.phase == "exiting" and (history or not state.live):
        return "finished"
    if state.lost or history:
        return "lost"
    return "hung" if attempt.hung else STATE_OF_PHASE[attempt.phase]


def mean_time_between_failures_seconds(state: RunState) -> float | None:
    """Productive time over unplanned ends, the present one counted if it was one; None before the first."""
    attempt = state.attempt
    planned = attempt.failure is not None and attempt.failure.failure in PLANNED
    failures = state.unplanned_ends + (attempt.phase == "crashed" and not planned)
    return state.productive_seconds / failures if failures and state.productive_seconds > 0 else None


def advised_save_interval(state: RunState) -> float | None:
    """Seconds between saves that lose least: sqrt(2 x save time x MTBF), the first-order optimum of Young and Daly."""
    between, save = mean_time_between_failures_seconds(state), state.learned.checkpoints.save_seconds
    return math.sqrt(2 * save * between) if between is not None and save else None
