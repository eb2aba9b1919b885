"""How much data a run has trained on by an iteration: what charts are drawn against. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Consumed:
    """Samples and tokens up to an iteration: as the log prints them, else counted on by batch size and length.

    Counted on means: what was known of the iteration before, and the iterations since then at the batch size of now.
    Before the first iteration that was read, that batch size is taken to have been the same. A launch that goes back
    takes off again what it will compute anew.
    """

    iteration: int = 0
    samples: int | None = None
    tokens: int | None = None

    def take(
        self, iteration: int, samples: int | None, tokens: int | None, batch: int | None, length: int | None
    ) -> tuple[int | None, int | None]:
        """(samples, tokens) by this iteration; the log prints `samples` and `tokens`, or None."""
        before = self.samples
        if samples is None and batch:
            samples = iteration * batch if before is None else before + (iteration - self.iteration) * batch
        if tokens is None and samples is not None and length:
            if before is None or self.tokens is None:
                tokens = samples * length
            else:
                tokens = self.tokens + (samples - before) * length
        self.iteration, self.samples, self.tokens = iteration, samples, tokens
        return samples, tokens
