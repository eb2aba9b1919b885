"""How long and how much: days to an end, aggregate PetaFLOPs, pipeline bubble, scaling efficiency. Pure arithmetic."""

from __future__ import annotations

_DAY = 86400.0


def days_for_iterations(iterations: float, seconds: float) -> float:
    """Days that `iterations` of `seconds` each take (iterations x seconds / 86400)."""
    return iterations * seconds / _DAY


def days_for_tokens(tokens: float, batch: int, sequence: int, seconds: float) -> float:
    """Days until so many tokens were seen, at `batch` samples of `sequence` tokens every `seconds`."""
    return days_for_iterations(tokens / (batch * sequence), seconds)


def days_for_parameters(tokens: float, parameters: float, tflops: float, gpus: int) -> float:
    """Days by Narayanan's rule 8TP / (nX) for a model of `parameters` with checkpointing, before anything is run."""
    return 8 * tokens * parameters / (gpus * tflops * 1e12 * _DAY)


def aggregate_petaflops(tflops: float, units: int) -> float:
    """TFLOP/s of one unit x units / 1024, a unit is what the figure belongs to (GPU, CPU node)."""
    return tflops * units / 1024


def micro_batches(batch: int, micro_batch: int, data_parallel: int) -> int | None:
    """Micro-batches that a pipeline takes per iteration; None where the batch does not divide."""
    share = micro_batch * data_parallel
    return batch // share if share > 0 and batch >= share and batch % share == 0 else None


def bubble(pipeline: int, micro: int) -> float:
    """Share of an iteration in which a stage waits: (p - 1) / (m + p - 1) of the schedule without interleaving."""
    return (pipeline - 1) / (micro + pipeline - 1)


def scaled_seconds(seconds: float, pipeline: int, micro: int, other_micro: int) -> float:
    """Seconds per iteration at another count of micro-batches: the filling of the pipeline stays the same."""
    return seconds * (other_micro + pipeline - 1) / (micro + pipeline - 1)


def scaling_efficiency(rate: float, gpus: int, base_rate: float, base_gpus: int) -> float:
    """Work per GPU against the base's: 1 is linear. Rates are samples or tokens per second."""
    return (rate / gpus) / (base_rate / base_gpus)
