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
    megatron_reports,
    torchrun,
    tracebacks,
)
from megatron_monitor.parsers.patterns import Guarded

_ORDER = (
    "neox", "megatron", "hf-trainer", "dllogger", "deepspeed", "megatron_reports", "nvrx", "arguments",
    "slurm", "batch", "nccl", "failures", "tracebacks", "pytorch", "torchrun", "launchers", "system",
    "environment", "gpu", "generation-engines", "hf_settings", "hf-settings", "documents",
)  # fmt: skip
"""Names in parsers/formats: a module, a file (`.yaml`), or the file after the module of its name."""
_CODE = (arguments, batch, hf_settings, megatron, megatron_reports, torchrun, tracebacks)
_FILES = {log_format.name: log_format for log_format in built_in()}
_MODULES = {module.__name__.rpartition(".")[2]: module for module in _CODE}
_CODE_RULES: tuple[Rule, ...] = tuple(
    rule
    for name in _ORDER
    for rule in (
        *(_MODULES[name].RULES if name in _MODULES else ()),
        *(expressions_of(_FILES[name]) if name in _FILES else ()),
    )
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
GATHERERS = {rule.name: rule.opens for rule in _CODE_RULES if rule.opens is not None}
