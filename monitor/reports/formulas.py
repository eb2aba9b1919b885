"""The arithmetic of reports: days to the end, the pipeline's bubble. Pure."""

_DAY = 86400.0


def days(
    iterations: float | None, tokens: float | None, seconds: float | None, batch: int | None, sequence: int | None
) -> float | None:
    """Return the days for a number of iterations, else of tokens (seed 003: steps x sec / 86400). None: an input is
    missing.
    """
    if not iterations and tokens and batch and sequence:
        iterations = tokens / (batch * sequence)
    return iterations * seconds / _DAY if iterations and seconds else None


def micro_batches(batch: int | None, micro_batch: int | None, data_parallel: int | None) -> int | None:
    """Return the micro-batches of a pipeline per iteration. None: the batch is not divisible or a size is missing."""
    share = (micro_batch or 0) * (data_parallel or 0)
    return batch // share if batch and share > 0 and batch >= share and batch % share == 0 else None


def bubble(pipeline: int, micro: int) -> float:
    """Return the share of an iteration in which a stage waits: (p - 1) / (m + p - 1) without interleaving."""
    return (pipeline - 1) / (micro + pipeline - 1)
