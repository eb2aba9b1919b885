"""How to get timers, or a finer view of them: what the program that wrote the log has for it. The options stand with
the dialects (parsers/dialects.py, parsers/trainers/*.yaml).
"""

from __future__ import annotations

from parsers.declared.builtin import built_in
from parsers.dialects import BY_NAME

_NOT_KNOWN = (
    "none are known of the program that wrote it; a profile of a few slow iterations (torch.profiler, py-spy) would"
)


def no_timers(dialect: str | None) -> str:
    """That the log prints no timers, and how the program that wrote it would."""
    return f"the log prints no timers that would tell why: {_timers(dialect)}"


def _timers(dialect: str | None) -> str:
    known = BY_NAME.get(dialect or "")
    if known is not None:
        return known.timers
    return next((found.timers for found in built_in() if found.name == dialect), "") or _NOT_KNOWN


def of_ranks(dialect: str | None) -> str:
    """The option that tells the ranks apart; empty where the program has none."""
    known = BY_NAME.get(dialect or "")
    return f"; {known.timers_of_ranks} tells which" if known is not None and known.timers_of_ranks else ""
