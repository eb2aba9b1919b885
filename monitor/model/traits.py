"""What an arguments dump tells beyond sizes: what makes plain arithmetic not apply. Pure.

In: the dump's values as printed. Out: fields of `Topology`. Law: a trait is only ever a reason to stay silent, so a
doubtful one counts as there.
"""

from __future__ import annotations

from typing import Any

from parsers.engine.fields import integer

_OFF = frozenset({"", "None", "False", "0", "1", "[]", "{}", "[1]", "1.0", "no_shard"})
_UNEVEN = (
    "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "pipeline_model_parallel_layout",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "standalone_embedding_stage",
    "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "pipeline_model_parallel_split_rank",
    "encoder_pipeline_model_parallel_size", "noop_layers", "enable_zbh1_pipeline", "heterogeneous_layers_config_path",
    "decoder_pipeline_manual_split_list",
)  # fmt: skip
"""Arguments of the programs that lay layers out by hand, or schedule them in another way than one forward, one back."""
_UNUSUAL = (
    "multi_latent_attention", "hybrid_attention_ratio", "hybrid_layer_pattern", "hybrid_override_pattern",
    "is_hybrid_model", "linear_attention_freq", "linear_attention_type", "experimental_attention_variant",
    "sft", "variable_seq_lengths", "packing", "sequence_packing",
    "use_packed_sequences", "pack_sequences", "sequence_packing_scheduler", "curriculum_learning",
    "curriculum_learning_legacy", "data_efficiency_curriculum_learning", "random_ltd", "attention_sink",
    "decoder_num_layers",
    "encoder_num_layers_t5", "retro_add_retriever", "use_dataset_only_lora", "lora_rank", "lora_r", "peft",
    "encoder_tensor_model_parallel_size", "encoder_pipeline_model_parallel_size", "hybrid_context_parallel",
    "window_size", "sliding_window", "mamba_num_heads", "is_encoder_decoder", "sparse_attention_mode",
)  # fmt: skip
"""Arguments under which FLOPs, parameters or tokens per sample are not those of a plain GPT."""
PACKED = frozenset(
    {
        "sft", "variable_seq_lengths", "packing", "sequence_packing", "use_packed_sequences", "pack_sequences",
        "sequence_packing_scheduler", "packed documents", "hybrid_context_parallel",
    }
)  # fmt: skip
"""Those of them by which a sample holds as many sequences as fit: attention's FLOPs differ from step to step."""
_PARALLEL = frozenset(
    {
        "tensor_model_parallel_size", "model_parallel_size", "pipeline_model_parallel_size", "pipe_parallel_size",
        "transformer_pipeline_model_parallel_size", "data_parallel_size", "context_parallel_size",
        "ds_sequence_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size",
        "moe_expert_parallel_size", "virtual_pipeline_model_parallel_size", "world_size",
    }
)  # fmt: skip
_SCHEDULE = (
    "lr", "min_lr", "lr_decay_style", "lr_decay_iters", "lr_decay_samples", "lr_decay_tokens", "lr_warmup_iters",
    "lr_warmup_samples", "lr_warmup_tokens", "lr_warmup_fraction", "lr_wsd_decay_iters", "lr_wsd_decay_samples",
    "train_iters", "train_samples", "train_tokens", "override_lr_scheduler", "override_opt_param_scheduler", "finetune",
    "rampup_batch_size", "global_batch_size", "optimizer", "scheduler",
)  # fmt: skip
"""Arguments that a person changes to begin a new phase on purpose."""


_FLASH = ("use_flash_attn", "use_flash_attn_v2", "use_mcore_models", "use_flash_attn_triton")
_SWITCHES = {
    "uneven_pipeline": _UNEVEN,
    "untied": ("untie_embeddings_and_output_weights", "no_weight_tying"),
    "flexible_batch": ("decrease_batch_size_if_needed",),
    "low_precision": ("fp8", "fp4", "transformer_impl_fp8"),
    "saves": ("save",),
}
"""Field of `Topology` -> the arguments of which any, if it is on, sets it."""


def _on(values: dict[str, str], name: str) -> bool:
    return values.get(name, "None") not in _OFF


def _grows(values: dict[str, str]) -> bool:
    """A first length below the full one: how the first random-LTD was told."""
    first, full = values.get("initial_sequence_length", ""), values.get("seq_length", "")
    return all(one.isdecimal() and len(one) < 19 for one in (first, full)) and 0 < int(first) < int(full)


def _parallelism(values: dict[str, str]) -> list[str]:
    named = (name for name in values if name.endswith("_parallel_size") and "inference" not in name)
    others = sorted(name for name in named if name not in _PARALLEL and _on(values, name))
    return [*others, *(["gtp_remat_size"] if _on(values, "gtp_remat_size") else [])]


def _unusual(values: dict[str, str]) -> list[str]:
    packed = _on(values, "reset_attention_mask") and _on(values, "reset_position_ids")
    return [name for name in _UNUSUAL if _on(values, name)] + (["packed documents"] if packed else [])


def from_arguments(values: dict[str, str]) -> dict[str, Any]:
    """The traits that a dump tells; every field is given, so that a new launch replaces the last one's."""
    virtual = values.get("virtual_pipeline_model_parallel_size") or values.get(
        "num_virtual_stages_per_pipeline_rank", ""
    )
    return {
        **{field: any(_on(values, name) for name in names) for field, names in _SWITCHES.items()},
        "virtual_pipeline_size": max(integer(virtual) or 1, 1),
        "other_parallelism": _parallelism(values),
        "unusual": _unusual(values),
        "sequence_grows": _on(values, "random_ltd") or _grows(values),
        "fused_softmax": {"True": True, "False": False}.get(values.get("masked_softmax_fusion", "")),
        "flash": any(_on(values, name) for name in _FLASH) or values.get("transformer_impl") == "transformer_engine",
        "schedule": ";".join(f"{name}={values[name][:200]}" for name in _SCHEDULE if name in values),
    }
