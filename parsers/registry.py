"""Every speaker we understand, in the order in which its rules are asked."""

from collections.abc import Sequence
from importlib import import_module

from megatron_monitor.parsers.declared.compiled import rules_of
from megatron_monitor.parsers.declared.schema import Dialect, built_in
from megatron_monitor.parsers.engine.scan import Rule
from megatron_monitor.parsers.formats import stamps
from megatron_monitor.parsers.formats.forms import FORMS

SPEAKERS: tuple[str, ...] = (
    "neox", "megatron", "hf_trainer", "deepspeed", "megatron_checkpoint", "megatron_launch",
    "megatron_setup", "megatron_reports", "arguments", "slurm", "batch", "nccl", "failures", "tracebacks", "pytorch",
    "torchrun", "launchers", "scripts", "system", "environment", "deepspeed_report", "gpu", "hf_settings", "unread",
)  # fmt: skip
"""Names of parsers/formats: a module, a file (`.yaml`), or the file behind the module of its name."""
_CODE = (
    "megatron", "hf_trainer", "megatron_setup", "megatron_reports", "arguments", "batch", "tracebacks", "torchrun",
    "scripts", "environment", "hf_settings", "unread",
)  # fmt: skip
MODULES = {name: import_module(f"megatron_monitor.parsers.formats.{name}") for name in _CODE}
"""Those that are code, by name."""
_OWN: tuple[Rule, ...] = tuple(
    rule for name in SPEAKERS for rule in (*getattr(MODULES.get(name), "RULES", ()), *FORMS.get(name, ()))
)


def rules_with(own: Sequence[Dialect]) -> tuple[Rule, ...]:
    """The rules of all formats with those of a site's own dialects, which replace built-in ones of the same name."""
    names = {dialect.name for dialect in own}
    return (*rules_of((*own, *(dialect for dialect in built_in() if dialect.name not in names))), *_OWN)


RULES: tuple[Rule, ...] = rules_with(())
CLOCK_RULES: tuple[Rule, ...] = (*RULES, *stamps.RULES)
"""... and last, lines of which only the time is read."""
GATHERERS = {rule.name: rule.opens for rule in _OWN if rule.opens is not None}
