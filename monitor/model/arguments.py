"""The arguments of a launch that say what is trained, and what differs between two launches or runs. Pure."""

from collections.abc import Mapping

_PLACES = (
    "path", "dir", "file", "port", "addr", "host", "name", "save", "load", "log", "wandb", "tensorboard", "rank", "url",
    "project", "comment", "iteration", "job", "id",
)  # fmt: skip
"""Words in the names of arguments that say where, not what: those differ between any two runs."""
_UNSET = frozenset({"None", "none", "False", "", "[]", "{}"})
_MOST = 400  # arguments of a launch that are kept; dumps have 100 to 400 that are set
_LONGEST = 100  # characters of a value

Changes = list[tuple[str, str, str]]
"""(argument, its value before, its value now); "" where it was not set."""


def is_place(name: str) -> bool:
    """Whether an argument says where something lies rather than what is trained."""
    return any(part in _PLACES for part in name.lower().replace("-", "_").split("_"))


def is_set(value: object) -> bool:
    """Whether it is more than a switch that is off, or an option that another version of the program does not have."""
    return value is not None and str(value) not in _UNSET


def kept(values: Mapping[str, str]) -> dict[str, str]:
    """What of a dump is remembered: arguments that are set and are no places, bounded."""
    found = {name: value for name, value in values.items() if is_set(value) and not is_place(name)}
    return {name: value[:_LONGEST] for name, value in list(found.items())[:_MOST]}


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> Changes:
    """What differs."""
    names = dict.fromkeys((*before, *now))
    return [(name, before.get(name, ""), now.get(name, "")) for name in names if before.get(name) != now.get(name)]
