"""MLPerf's log: `:::MLLOG {...}` of mlperf_logging. It says that a run began, goes on, and is done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from parsers.engine.scan import Line, Rule
from parsers.events import CustomProgressLogged, Event, Milestone, MilestoneReached

_MARK = ":::MLLOG "
_MILESTONES: dict[str, Milestone] = {"run_start": "training_started", "run_stop": "training_done"}
_PROGRESS = frozenset(
    {"block_start", "block_stop", "epoch_start", "epoch_stop", "eval_start", "eval_stop", "eval_accuracy", "train_loss",
     "train_samples", "tracked_stats"}
)  # fmt: skip


def read_mllog(line: Line) -> Iterator[Event]:
    """`{"time_ms": 1759226382926, "event_type": "INTERVAL_END", "key": "run_stop", ..., "metadata": {...}}`."""
    text = line.text
    try:
        entry: Any = json.loads(text[text.index(_MARK) + len(_MARK) :])
        key, milliseconds = entry["key"], int(entry["time_ms"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return
    if not isinstance(key, str):
        return
    origin = {**line.origin, "logged_at": _iso(milliseconds) or line.prefix.logged_at}
    if key in _MILESTONES:
        yield MilestoneReached(milestone=_MILESTONES[key], **origin)
    elif key in _PROGRESS:
        yield CustomProgressLogged(name=key, **origin)


def _iso(milliseconds: int) -> str | None:
    """Unix time as ISO 8601; None outside the years 1970 to 9999."""
    days, rest = divmod(milliseconds, 86_400_000)
    if not 0 <= days < 2_932_897:
        return None
    # days since 1 March of the year 0, counted in eras of 400 years
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    day, month = day_of_year - (153 * shifted + 2) // 5 + 1, shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_era + era * 400 + (month <= 2)
    seconds, fraction = divmod(rest, 1000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:03}"
    return f"{year:04}-{month:02}-{day:02}T{clock}Z"


RULES: tuple[Rule, ...] = (Rule("mllog", (_MARK.encode(),), read_mllog),)
