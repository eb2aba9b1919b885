"""Whether a dynamic loss scale has found its level: what loss_scale_collapse and overflow_storm both must know.

A loss scaler starts far too high (2^16 to 2^32) and halves at each step until one succeeds. That search is no finding,
at the start of a run or after a restart that did not load the scaler's state.
"""

from __future__ import annotations

from dataclasses import dataclass

from monitor.run.state import RunState

_CLEAN = 20  # iterations in a row without an overflow: the search has ended
_LONGEST = 60  # iterations of a launch in which a search may last: from 2^32 to 1 with hysteresis it takes 33


@dataclass(slots=True)
class Search:
    """The search of one launch."""

    attempt: int = -1
    last_bad: int = 0
    over: bool = False

    def on(self, state: RunState, bad: bool) -> bool:
        """Whether the scaler of this launch is still searching; `bad`: this line tells of an overflow."""
        attempt = state.attempt
        if self.attempt != attempt.number:
            self.attempt, self.over, self.last_bad = attempt.number, False, 0
        if self.over:
            return False
        done = attempt.iterations
        if bad:
            self.last_bad = done
        first_line = attempt.first_iteration == attempt.last_iteration  # it may tell of a hundred steps
        if not first_line and (done - self.last_bad >= _CLEAN or done > _LONGEST):
            self.over = True
        return not self.over
