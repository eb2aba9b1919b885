"""The wall clock jumps (NTP, an administrator, a machine that slept): every instant that was read off it moves along.

Law: what is kept are durations. A silence of 5 s before a jump of an hour is a silence of 5 s after it.
"""

from __future__ import annotations

from typing import Any, Final

from monitor.run.state import RunState

_INSTANTS: Final = (
    "phase_since", "progress_at", "first_at", "updated_at", "read_at", "overhead_until", "last_iteration_at",
)  # fmt: skip


def shift(state: RunState, seconds: float) -> None:
    """Move the instants of one run by `seconds`."""
    _move(state, _INSTANTS, seconds)
    _move(state.checkpoints, ("last_at", "started_at"), seconds)
    _move(state.buffering, ("burst_at",), seconds)
    if state.failure is not None:
        _move(state.failure, ("at",), seconds)
    state.phase_history[:] = [(at + seconds, phase) for at, phase in state.phase_history]


def _move(holder: Any, names: tuple[str, ...], seconds: float) -> None:
    for name in names:
        value = getattr(holder, name)
        if value:
            setattr(holder, name, value + seconds)
