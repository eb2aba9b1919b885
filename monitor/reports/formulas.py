"""The arithmetic of reports: days to an end, the pipeline's bubble. Pure."""

_DAY = 86400.0


def days(
    iterations: float | None, tokens: float | None, seconds: float | None, batch: int | None, sequence: int | None
) -> float | None:
    """Days to so many iterations, else so many tokens (seed 003: steps x sec / 86400); None where an input lacks."""
    if not iterations and tokens and batch and sequence:
        iterations = tokens / (batch * sequence)
    return iterations * seconds / _DAY if iterations and seconds else None


def micro_batches(batch: int | None, micro_batch: int | None, data_parallel: int | None) -> int | None:
    """Micro-batches that a pipeline takes per iteration; None where the batch does not divide, or a size lacks."""
    share = (micro_batch or 0) * (data_parallel or 0)
    return batch // share if batch and share > 0 and batch >= share and batch % share == 0 else None


def bubble(pipeline: int, micro: int) -> float:
    """Share of an iteration in which a stage waits: (p - 1) / (m + p - 1) of the schedule without interleaving."""
    return (pipeline - 1) / (micro + pipeline - 1)
