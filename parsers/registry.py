"""All formats that the monitor reads, in the order in which their rules are asked."""

from collections.abc import Sequence

from megatron_monitor.parsers.declared.compiled import expressions_of, rules_of
from megatron_monitor.parsers.declared.schema import Format, built_in
from megatron_monitor.parsers.engine.scan import Rule
from megatron_monitor.parsers.formats import (
    arguments,
    batch,
    hf_settings,
    megatron,
    torchrun,
    tracebacks,
)
from megatron_monitor.parsers.patterns import Guarded

_FILES = {log_format.name: log_format for log_format in built_in()}
_ORDER = (
    "neox", megatron, "megatron", "hf-trainer", "dllogger", "deepspeed", "nvrx", arguments,
    "slurm", batch, "batch", "nccl", "failures", tracebacks, "pytorch", torchrun, "torchrun", "launchers", "system",
    "environment", "gpu", "generation-engines", hf_settings, "hf-settings", "documents",
)  # fmt: skip
"""Modules of parsers/formats, and names of its files."""
_CODE_RULES: tuple[Rule, ...] = tuple(
    rule for one in _ORDER for rule in (expressions_of(_FILES[one]) if isinstance(one, str) else one.RULES)
)


def rules_with(own: Sequence[Format]) -> tuple[Rule, ...]:
    """Return the rules of all formats. A user's format replaces a built-in format of the same name."""
    names = {log_format.name for log_format in own}
    marks = rules_of((*own, *(log_format for name, log_format in _FILES.items() if name not in names)))
    own_rules = [rule for log_format in own for rule in expressions_of(log_format, Guarded)]
    return (*marks, *own_rules, *_CODE_RULES, _UNREAD)


_TIME, _UNREAD = expressions_of(_FILES["stamps"])
RULES: tuple[Rule, ...] = rules_with(())
CLOCK_RULES: tuple[Rule, ...] = (*RULES, _TIME)
"""The same rules, and after them the rule for lines of which only the time is read."""
