"""Lines that a launcher held back come in bursts: the silence before was no hang.

Source: docs/incident-record.md, "How logs behave", 5.
"""

from monitor.run.state import RunState

_RATIO = 0.25  # a line that arrives in under a quarter of the time its iterations took was held back
_EXPLAINED = 0.7  # a burst whose iterations sum to this share of the silence before it explains the silence


def watch_bursts(state: RunState, elapsed: float | None, delta: int, at: float) -> None:
    """A line of `delta` iterations of `elapsed` seconds came live at `at`, after that of `last_iteration_at`."""
    launch = state.launch
    if launch.watch.at is None or elapsed is None:
        return
    _watch(state, at - launch.watch.at - state.unheard, elapsed * delta)


def _watch(state: RunState, gap: float, took: float) -> None:
    burst = state.buffering
    if gap > _RATIO * took:
        burst.burst_iterations, burst.burst_seconds, burst.silence_before = 1, took, gap
        return
    burst.burst_iterations += 1
    burst.burst_seconds += took
    silence = burst.silence_before
    if burst.burst_iterations >= 3 and silence > 2 * took and burst.burst_seconds >= _EXPLAINED * silence:
        state.past.silences.hold(silence)
