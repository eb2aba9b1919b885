"""Tests a format with its own samples: each must give the events that the file states."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from megatron_monitor.parsers.declared.schema import Format, FormatSample
from megatron_monitor.parsers.engine.fields import number
from megatron_monitor.parsers.engine.memo import Memo
from megatron_monitor.parsers.engine.scan import Rule
from megatron_monitor.parsers.events import LogEvent, to_fields
from megatron_monitor.parsers.reader import SourceReader


def differences(log_format: Format, rules: Sequence[Rule]) -> Iterator[tuple[int, str]]:
    """Yield (index of the sample, what it gives instead) for each sample that is read differently. `rules` are all
    rules, those of the format first.
    """
    memo = Memo(rules)
    for index, sample in enumerate(log_format.samples):
        found = read(sample, memo)
        trouble = _difference(log_format, sample, found)
        if trouble:
            yield index, trouble


def read(sample: FormatSample, memo: Memo) -> list[LogEvent]:
    """Return the events of the sample, read as a log of its own."""
    reader = SourceReader(memo=memo)
    return [*reader.feed(sample.line.encode() + b"\n"), *reader.flush()]


def _difference(log_format: Format, sample: FormatSample, found: list[LogEvent]) -> str | None:
    rules = {spec.rule for spec in log_format.lines}
    own = [entry for entry in found if entry.rule in rules or entry.rule.partition(".")[0] == log_format.name]
    if not sample.gives:
        return f"it must give nothing, and gives {_shown(own)}" if own else None
    kind = sample.gives.get("event", "iteration")
    for entry in own:
        fields = _flat(to_fields(entry.event))
        if fields["event"] == kind:
            wrong = [
                f"{name} is {fields.get(name)!r}, not {value!r}"
                for name, value in _flat(sample.gives).items()
                if name != "event" and not _same(fields.get(name), value)
            ]
            return "; ".join(wrong) or None
    others = [entry for entry in found if entry not in own]
    if others and not own:
        first = others[0].rule.partition(".")[0]
        help_ = f"make the mark longer than its, or call yours {first!r}: then it takes its place"
        return f"a rule of another format reads it ({help_}): {_shown(others)}"
    return f"it must give {kind!r}, and gives {_shown(own)}"


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            flat.update({f"{name}.{key}": item for key, item in value.items()})
        else:
            flat[name] = value
    return flat


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, str):  # YAML requires a dot and reads `1e-05` as text
        other = number(other)
    if isinstance(one, float) and isinstance(other, int | float):
        return abs(one - other) <= 1e-6 * max(abs(one), abs(other))
    return bool(one == other)


def _shown(found: Sequence[LogEvent]) -> str:
    return "; ".join(f"{entry.rule}: {to_fields(entry.event)}"[:300] for entry in found) or "nothing"
