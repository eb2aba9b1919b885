"""Every speaker we understand, in the order in which its rules are asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parsers.declared.builtin import built_in
from parsers.declared.compiled import rules_of
from parsers.declared.schema import Dialect
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
    megatron_checkpoint,
    megatron_reports,
    megatron_setup,
    nccl,
    pytorch,
    slurm,
    stamps,
    system,
    torchrun,
)

SPEAKERS = (
    argonne,
    megatron,
    hf_trainer,
    deepspeed,
    megatron_checkpoint,
    megatron_setup,
    megatron_reports,
    arguments,
    slurm,
    batch,
    nccl,
    pytorch,
    torchrun,
    launchers,
    system,
    environment,
    deepspeed_report,
    gpu,
    hf_settings,
)

_CODE: tuple[Rule, ...] = tuple(rule for speaker in SPEAKERS for rule in speaker.RULES)


def rules_with(own: Sequence[Dialect]) -> tuple[Rule, ...]:
    """The rules of all formats with those of a site's own dialects, which replace built-in ones of the same name."""
    names = {dialect.name for dialect in own}
    return (*rules_of((*own, *(dialect for dialect in built_in() if dialect.name not in names))), *_CODE)


RULES: tuple[Rule, ...] = rules_with(())
CLOCK_RULES: tuple[Rule, ...] = (*RULES, *stamps.RULES)
"""... and last, lines of which only the time is read."""
GATHERERS: dict[str, Callable[..., Gatherer]] = {
    name: gatherer for speaker in SPEAKERS for name, gatherer in getattr(speaker, "GATHERERS", {}).items()
}
