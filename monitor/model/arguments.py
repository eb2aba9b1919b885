"""The arguments of an attempt that define what is trained, and their differences between two attempts or runs. Pure."""

from collections.abc import Mapping
from typing import Any

from megatron_monitor.parsers.tables import rows_of

_LOCATIONS = (
    "path", "dir", "file", "port", "addr", "host", "name", "save", "load", "log", "wandb", "tensorboard", "rank", "url",
    "project", "comment", "iteration", "job", "id",
)  # fmt: skip
"""Words in the names of arguments that are places: places differ between any two runs."""
_UNSET = frozenset({"None", "none", "False", "", "[]", "{}"})
_MAX_ARGUMENTS = 400  # remembered arguments of an attempt; dumps have 100 to 400 that are set
_MAX_VALUE_LENGTH = 100  # maximum characters of a value

Changes = list[tuple[str, str, str]]
"""(argument, its value before, its value now). "": not set."""


def is_place(name: str) -> bool:
    """Return True if an argument is a place rather than a property of the training."""
    return any(part in _LOCATIONS for part in name.lower().replace("-", "_").split("_"))


def is_set(value: object) -> bool:
    """Return True unless the argument is a switch that is off or an option that other versions of the program do not
    have.
    """
    return value is not None and str(value) not in _UNSET


def model_arguments(values: Mapping[str, str]) -> dict[str, str]:
    """Return the remembered part of a dump, bounded: arguments that are set and are not places."""
    found = {name: value for name, value in values.items() if is_set(value) and not is_place(name)}
    return {name: value[:_MAX_VALUE_LENGTH] for name, value in list(found.items())[:_MAX_ARGUMENTS]}


def changed_arguments(before: Mapping[str, str], now: Mapping[str, str]) -> Changes:
    """Return the differences."""
    names = dict.fromkeys((*before, *now))
    return [(name, before.get(name, ""), now.get(name, "")) for name in names if before.get(name) != now.get(name)]


# Traits in an arguments dump: settings for which simple arithmetic is wrong. Input: the dump's values as printed.
# Output: fields of `Topology`. A trait only suppresses findings, so that an uncertain trait counts as present.

_OFF = frozenset({"", "None", "False", "0", "1", "[]", "{}", "[1]", "1.0", "no_shard"})


def _arguments() -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the uses in arguments.csv -> what they are for -> the arguments, in the file's order.

    `size`: a field of `Topology`, the most specific name first. `switch`: any that is on sets the field. `reason`:
    `schedule`, a person changes it to begin a new phase; `no_other_parallelism`, a dimension that is counted here.
    """
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for use, of, argument in rows_of("megatron_monitor.model", "arguments.csv", tuple[str, str, str]):
        known = found.setdefault(use, {})
        known[of] = (*known.get(of, ()), argument)
    return found


ARGUMENTS = _arguments()
_REASONS = ARGUMENTS["reason"]


def _on(values: dict[str, str], name: str) -> bool:
    return values.get(name, "None") not in _OFF


def _grows(values: dict[str, str]) -> bool:
    """Return True for a first length below the full one, which was the first form of random-LTD."""
    first, full = values.get("initial_sequence_length", ""), values.get("seq_length", "")
    return all(one.isdecimal() and len(one) < 19 for one in (first, full)) and 0 < int(first) < int(full)


def _parallelism(values: dict[str, str]) -> list[str]:
    named = (name for name in values if name.endswith("_parallel_size") and "inference" not in name)
    others = sorted(name for name in named if name not in _REASONS["no_other_parallelism"] and _on(values, name))
    return [*others, *(["gtp_remat_size"] if _on(values, "gtp_remat_size") else [])]


def traits_of(values: dict[str, str]) -> dict[str, Any]:
    """Return the traits of a dump. All fields are returned, so that a new attempt replaces the last one's."""
    switches = {field: any(_on(values, name) for name in names) for field, names in ARGUMENTS["switch"].items()}
    return {
        **switches,
        "other_parallelism": _parallelism(values),
        "sequence_grows": _on(values, "random_ltd") or _grows(values),
        "schedule": ";".join(f"{name}={values[name][:200]}" for name in _REASONS["schedule"] if name in values),
    }
