"""The arguments of an attempt that say what is trained, and what differs between two attempts or runs. Pure."""

from collections.abc import Mapping
from typing import Any

from megatron_monitor.model.tables import rows_of

_PLACES = (
    "path", "dir", "file", "port", "addr", "host", "name", "save", "load", "log", "wandb", "tensorboard", "rank", "url",
    "project", "comment", "iteration", "job", "id",
)  # fmt: skip
"""Words in the names of arguments that say where, not what: those differ between any two runs."""
_UNSET = frozenset({"None", "none", "False", "", "[]", "{}"})
_MOST = 400  # arguments of an attempt that are kept; dumps have 100 to 400 that are set
_LONGEST = 100  # characters of a value

Changes = list[tuple[str, str, str]]
"""(argument, its value before, its value now); "" where it was not set."""


def is_place(name: str) -> bool:
    """Whether an argument says where something lies rather than what is trained."""
    return any(part in _PLACES for part in name.lower().replace("-", "_").split("_"))


def is_set(value: object) -> bool:
    """Whether it is more than a switch that is off, or an option that another version of the program does not have."""
    return value is not None and str(value) not in _UNSET


def model_arguments(values: Mapping[str, str]) -> dict[str, str]:
    """What of a dump is remembered: arguments that are set and are no places, bounded."""
    found = {name: value for name, value in values.items() if is_set(value) and not is_place(name)}
    return {name: value[:_LONGEST] for name, value in list(found.items())[:_MOST]}


def changed_arguments(before: Mapping[str, str], now: Mapping[str, str]) -> Changes:
    """What differs."""
    names = dict.fromkeys((*before, *now))
    return [(name, before.get(name, ""), now.get(name, "")) for name in names if before.get(name) != now.get(name)]


# What an arguments dump tells beyond sizes: what makes plain arithmetic not apply.
#
# In: the dump's values as printed. Out: fields of `Topology`. Law: a trait is only ever a reason to stay silent, so a
# doubtful one counts as there.

_OFF = frozenset({"", "None", "False", "0", "1", "[]", "{}", "[1]", "1.0", "no_shard"})


def _arguments() -> dict[str, dict[str, tuple[str, ...]]]:
    """What arguments.csv says that a program's argument is used for -> of what -> the arguments, in the file's order.

    `size`: the field of `Topology` that it may hold, the most telling name first. `switch`: any that is on sets the
    field. `reason`: `unusual`, FLOPs, parameters or tokens per sample are not a plain GPT's; `schedule`, a person
    changes it to begin a new phase on purpose; `no_other_parallelism`, a dimension that is counted here.
    """
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for use, of, argument in rows_of("megatron_monitor.model", "arguments.csv", tuple[str, str, str]):
        known = found.setdefault(use, {})
        known[of] = (*known.get(of, ()), argument)
    return found


ARGUMENTS = _arguments()
_REASONS = ARGUMENTS["reason"]
_PACKED_DOCUMENTS = "packed documents"


def _on(values: dict[str, str], name: str) -> bool:
    return values.get(name, "None") not in _OFF


def _grows(values: dict[str, str]) -> bool:
    """A first length below the full one: how the first random-LTD was told."""
    first, full = values.get("initial_sequence_length", ""), values.get("seq_length", "")
    return all(one.isdecimal() and len(one) < 19 for one in (first, full)) and 0 < int(first) < int(full)


def _parallelism(values: dict[str, str]) -> list[str]:
    named = (name for name in values if name.endswith("_parallel_size") and "inference" not in name)
    others = sorted(name for name in named if name not in _REASONS["no_other_parallelism"] and _on(values, name))
    return [*others, *(["gtp_remat_size"] if _on(values, "gtp_remat_size") else [])]


def _unusual(values: dict[str, str]) -> list[str]:
    packed = _on(values, "reset_attention_mask") and _on(values, "reset_position_ids")
    return [name for name in _REASONS["unusual"] if _on(values, name)] + ([_PACKED_DOCUMENTS] if packed else [])


def traits_of(values: dict[str, str]) -> dict[str, Any]:
    """The traits that a dump tells; every field is given, so that a new attempt replaces the last one's."""
    switches = {field: any(_on(values, name) for name in names) for field, names in ARGUMENTS["switch"].items()}
    return {
        **switches,
        "other_parallelism": _parallelism(values),
        "unusual": _unusual(values),
        "sequence_grows": _on(values, "random_ltd") or _grows(values),
        "schedule": ";".join(f"{name}={values[name][:200]}" for name in _REASONS["schedule"] if name in values),
    }
