"""Figures computed from a run's state: rates, FLOPs, utilisation, ETA, unsaved work, goodput.

Rates are recomputed, because early BigScience lines print samples per second 1000 times too small.
Goodput: docs/development/incident-record.md (Kokolis et al., arXiv 2410.21680; Young 1974, Daly 2006).
"""

import math

from megatron_monitor.model import flops, gpus
from megatron_monitor.run.ending import PLANNED
from megatron_monitor.run.phases import ENDED, STATE_OF_PHASE
from megatron_monitor.run.state import RunState


def batch_size(state: RunState) -> int | None:
    """Return the present samples per iteration."""
    attempt = state.attempt
    return attempt.latest.global_batch_size or attempt.topology.global_batch_size


def sequence_length(state: RunState) -> int | None:
    """Return the present tokens per sample. Curriculum learning changes them."""
    attempt = state.attempt
    return attempt.latest.sequence_length or attempt.topology.sequence_length


def samples_per_second(state: RunState) -> float | None:
    """Return batch size over net time; without a batch size the printed figure (gpt-neox, DeepSpeed only)."""
    batch, seconds = batch_size(state), state.attempt.pure_seconds
    if batch and seconds:
        return batch / seconds
    return state.attempt.latest.samples_per_second


def tokens_per_second(state: RunState) -> float | None:
    """Return tokens per second over all GPUs; the printed figure if batch size or sequence length is unknown."""
    attempt = state.attempt
    samples, length = samples_per_second(state), sequence_length(state)
    if samples is not None and length:
        return samples * length
    latest, world = attempt.latest, attempt.topology.world_size
    if latest.tokens_per_second is None and latest.tokens_per_second_per_gpu is not None and world:
        return latest.tokens_per_second_per_gpu * world
    return latest.tokens_per_second


def computed_tflops(state: RunState) -> tuple[str, float] | None:
    """Return (formula, TFLOP/s per GPU) by the program's own formula; None if inputs are unknown."""
    attempt = state.attempt
    seconds = state.attempt.pure_seconds
    if not seconds:
        return None
    return flops.computed_tflops(
        attempt.topology,
        seconds,
        batch_size(state),
        sequence_length(state),
        attempt.format,
        attempt.tflops_formula,
        state.log_clock_first,
    )


def printed_tflops(state: RunState) -> float | None:
    """Return the last printed TFLOPs: of the iteration's line, or of a separate line (`Effective Tera Flops`)."""
    attempt = state.attempt
    return attempt.latest.tflops if attempt.latest.tflops is not None else attempt.effective_tflops


def tflops_of_step(state: RunState) -> float | None:
    """Return the TFLOPs of the last step: as printed, or computed over its own time."""
    attempt, seconds = state.attempt, state.attempt.step_seconds
    printed = printed_tflops(state)
    if printed is not None or not (seconds and attempt.pure_seconds):
        return printed
    computed = computed_tflops(state)
    return computed[1] * attempt.pure_seconds / seconds if computed else None


def peak_tflops(state: RunState, configured: float | None) -> float | None:
    """Return the peak of one GPU: configured, or by the GPU's name in the log; None if unknown."""
    attempt = state.attempt
    if configured is not None:
        return configured
    return gpus.peak_of_rank(attempt.topology.gpu_name, attempt.topology.dtype)


def mfu(state: RunState, configured_peak: float | None) -> float | None:
    """Return the MFU, as printed or else computed: the model's FLOPs over the peak."""
    attempt = state.attempt
    if attempt.latest.mfu is not None:
        return attempt.latest.mfu
    peak = peak_tflops(state, configured_peak)
    return flops.mfu(attempt.topology, attempt.pure_seconds, batch_size(state), sequence_length(state), peak)


_MIN_COVERED = 0.9  # of the productive time: stamps that cover less do not show the wall time
_COPIED = 86400.0  # seconds: a log that is older when it is read is a copy, and the time since is unknown


def goodput(state: RunState, now: float | None = None) -> float | None:
    """Return the goodput, 0 to 1: productive time over wall time by the log's clock, from the first to the last line.

    `now`: for a live, unfinished run the wall time ends at this instant, so that an open hang or crash counts as lost.
    None if the wall time is unknown.
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
    if productive <= 0 or wall < _MIN_COVERED * productive:
        return None
    return min(1.0, productive / wall)


def eta(state: RunState) -> float | None:
    """Return the Unix seconds at which the run will end at its present goodput; None if unknown."""
    attempt = state.attempt
    last, total, baseline = attempt.latest.iteration, attempt.train_iterations, attempt.pace.baseline
    if last is None or total is None or baseline is None or state.progress_at is None:
        return None
    if attempt.phase in ENDED or not state.live:
        return None
    remaining = max(0, total - last) * baseline / (goodput(state, state.updated_at) or 1.0)
    return state.unix(state.progress_at + remaining)


def unsaved_progress_seconds(state: RunState) -> float | None:
    """Return the iteration time since the last complete checkpoint, which a crash would lose; 0 after the end."""
    attempt = state.attempt
    if attempt.phase == "finished" or (attempt.phase == "exiting" and not state.live and not attempt.ending.partial):
        return 0.0
    return attempt.seconds_since_checkpoint if attempt.iterations or state.iterations_total else None


def run_state(state: RunState, history: bool) -> str:
    """Return one of phases.RUN_STATES. `history`: the log was old when it was opened."""
    attempt = state.attempt
    if attempt.phase == "crashed" and attempt.failure is not None and attempt.failure.failure == "stopped":
        return "stopped"
    if attempt.phase in ENDED:
        return STATE_OF_PHASE[attempt.phase]
    if attempt.phase == "exiting" and (history or not state.live) and not attempt.ending.partial:
        return "finished"
    if state.lost or history:
        return "lost"
    return "hung" if attempt.hung else STATE_OF_PHASE[attempt.phase]


def mean_time_between_failures_seconds(state: RunState) -> float | None:
    """Return productive time over unplanned ends, a present one included; None before the first."""
    attempt = state.attempt
    planned = attempt.failure is not None and attempt.failure.failure in PLANNED
    failures = state.unplanned_ends + (attempt.phase == "crashed" and not planned)
    return state.productive_seconds / failures if failures and state.productive_seconds > 0 else None


def advised_save_interval(state: RunState) -> float | None:
    """Return the best seconds between saves: sqrt(2 x save time x MTBF), the first-order optimum of Young and Daly."""
    between, save = mean_time_between_failures_seconds(state), state.learned.checkpoints.save_seconds
    return math.sqrt(2 * save * between) if between is not None and save else None
