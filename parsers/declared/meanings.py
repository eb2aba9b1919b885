"""What the meanings of lines give: events from values by our names (targets.py)."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

from megatron_monitor.parsers import events
from megatron_monitor.parsers.declared.schema import LineSpec
from megatron_monitor.parsers.declared.targets import LOSSES, MEMORY, PARTS, SIZES
from megatron_monitor.parsers.events import Event, Part

_MAX_SECONDS = 1e9
_STEP_VALUES: Final = frozenset(events.IterationLogged.__struct_fields__)
_OF_STEP: Final[dict[str, Any]] = {"iteration": None, "path": None}
_MEANINGS: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "start": (events.MilestoneReached, {"milestone": "launched"}),
    "begin": (events.MilestoneReached, {"milestone": "training_started"}),
    "done": (events.MilestoneReached, {"milestone": "training_done"}),
    "evaluated": (events.EvaluationProgressed, {"done": 0, "total": 0, "finished": True}),
    "saving": (events.CheckpointSaveStarted, _OF_STEP),
    "loading": (events.CheckpointLoadStarted, _OF_STEP),
    "loaded": (events.CheckpointLoaded, _OF_STEP),
    "end": (events.ProgramExited, {"reason": "finished", "iteration": None}),
    "generating": (events.GenerationMoved, {}),
    "evaluating": (events.EvaluationProgressed, {"done": 0, "total": 0}),
    "saved": (events.CheckpointSaved, {**_OF_STEP, "seconds": None}),
    "evaluation": (events.ValidationLogged, {"iteration": None, "dataset": "validation", "losses": {}}),
    "failure": (events.FailureSeen, {"failure": "unknown", "message": "", "pattern": None}),
    "progress": (events.CustomProgressLogged, {"name": ""}),
    **{part: (events.PartBegan, {"part": part}) for part in get_args(Part)},
}
"""Meaning of a line -> its event, and the event's fields unless the line has them."""
_SETTINGS: Final = ("global_batch_size", "sequence_length", "total", *SIZES)
_BETWEEN_STEPS: Final = ("evaluate", "save")
"""Parts of a printed step time that are not part of an iteration."""
_SIZES: Final = {"total": "train_iterations"}
"""Our name -> the different name in `Topology`."""


def step_events(spec: LineSpec, format_name: str, **values: Any) -> Iterator[Event]:
    """Return the events of a step from its values: by our names, and by the names of fields that all events have."""
    origin = _origin(values)
    samples, tokens = values.get("step_in_samples"), values.get("step_in_tokens")
    if samples is not None:
        samples += (values.get("epoch") or 0) * (values.get("epoch_steps") or 0)
    step = next((count for count in (samples, tokens) if count is not None), _step_of(values))
    if step is not None:
        within = "step" not in values and "epoch_step" in values and "epoch_steps" not in values
        yield from _memory(values, step, origin)
        total = _total_of(values)
        _time(values)
        yield from _parts(values, origin, of_next=True)
        known = {name: value for name, value in values.items() if name in _STEP_VALUES and (name != "epoch" or within)}
        yield events.IterationLogged(
            iteration=step,
            train_iterations=total,
            in_samples=None if samples is None else True,
            in_tokens=None if samples is not None or tokens is None else True,
            format=format_name,
            **known,
            **origin,
        )
    if spec.then:
        kind, fields = _MEANINGS[spec.then]
        yield kind(**fields, **({"implied": True} if kind is events.PartBegan else {}), **origin)


def other_events(spec: LineSpec, format_name: str, **values: Any) -> Iterator[Event]:
    """Return the events of a line with another meaning, as `step_events`."""
    origin, step, means = _origin(values), _step_of(values), spec.means
    if means in _MEANINGS:
        kind, fields = _MEANINGS[means]
        given: dict[str, Any] = {
            "iteration": step, "path": values.get("path"), "seconds": values.get("elapsed_seconds"),
            "name": spec.name or format_name, "dataset": spec.name or "validation", "pattern": spec.name or None,
            "failure": spec.failure, "message": values.get("message", ""),
            "losses": ({"lm loss": values["lm_loss"]} if "lm_loss" in values else {}) | values.get(LOSSES, {}),
        }  # fmt: skip
        given |= values if means == "evaluating" else {}
        yield kind(**{name: given.get(name, fixed) for name, fixed in fields.items()}, **origin)
    if means in ("settings", "begin"):
        sizes = {_SIZES.get(name, name): values[name] for name in _SETTINGS if name in values}
        if sizes:
            yield events.SizesReported(values=sizes, **origin)
    elif means not in _MEANINGS:
        yield from _memory(values, step, origin)
        yield from _parts(values, origin)
        rates = {name: values[name] for name in ("tflops", "samples_per_second") if name in values}
        if rates:
            yield events.ThroughputReported(**rates, **origin)


def _origin(values: dict[str, Any]) -> dict[str, Any]:
    return {name: values.pop(name, None) for name in events.Event.__struct_fields__}


def _time(values: dict[str, Any]) -> None:
    """Return the seconds per iteration without the parts beside it. If no time is printed, compute it from tokens and
    their rate.
    """
    between = sum(sum(values.get(name, ())) for name in _BETWEEN_STEPS)
    if between and values.get("seconds_per_iteration", 0.0) > between:
        values["seconds_per_iteration"] -= between
    if not {"seconds_per_iteration", "elapsed_seconds"} & values.keys():
        each, rate = values.get("tokens_per_iteration", 0.0), values.get("tokens_per_second", 0.0)
        if rate > 0 and 0 < each / rate < _MAX_SECONDS:
            values["seconds_per_iteration"] = each / rate


def _step_of(values: Mapping[str, Any]) -> int | None:
    """Return the step, by its number or by epoch and number in the epoch. None if the two contradict each other: a
    progress bar is drawn once with its new count and the figures of the previous step.
    """
    step: int | None = values.get("step")
    inside: int | None = values.get("epoch_step")
    each: int | None = values.get("epoch_steps")
    epoch: int = values.get("epoch") or 0
    if inside is None:
        return step
    if step is None:
        if epoch < 0 or (each and not inside):
            return None  # not of this epoch: Lightning draws its bar at 0 once more before the next bar
        return inside + epoch * (each or 0)
    if epoch == 0 and step != inside:
        return None
    return step


def _total_of(values: Mapping[str, Any]) -> int | None:
    """Return the planned steps: as printed, else those of all epochs, else those of the only epoch."""
    total: int | None = values.get("total")
    if total is None and "epochs" in values and "epoch_steps" in values:
        total = values["epochs"] * values["epoch_steps"]
    elif total is None and not values.get("epoch") and values.get("step_in_samples") is None:
        total = values.get("epoch_steps")
    return total


def _memory(values: Mapping[str, Any], step: int | None, origin: dict[str, Any]) -> Iterator[Event]:
    reported = {MEMORY[name]: values[name] for name in MEMORY if name in values}
    if reported:
        yield events.MemoryReported(iteration=step, occasion="step", **reported, **origin)


def _parts(values: Mapping[str, Any], origin: dict[str, Any], *, of_next: bool | None = None) -> Iterator[Event]:
    parts: dict[str, tuple[float, float]] = {name: (sum(values[name]),) * 2 for name in PARTS if name in values}
    if parts:
        yield events.TimersReported(speaker="megatron", timers=parts, of_next=of_next, **origin)
