"""How lines of a declared dialect count: steps told in samples or tokens, several programs that report the same steps,
a time that is measured and not printed, lines that come out of turn. Pure.
"""

from __future__ import annotations

from msgspec import structs

from monitor.run.state import RunState
from parsers.dialects import BY_NAME
from parsers.events import IterationLogged

_COPY_BEHIND = 2  # lines by which another program's report of the same step may lag, or lead


def in_iterations(state: RunState, event: IterationLogged) -> IterationLogged:
    """The line's iteration, where it counts samples or tokens. A program that counts steps under the same name shows by
    a number that no batch size divides.
    """
    launch = state.launch
    batch = event.global_batch_size or launch.topology.global_batch_size
    if event.in_tokens:
        each = (batch or 0) * (launch.topology.sequence_length or 0)
        return structs.replace(event, iteration=event.iteration // each) if each else event
    if not batch or launch.counts_steps or event.iteration % batch:
        launch.counts_steps = bool(batch)
        return event
    return structs.replace(event, iteration=event.iteration // batch, consumed_samples=event.iteration)


def is_beside(state: RunState, event: IterationLogged, source: str) -> bool:
    """Whether another program's line reports steps of this launch that its own lines report too: a progress bar beside
    a logger, MLPerf's log beside the trainer's. It counts where it is ahead of them by more than it may be.
    """
    if event.dialect in BY_NAME and state.launch.dialect in BY_NAME:
        return False  # two ages of Megatron's one line
    last, iteration = state.launch.last_iteration or 0, event.iteration
    author = f"{source} {event.dialect}"
    cursor = state.copies.cursors.get(author)
    before = cursor.last_iteration if cursor is not None else None
    if before is not None and iteration < before:
        return False  # it went back itself: a launch begins
    state.copies.moved(author, iteration, state.launch.number)
    interval = state.launch.log_interval or 1
    if iteration <= last:
        return before is not None or last - iteration <= _COPY_BEHIND * interval
    return before is not None and iteration - before > interval and iteration - last <= _COPY_BEHIND * interval


def measured(state: RunState, event: IterationLogged, clock: float | None) -> tuple[float | None, int | None]:
    """(seconds per iteration, iterations) by the time since the start that the line prints, else by its stamp, else by
    when it arrived.
    """
    launch = state.launch
    moment = event.elapsed_seconds if event.elapsed_seconds is not None else clock
    if moment is None:
        arrived = None if state.unheard else state.arrived
        lap = launch.arrivals.lap(event.iteration, arrived, disturbed=launch.impure)
    else:
        alone, stamped = launch.stopwatch.iteration == launch.last_iteration, event.elapsed_seconds is None
        lap = launch.stopwatch.lap(event.iteration, moment, disturbed=launch.impure, alone=alone, stamped=stamped)
    return lap if lap is not None else (None, None)


def take_interval(state: RunState, iteration: int, delta: int) -> None:
    """The iterations between two lines; of a declared dialect, whose lines may come out of turn, the usual number."""
    launch = state.launch
    attempt, known = launch, launch.log_interval
    if launch.dialect in BY_NAME or known is None or delta >= known or delta == attempt.last_delta:
        if attempt.iterations == 1 and delta > 1 and iteration == 2 * delta and launch.dialect not in BY_NAME:
            attempt.iterations += delta - 1  # the first line stood for as many
            state.iterations_total += delta - 1
        launch.log_interval = delta
    attempt.last_delta = delta
