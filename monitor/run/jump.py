"""The wall clock jumps (NTP, an administrator, a machine that slept): every instant that was read off it moves along.

Law: what is kept are durations. A silence of 5 s before a jump of an hour is a silence of 5 s after it. Instants are
known by their names: `at`, `since`, and what ends in `_at`, `_since` or `_until`; a count or a text is none.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from msgspec import Struct

_ENDINGS: Final = ("_at", "_since", "_until")


def shift(value: Any, seconds: float) -> None:
    """Move every instant below a dataclass, a dict or a list of them by `seconds`."""
    if isinstance(value, Struct) and not value.__struct_config__.frozen:  # a detector's memory
        for name in value.__struct_fields__:
            item = getattr(value, name)
            if _is_instant(name, item):
                setattr(value, name, item + seconds)
            else:
                shift(item, seconds)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        frozen = value.__dataclass_params__.frozen  # type: ignore[attr-defined]
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            if _is_instant(field.name, item):
                if not frozen:
                    setattr(value, field.name, item + seconds)
            elif field.name == "phase_history":
                item[:] = [(at + seconds, phase) for at, phase in item]
            elif field.name == "pending":  # an incident's kind -> since when
                for kind in item:
                    item[kind] += seconds
            else:
                shift(item, seconds)
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(key, str) and _is_instant(key, item):
                value[key] = item + seconds
            else:
                shift(item, seconds)
    elif isinstance(value, list):
        for item in value:
            shift(item, seconds)


def _is_instant(name: str, value: Any) -> bool:
    return isinstance(value, float) and value != 0.0 and (name in ("at", "since") or name.endswith(_ENDINGS))
