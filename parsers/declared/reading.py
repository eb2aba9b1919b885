"""How a line of a declared dialect is read: prefix, mark, names and values, and the events that they make."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

from megatron_monitor.parsers import events
from megatron_monitor.parsers.declared.marks import Mark
from megatron_monitor.parsers.declared.schema import Dialect, LineSpec
from megatron_monitor.parsers.declared.targets import LOSSES, MEMORY, PARTS, SIZES, Convert, converter
from megatron_monitor.parsers.engine.fields import LEADING_NUMBER, number
from megatron_monitor.parsers.engine.scan import Line
from megatron_monitor.parsers.events import Event, Part

_MAX_PAIRS = 300  # a step line of verl has 90; the bound keeps a hostile line's event small
_MAX_TEXT = 200
_MAX_LINE = 64 * 1024
_DEPTH = 3
_MAX_SECONDS = 1e9
_STEP_VALUES: Final = frozenset(events.IterationLogged.__struct_fields__)
_OF_STEP: Final[dict[str, Any]] = {"iteration": None, "path": None}
_TELLS: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "launch": (events.MilestoneReached, {"milestone": "launched"}),
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
"""What a line means -> its event, and the event's fields: the line's own where it has them."""
_REPEATED: Final = "x across cluster]"
"""Ray tells of other processes' equal lines up to five seconds later (`[repeated 3x across cluster]`): no news."""
_SETTINGS: Final = ("global_batch_size", "sequence_length", "total", *SIZES)
_BESIDE: Final = ("evaluate", "save")
"""Parts of a printed step time that are no part of an iteration."""
_SIZES: Final = {"total": "train_iterations"}
"""Our name -> that of `Topology`, where they differ."""


class Reading:
    """One LineSpec, ready to read."""

    def __init__(self, dialect: Dialect, spec: LineSpec, prefixes: tuple[Mark, ...]) -> None:
        self.spec = spec
        self.mark = Mark(spec.line)
        self.place = (spec.whole, spec.prefixed)
        """Readings of one mark and one place have the same head, ..."""
        self.way = (spec.form, spec.separator, spec.assign, spec.until)
        """... and of one way the same names and values."""
        self._dialect = dialect.name
        self._prefixes = prefixes
        self._targets: dict[str, tuple[str, Convert]] = {
            name: converter(target) for name, target in {**dialect.fields, **spec.fields}.items()
        }
        self._assign = spec.assign.strip() or spec.assign
        self._after_assign = (
            re.compile(rf"(?<![ \t])[ \t]*{re.escape(self._assign)}[ \t]+") if not spec.separator.strip() else None
        )

    # --- the line ---------------------------------------------------------------------------------------------------

    def head(self, line: Line) -> tuple[dict[str, Any], str] | None:
        """(what prefix and mark say, what stands behind them); None if the mark is not there."""
        text = line.text if len(line.text) <= _MAX_LINE else line.text[:_MAX_LINE]
        values: dict[str, Any] = {}
        start = 0
        for prefix in self._prefixes:
            match = prefix.pattern.match(text)
            if match:
                values, start = prefix.values(match), match.end()
                break
        if start == 0 and self.spec.prefixed:
            return None
        if self.spec.anywhere:
            match = self.mark.find(text, start)
        else:
            while text.startswith((" ", "\t"), start) and not self.spec.line.startswith(text[start]):
                start += 1
            match = self.mark.pattern.match(text, start)
        if match is None:
            return None
        values.update(self.mark.values(match))
        rest = text[match.end() :]
        if self.spec.whole:
            rest = text[max(text.rfind("{", start, match.start()), start) : match.start()] + rest
        return values, rest

    def pairs(self, rest: str) -> dict[str, str]:
        """Their names and values in what follows the mark; the first of a name counts."""
        spec = self.spec
        if spec.form == "json":
            return flat_json(rest)
        if spec.until:
            rest = rest.partition(spec.until)[0]
        if self._after_assign is not None:
            rest = self._after_assign.sub(self._assign, rest)
        found: dict[str, str] = {}
        for piece in rest.split(spec.separator, _MAX_PAIRS)[:_MAX_PAIRS]:
            cut = piece.strip().rpartition(" ") if self._assign == " " else piece.partition(self._assign)
            name, assigned, value = cut
            if assigned:
                value = value.strip(" \t'\"}]|")
                if value.startswith("np."):  # numpy 2 prints `np.float64(0.5)`
                    value = value.partition("(")[2].rstrip(")")
                found.setdefault(name.strip(" \t'\"{[|"), value)
        return found

    def wanted(self, found: Mapping[str, str]) -> bool:
        """Whether it is this line by what it names."""
        spec = self.spec
        return (
            all(name in found for name in spec.needs)
            and not any(name in found for name in spec.without)
            and all(found.get(name) in value.split(", ") for name, value in spec.where.items())
            and all(_positive(found.get(name)) for name in spec.positive)
        )

    # --- its events -------------------------------------------------------------------------------------------------

    def events(self, head: Mapping[str, Any], found: Mapping[str, str], line: Line) -> Iterator[Event]:
        """What the line says."""
        values: dict[str, Any] = {**self.spec.given, **head}
        losses: dict[str, float] = {}
        extra: dict[str, float | str] = {}
        for name, text in found.items():
            known = self._targets.get(name)
            if known is None:
                extra[name] = _kept(text)
                continue
            target, convert = known
            value = convert(text)
            if value is None:
                extra[name] = text[:_MAX_TEXT]
            elif target == LOSSES:
                losses[name] = value
            elif target in PARTS and target in values:
                values[target] += value
            else:
                values.setdefault(target, value)
        origin = line.origin
        if "time" in values:
            origin = {**origin, "logged_at": values["time"]}
        if self.spec.means == "step":
            yield from self._step(values, losses, extra, origin)
            if self.spec.then:
                kind, fields = _TELLS[self.spec.then]
                implied = {"implied": True} if kind is events.PartBegan else {}
                yield kind(**fields, **implied, **origin)
        else:
            yield from self._other(values, losses, line, origin)

    def _step(
        self, values: dict[str, Any], losses: dict[str, float], extra: dict[str, float | str], origin: dict[str, Any]
    ) -> Iterator[Event]:
        samples, tokens = values.get("step_in_samples"), values.get("step_in_tokens")
        if samples is not None:
            samples += (values.get("epoch") or 0) * (values.get("epoch_steps") or 0)
        step = next((count for count in (samples, tokens) if count is not None), _step_of(values))
        if step is None:
            # a step of a later epoch, and not how many an epoch has: which one nobody knows
            if values.get("epoch") and values.get("epoch_step") is not None and "epoch_steps" not in values:
                yield events.CustomProgressLogged(name=self.spec.name or self._dialect, **origin)
            return
        yield from _memory(values, step, origin)
        total = _total_of(values)
        _time(values)
        yield from _parts(values, origin, of_next=True)
        known = {name: value for name, value in values.items() if name in _STEP_VALUES}
        yield events.IterationLogged(
            iteration=step,
            train_iterations=total,
            losses=losses,
            extra=extra,
            in_samples=None if samples is None else True,
            in_tokens=None if samples is not None or tokens is None else True,
            dialect=self._dialect,
            **known,
            **origin,
        )

    def _other(
        self, values: dict[str, Any], losses: dict[str, float], line: Line, origin: dict[str, Any]
    ) -> Iterator[Event]:
        spec, step, means = self.spec, _step_of(values), self.spec.means
        if means in _TELLS:
            kind, fields = _TELLS[means]
            if kind is events.PartBegan and _REPEATED in line.text:
                return
            given: dict[str, Any] = {
                "iteration": step, "path": values.get("path"), "seconds": values.get("elapsed_seconds"),
                "name": spec.name or self._dialect, "dataset": spec.name or "validation", "pattern": spec.name or None,
                "failure": spec.failure, "message": line.text.strip()[:500],
                "losses": ({"lm loss": values["lm_loss"]} if "lm_loss" in values else {}) | losses,
            }  # fmt: skip
            given |= values if means == "evaluating" else {}
            yield kind(**{name: given.get(name, fixed) for name, fixed in fields.items()}, **origin)
        elif means == "settings":
            sizes = {_SIZES.get(name, name): values[name] for name in _SETTINGS if name in values}
            if sizes:
                yield events.SizesTold(values=sizes, **origin)
        else:
            yield from _memory(values, step, origin)
            yield from _parts(values, origin)
            rates = {name: values[name] for name in ("tflops", "samples_per_second") if name in values}
            if rates:
                yield events.ThroughputReported(**rates, **origin)


def _time(values: dict[str, Any]) -> None:
    """Seconds per iteration without the parts beside it; by tokens and their rate where no time is printed."""
    aside = sum(values.get(name, 0.0) for name in _BESIDE)
    if aside and values.get("seconds_per_iteration", 0.0) > aside:
        values["seconds_per_iteration"] -= aside
    if not {"seconds_per_iteration", "elapsed_seconds"} & values.keys():
        each, rate = values.get("tokens_per_iteration", 0.0), values.get("tokens_per_second", 0.0)
        if rate > 0 and 0 < each / rate < _MAX_SECONDS:
            values["seconds_per_iteration"] = each / rate


def _step_of(values: Mapping[str, Any]) -> int | None:
    """The step: by its number, or by epoch and number in the epoch. None where the two contradict each other: a
    progress bar is drawn once with its new count and the figures of the step before.
    """
    step: int | None = values.get("step")
    inside: int | None = values.get("epoch_step")
    each: int | None = values.get("epoch_steps")
    epoch: int = values.get("epoch") or 0
    if inside is None:
        return step
    if step is None:
        if epoch < 0 or (each and not inside):
            return None  # none of this epoch: Lightning draws its bar at 0 once more before the next one's
        return inside + epoch * each if each else None if epoch else inside
    if epoch == 0 and step != inside:
        return None
    return step


def _total_of(values: Mapping[str, Any]) -> int | None:
    """The steps that are planned: as told, else those of all epochs, else those of the only one."""
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
    parts: dict[str, tuple[float, float]] = {name: (values[name],) * 2 for name in PARTS if name in values}
    if parts:
        yield events.TimersReported(speaker="megatron", timers=parts, of_next=of_next, **origin)


def _positive(text: str | None) -> bool:
    match = LEADING_NUMBER.match(text.strip()) if text else None
    return match is not None and (number(match[1]) or 0.0) > 0.0


def _kept(text: str) -> float | str:
    value = number(text) if text[:1].isdigit() or text[:1] in "+-." else None
    return text[:_MAX_TEXT] if value is None else value


def flat_json(text: str) -> dict[str, str]:
    """An object's names, those of inner objects joined by dots."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return {}
    found: dict[str, str] = {}
    if isinstance(value, dict):
        _flatten(value, "", found, _DEPTH)
    return found


def _flatten(value: Mapping[str, Any], before: str, found: dict[str, str], depth: int) -> None:
    for name, item in value.items():
        if len(found) >= _MAX_PAIRS:
            return
        if isinstance(item, dict):
            if depth > 1:
                _flatten(item, f"{before}{name}.", found, depth - 1)
        elif item is not None and not isinstance(item, list):
            found[f"{before}{name}"] = item if isinstance(item, str) else repr(item)
