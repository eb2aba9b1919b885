"""Proves `on_steps` of a detector against its `on_step` and `on_event`: the same memory, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from monitor.config import default_config
from monitor.detectors import DETECTORS
from monitor.run.fold import fold
from monitor.run.state import RunState
from monitor.run.steps import Steps
from parsers.events import IterationLogged, LogEvent

SOURCE = "a.log"


def steps_of(state: RunState, events: Sequence[IterationLogged], at: Sequence[float]) -> Steps:
    """The events as steps; the caller sees to it that they are calm after `state`."""
    assert state.log_interval is not None
    return Steps(
        [event.iteration for event in events],
        list(at),
        [event.seconds_per_iteration or 0.0 for event in events],
        [event.lm_loss or 0.0 for event in events],
        None if events[0].grad_norm is None else [event.grad_norm or 0.0 for event in events],
        None if events[0].consumed_samples is None else [event.consumed_samples or 0 for event in events],
        state.latest.loss_scale,
        state.log_interval,
        None if events[0].learning_rate is None else [event.learning_rate or 0.0 for event in events],
    )


def see(state: RunState, event: IterationLogged, at: float, names: Sequence[str]) -> dict[str, bool]:
    """Fold one line and let these detectors see it: which of them answered True."""
    settings = default_config().detectors
    fold(state, LogEvent(1, "test", event, "line"), SOURCE, at, True)
    answers = {}
    for name in names:
        detector, own = DETECTORS[name], getattr(settings, name)
        answers[name] = detector.on_step is not None and detector.on_step(state, own)
        if detector.on_event is not None and IterationLogged in detector.listens:
            answers[name] = detector.on_event(state, event, own) or answers[name]
    return answers


def foresee(state: RunState, events: Sequence[IterationLogged], at: Sequence[float], names: Sequence[str]) -> int:
    """Check each named detector on these steps after `state` (which stays as it is): least rows that they foresee."""
    settings = default_config().detectors
    steps, before = steps_of(state, events, at), repr(state)
    one = copy.deepcopy(state)
    answers = [see(one, event, when, names) for event, when in zip(events, at, strict=True)]
    least = len(steps)
    for name in names:
        on_steps, own = DETECTORS[name].on_steps, getattr(settings, name)
        assert on_steps is not None
        calm = next((row for row, answer in enumerate(answers) if answer[name]), len(steps))
        known = name in state.memory_of
        found = on_steps(state, steps, own)
        if 0 < found.rows < len(steps):
            again = on_steps(state, steps.first(found.rows), own)
            assert again.rows == found.rows, f"{name} foresees fewer of its own rows"
        if not known:  # an empty memory may have been made
            made = state.memory_of.pop(name, None)
            assert made is None or repr(made) == repr(type(made)()), f"{name} remembers before it was told to"
        assert repr(state) == before, f"{name} changed the state before it was told to"
        assert found.rows <= calm, f"{name} foresees {found.rows} rows, row {calm} changed its verdict"
        least = min(least, found.rows)
    if least < len(steps):
        return least
    fresh = copy.deepcopy(state)
    takes = [DETECTORS[name].on_steps(fresh, steps, getattr(settings, name)).take for name in names]  # type: ignore[misc]
    for event, when in zip(events, at, strict=True):
        fold(fresh, LogEvent(1, "test", event, "line"), SOURCE, when, True)
    for take in takes:
        take()
    for name in names:
        assert repr(fresh.memory_of.get(name)) == repr(one.memory_of.get(name)), name
    return least
