"""A detector's own memory of a run: a dataclass of plain values, kept in the run's state and saved with it."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from monitor.run.state import RunState

T = TypeVar("T")


def recall(state: RunState, name: str, kind: type[T]) -> T:
    """The memory called `name`, begun empty where there is none. What another version saved and no longer fits is
    begun anew: it is learned from the log again.
    """
    known = state.memory_of.get(name)
    if type(known) is kind:
        return known
    fresh: T
    try:
        fresh = kind() if known is None else msgspec.convert(known, kind)
    except msgspec.ValidationError:
        fresh = kind()
    state.memory_of[name] = fresh
    return fresh
