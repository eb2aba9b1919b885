"""Configuration: every rule fires on the lines that break it, and legal configurations stay silent."""

import pytest

from tests.monitor.detectors.replaying import Replaying, arguments, lines


def started(name: str = "run", text: str = "", **changes: object) -> Replaying:
    """A run whose arguments were dumped."""
    run = Replaying(name)
    run.say(text + arguments(**changes))
    return run


def test_bloom_is_clean() -> None:
    """The arguments and lines of a sound run: nothing at all is wrong, for a thousand lines."""
    run = started("tr11-176B-ml")
    run.say(lines(range(1, 1000)))
    assert run.reported == []


RIGHT = {"rampup_batch_size": "['24', '24', '1000000']", "global_batch_size": 2016, "micro_batch_size": 1,
         "data_parallel_size": 12, "world_size": 576}  # fmt: skip
WRONG = {**RIGHT, "rampup_batch_size": "['32', '32', '1000000']"}


# --- arguments -----------------------------------------------------------------------------------------------------


def test_a_ramp_that_does_not_divide() -> None:
    """Told when the arguments are printed: 24 is a multiple of 12, 32 is not."""
    assert started(**RIGHT).reported == []
    run = started(**WRONG)
    assert [item.severity for item in run.loud("configuration")] == ["warning"]


ENGINE = """\
[2026-03-01 08:00:00,100] [INFO] [config.py:1000:print]   train_batch_size ............. 48
[2026-03-01 08:00:00,100] [INFO] [config.py:1000:print]   train_micro_batch_size_per_gpu  3
[2026-03-01 08:00:00,100] [INFO] [config.py:1000:print]   gradient_accumulation_steps .. 1
"""


@pytest.mark.parametrize("before", [True, False])
def test_the_batch_of_the_engine_is_not_that_of_the_loop(before: bool) -> None:
    """What DeepSpeed's configuration calls the batch stands beside Megatron's own, whichever is printed first; alone it
    is the batch.
    """
    run = started(text=ENGINE if before else "")
    reported = run.run.state.attempt.topology.global_batch_size
    run.say(ENGINE)
    assert run.run.state.attempt.topology.global_batch_size == reported != 48
    assert not run.fired("configuration")
    single = Replaying("run")
    single.say(ENGINE)
    assert single.run.state.attempt.topology.global_batch_size == 48


@pytest.mark.parametrize(
    "changes",
    [
        {"virtual_pipeline_model_parallel_size": 2, "num_layers": 72},
        {"context_parallel_size": 2, "data_parallel_size": 4},
        {"num_experts": 64, "expert_model_parallel_size": 8, "moe_router_topk": 2},
        {"decoder_first_pipeline_num_layers": 4, "decoder_last_pipeline_num_layers": 4, "num_layers": 58},
        {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True},
        {"swiglu": True, "ffn_hidden_size": 38400},
        {"group_query_attention": True, "num_query_groups": 8},
        {"curriculum_learning": True},
        {"rampup_batch_size": "['32', '32', '9765625']"},
        {"encoder_tensor_model_parallel_size": 2, "world_size": 400},
        {"gtp_remat_size": 2, "world_size": 768},
        {"decrease_batch_size_if_needed": True, "global_batch_size": 2050, "rampup_batch_size": "['32', '32', '100']"},
        {"kv_channels": 256, "num_attention_heads": 64},
        {"global_batch_size": 2016, "data_parallel_size": 12, "pipeline_model_parallel_size": 8, "num_layers": 72},
        {"global_batch_size": 2040, "data_parallel_size": 12, "pipeline_model_parallel_size": 8, "num_layers": 72},
        {"multi_latent_attention": True, "kv_channels": 192},
        {"world_size": None, "data_parallel_size": None},
    ],
)
def test_legal_layouts(changes: dict[str, object]) -> None:
    """Virtual pipeline, context and expert parallelism, uneven stages, GLU, grouped queries, unknown inputs ..."""
    run = started("tr11-176B" if not changes.keys() & {"num_layers", "swiglu", "kv_channels"} else "run", **changes)
    run.say(lines(range(1, 12), batch=int(str(changes.get("global_batch_size", 2048))), tflops=111.11))
    assert run.loud() == []
