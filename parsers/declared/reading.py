"""Reads a line of a declared format: prefix, mark, names and values, and the events that they make."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple, get_args

from megatron_monitor.parsers import events
from megatron_monitor.parsers.declared.marks import LineMark
from megatron_monitor.parsers.declared.schema import Format, LineSpec
from megatron_monitor.parsers.declared.targets import LOSSES, MEMORY, PARTS, SIZES, converter
from megatron_monitor.parsers.engine.scan import Line
from megatron_monitor.parsers.engine.spans import Convert, Span, Spanned, value_of
from megatron_monitor.parsers.events import Event, Part

_MAX_PAIRS = 300  # a step line of verl has 90; the bound limits the event of a hostile line
_SHORT_LIST = 3  # maximum length of a list of integers that is read
_MAX_LINE = 64 * 1024
_STAMP: Final = LineMark("{time} ")  # of a logger that prints nothing else: before any program's line
_DEPTH = 3
_AROUND = " \t'\"}]|"  # characters around a value
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
_RAY_REPEATS: Final = "x across cluster]"
"""Ray repeats equal lines of other processes up to five seconds later (`[repeated 3x across cluster]`). They are
ignored.
"""
_SETTINGS: Final = ("global_batch_size", "sequence_length", "total", *SIZES)
_BETWEEN_STEPS: Final = ("evaluate", "save")
"""Parts of a printed step time that are not part of an iteration."""
_SIZES: Final = {"total": "train_iterations"}
"""Our name -> the different name in `Topology`."""


class Head(NamedTuple):
    """The values of prefix and mark, the text with the names and values, and where it begins in the line."""

    values: dict[str, Span]
    rest: str
    start: int


class LineReader:
    """One LineSpec, ready to read lines."""

    def __init__(self, log_format: Format, spec: LineSpec, prefixes: tuple[LineMark, ...]) -> None:
        self.spec = spec
        self.mark = LineMark(spec.line)
        self._format = log_format.name
        self._prefixes = prefixes if spec.prefixed else (*prefixes, _STAMP)
        self._targets: dict[str, tuple[str, Convert]] = {
            name: converter(target) for name, target in {**log_format.fields, **spec.fields}.items()
        }

    # --- the line ---------------------------------------------------------------------------------------------------

    def head(self, line: Line) -> Head | None:
        """Return the values of prefix and mark and the text after them, or None if the mark is missing."""
        text = line.text if len(line.text) <= _MAX_LINE else line.text[:_MAX_LINE]
        values: dict[str, Span] = {}
        start = 0
        for prefix in self._prefixes:
            match = prefix.pattern.match(text)
            if match:
                values, start = prefix.values(match, line), match.end()
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
        values.update(self.mark.values(match, line))
        if not self.spec.whole:
            return Head(values, text[match.end() :], match.end())
        first = max(text.rfind("{", start, match.start()), start)
        return Head(values, text[first : match.start()] + text[match.end() :], first)

    def read(self, line: Line) -> list[Spanned]:
        """Return the events of the line, or nothing if it does not match."""
        head = self.head(line)
        if head is None:
            return []
        found = pairs_in(head.rest, self.spec)
        return self._events(head, found, line) if self._wanted(found) else []

    def _wanted(self, found: Mapping[str, str]) -> bool:
        """Return True if the line has the names and values that the spec requires."""
        spec = self.spec
        return (
            all(name in found for name in spec.needs)
            and not any(name in found for name in spec.without)
            and all(name in found and found[name] in value.split(", ") for name, value in spec.where.items())
        )

    # --- its events -------------------------------------------------------------------------------------------------

    def _events(self, head: Head, found: Mapping[str, str], line: Line) -> list[Spanned]:
        values: dict[str, Any] = {LOSSES: {}, **self.spec.given}
        for target, span in head.values.items():
            values[target] = (span,) if target in PARTS else span
        gather(values, placed(found, line.text, head.start, self.spec), line, self._target, PARTS)
        message: Any = ""
        if self.spec.means == "failure":
            at = len(line.text) - len(line.text.lstrip())
            message = line.span((at, at + len(line.text.strip()[:500])), str)
        if self.spec.means in get_args(Part) and _RAY_REPEATS in line.text:
            return []
        origin = line.origin_spans
        if value_of(time := values.pop("time", None)) is not None:
            origin["logged_at"] = time
        said = Spanned(self._made, {"message": message, "origin": origin, **values})
        return [said] if said.events() else []

    def _target(self, name: str) -> tuple[str, str | None, Convert]:
        target, convert = self._targets.get(name, ("", str))
        return target, name if target == LOSSES else None, convert

    def _made(self, losses: dict[str, float], message: str, origin: dict[str, Any], **values: Any) -> Iterator[Event]:
        """Return the events for these values, by our names."""
        if self.spec.means == "step":
            yield from self._step(values, losses, origin)
            if self.spec.then:
                kind, fields = _MEANINGS[self.spec.then]
                implied = {"implied": True} if kind is events.PartBegan else {}
                yield kind(**fields, **implied, **origin)
        else:
            yield from self._other(values, losses, message, origin)

    def _step(self, values: dict[str, Any], losses: dict[str, float], origin: dict[str, Any]) -> Iterator[Event]:
        samples, tokens = values.get("step_in_samples"), values.get("step_in_tokens")
        if samples is not None:
            samples += (values.get("epoch") or 0) * (values.get("epoch_steps") or 0)
        step = next((count for count in (samples, tokens) if count is not None), _step_of(values))
        if step is None:
            return
        within = "step" not in values and "epoch_step" in values and "epoch_steps" not in values
        yield from _memory(values, step, origin)
        total = _total_of(values)
        _time(values)
        yield from _parts(values, origin, of_next=True)
        known = {name: value for name, value in values.items() if name in _STEP_VALUES and (name != "epoch" or within)}
        yield events.IterationLogged(
            iteration=step,
            train_iterations=total,
            losses=losses,
            in_samples=None if samples is None else True,
            in_tokens=None if samples is not None or tokens is None else True,
            format=self._format,
            **known,
            **origin,
        )

    def _other(
        self, values: dict[str, Any], losses: dict[str, float], message: str, origin: dict[str, Any]
    ) -> Iterator[Event]:
        spec, step, means = self.spec, _step_of(values), self.spec.means
        if means in _MEANINGS:
            kind, fields = _MEANINGS[means]
            given: dict[str, Any] = {
                "iteration": step, "path": values.get("path"), "seconds": values.get("elapsed_seconds"),
                "name": spec.name or self._format, "dataset": spec.name or "validation", "pattern": spec.name or None,
                "failure": spec.failure, "message": message,
                "losses": ({"lm loss": values["lm_loss"]} if "lm_loss" in values else {}) | losses,
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


def pairs_in(rest: str, spec: LineSpec) -> Mapping[str, str]:
    """Return names and values of a text. The first value of a name counts."""
    return _pairs(rest, spec.form, spec.separator, spec.assign, spec.until)


@lru_cache(8)  # several readings cut the same line in the same way
def _pairs(rest: str, form: str, separator: str, assign: str, until: str) -> dict[str, str]:
    if form == "json":
        return flat_json(rest)
    if until:
        rest = rest.partition(until)[0]
    assign = assign.strip() or assign
    if not separator.strip():
        rest = _around(assign).sub(lambda _: assign, rest)
    found: dict[str, str] = {}
    for piece in rest.split(separator, _MAX_PAIRS)[:_MAX_PAIRS]:
        name, assigned, value = piece.strip().rpartition(" ") if assign == " " else piece.partition(assign)
        if assigned:
            value = value.strip(_AROUND)
            if value.startswith("np."):  # numpy 2 prints `np.float64(0.5)`
                value = value.partition("(")[2].rstrip(")")
            found.setdefault(name.strip(" \t'\"{[|"), value)
    return found


def gather(
    values: dict[str, Any],
    pairs: Iterable[tuple[str, str, int]],
    line: Line,
    target: Callable[[str], tuple[str, str | None, Convert]],
    summed: Collection[str] = (),
) -> None:
    """Add (name, value, position) to the values. `target` returns for a printed name the field, the name within the
    field and the converter. An empty field: the name is unknown. `summed`: fields with several values.
    """
    for name, text, at in pairs:
        field, key, convert = target(name)
        if not field or not text:
            continue
        span = Span(line.start + at, text, convert, convert(text))
        if key is not None:
            values.setdefault(field, {})[key] = span
        elif field in summed:
            values[field] = (*values.get(field, ()), span)
        elif value_of(values.get(field)) is None:
            values[field] = span


def placed(found: Mapping[str, str], text: str, start: int, spec: LineSpec) -> Iterator[tuple[str, str, int]]:
    """Yield names and values with the position of each value in the line, which has them in this order from `start` on.
    -1: the line does not have the value as it is.
    """
    for name, value in found.items():
        key = name.rpartition(".")[2] if spec.form == "json" else name
        named = text.find(key, start)
        at = text.find(value, named + len(key)) if named >= 0 else -1
        if spec.form == "json" and (
            text[named + len(key) : at].strip(' ":') or text[at + len(value) :][:1] not in ' ",}'
        ):
            at = -1
        if at >= 0:
            start = at + len(value)
        yield name, value, at


@cache
def _around(assign: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![ \t])[ \t]*{re.escape(assign)}[ \t]+")


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


def flat_json(text: str) -> dict[str, str]:
    """Return an object's names and values. Names of inner objects are joined by dots."""
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
        elif isinstance(item, list):  # DLLogger's step: [epoch, iteration]
            if len(item) <= _SHORT_LIST and all(isinstance(value, int) for value in item):
                found.update((f"{before}{name}[{index}]", repr(value)) for index, value in enumerate(item))
        elif item is not None:
            found[f"{before}{name}"] = item if isinstance(item, str) else repr(item)
