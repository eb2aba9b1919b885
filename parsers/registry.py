"""Every speaker we understand, in the order in which its rules are asked."""

from collections.abc import Callable, Sequence
from pkgutil import get_data
from types import ModuleType

from parsers.declared.builtin import built_in
from parsers.declared.compiled import rules_of
from parsers.declared.schema import Dialect
from parsers.engine.forms import rules_in
from parsers.engine.scan import Gatherer, Rule
from parsers.formats import (
    argonne,
    arguments,
    batch,
    deepspeed,
    deepspeed_report,
    environment,
    gpu,
    hf_settings,
    hf_trainer,
    launchers,
    megatron,
    megatron_reports,
    megatron_setup,
    nccl,
    pytorch,
    slurm,
    stamps,
    torchrun,
)

SPEAKERS: tuple[ModuleType | str, ...] = (
    "neox",
    argonne,
    megatron,
    hf_trainer,
    deepspeed,
    "megatron_checkpoint",
    megatron_setup,
    megatron_reports,
    arguments,
    slurm,
    batch,
    nccl,
    pytorch,
    torchrun,
    launchers,
    "system",
    environment,
    deepspeed_report,
    gpu,
    hf_settings,
)
"""A module of parsers/formats, with the file of its name (`.yaml`) behind it, or such a file alone."""
_FILES = rules_in(get_data("parsers.formats", "forms.json") or b"{}")


def _of(speaker: ModuleType | str) -> tuple[Rule, ...]:
    name = speaker if isinstance(speaker, str) else speaker.__name__.rpartition(".")[2]
    return (*getattr(speaker, "RULES", ()), *_FILES.get(name, ()))


_OWN: tuple[Rule, ...] = tuple(rule for speaker in SPEAKERS for rule in _of(speaker))


def rules_with(own: Sequence[Dialect]) -> tuple[Rule, ...]:
    """The rules of all formats with those of a site's own dialects, which replace built-in ones of the same name."""
    names = {dialect.name for dialect in own}
    return (*rules_of((*own, *(dialect for dialect in built_in() if dialect.name not in names))), *_OWN)


RULES: tuple[Rule, ...] = rules_with(())
CLOCK_RULES: tuple[Rule, ...] = (*RULES, *stamps.RULES)
"""... and last, lines of which only the time is read."""
GATHERERS: dict[str, Callable[..., Gatherer]] = {
    name: gatherer for speaker in SPEAKERS for name, gatherer in getattr(speaker, "GATHERERS", {}).items()
}
