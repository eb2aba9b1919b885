"""Every speaker we understand, in the order in which its rules are asked."""

from __future__ import annotations

from collections.abc import Callable

from parsers.declared.builtin import built_in
from parsers.declared.compiled import gatherer_of, rules_of
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
    neox,
    pytorch,
    slurm,
    stamps,
    system,
)

SPEAKERS = (
    neox,
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
    launchers,
    system,
    environment,
    deepspeed_report,
    gpu,
    hf_settings,
)

DECLARED: tuple[Rule, ...] = rules_of(built_in())
"""Dialects that are data (parsers/trainers)."""
RULES: tuple[Rule, ...] = (*DECLARED, *(rule for speaker in SPEAKERS for rule in speaker.RULES))
CLOCK_RULES: tuple[Rule, ...] = (*RULES, *stamps.RULES)
"""... and last, lines of which only the time is read."""
GATHERERS: dict[str, Callable[..., Gatherer]] = {
    name: gatherer for speaker in SPEAKERS for name, gatherer in getattr(speaker, "GATHERERS", {}).items()
} | {rule.name: block for rule in DECLARED if (block := gatherer_of(rule))}
