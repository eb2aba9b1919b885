"""Configuration: every rule fires on the lines that break it, and legal configurations stay silent."""

import pytest

from megatron_monitor.audit import Inconsistency, audit
from megatron_monitor.detectors.configuration import Configuration, ConfigurationSettings
from tests.monitor.detectors.replaying import Replaying, arguments, line, lines


def found(run: Replaying) -> dict[str, Inconsistency]:
    """Key -> finding, of everything that the log has shown."""
    return {finding.key: finding for finding in audit(run.run.state)}


def started(name: str = "run", text: str = "", **changes: object) -> Replaying:
    """A run whose arguments were dumped."""
    run = Replaying(name)
    run.say(text + arguments(**changes))
    return run


def loud(run: Replaying) -> dict[str, str]:
    """Key -> severity of findings that wake somebody."""
    return {key: finding.severity for key, finding in found(run).items() if finding.severity != "info"}


def test_bloom_is_clean() -> None:
    """The arguments and lines of a sound run: nothing at all is wrong, for a thousand lines."""
    run = started("tr11-176B-ml")
    run.say(lines(range(1, 1000)))
    assert found(run) == {}
    assert run.told == []


RIGHT = {"rampup_batch_size": "['24', '24', '1000000']", "global_batch_size": 2016, "micro_batch_size": 1,
         "data_parallel_size": 12, "world_size": 576}  # fmt: skip
WRONG = {**RIGHT, "rampup_batch_size": "['32', '32', '1000000']"}


# --- arguments -----------------------------------------------------------------------------------------------------


def test_a_ramp_that_does_not_divide() -> None:
    """Told when the arguments are printed: 24 is a multiple of 12, 32 is not."""
    assert "K21" not in found(started(**RIGHT))
    run = started(**WRONG)
    assert found(run)["K21"].severity == "warning"
    assert run.loud()


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
    told = run.run.state.launch.topology.global_batch_size
    run.say(ENGINE)
    assert run.run.state.launch.topology.global_batch_size == told != 48
    assert "K21" not in found(run)
    alone = Replaying("run")
    alone.say(ENGINE)
    assert alone.run.state.launch.topology.global_batch_size == 48


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
    assert loud(run) == {}
    assert run.loud() == []


# --- printed figures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["sft", "curriculum_learning", "sequence_packing"])
def test_packed_samples_are_counted_otherwise(argument: str) -> None:
    """One packed sequence holds several samples; a curriculum's figures follow its lengths."""
    run = started(**{argument: True})
    run.say("".join(line(at, samples=at * 9000, tflops=77.0) for at in range(1, 30)))
    assert found(run) == {}


def test_a_curriculum_that_the_line_tells() -> None:
    """`actual seqlen` grows: tokens and TFLOPs follow it, samples do not."""
    run = started(dialect=None)
    for at, length in enumerate(range(64, 2049, 64), 1):
        flops = 24 * 4 * 2048 * length * 70 * 14336**2 * (1 + length / (6 * 14336) + 250880 / (16 * 70 * 14336))
        text = line(at, tflops=flops / (105.22 * 384 * 1e12)).replace(
            "num zeros", f"actual seqlen: {length:5d} | num zeros"
        )
        run.say(text)
    assert loud(run) == {}


# --- hints ----------------------------------------------------------------------------------------------------------


def test_memory_of_the_end_stages() -> None:
    """61 GB where the embedding is, 47 between; balanced ones are silent."""

    def run_with(ends: float) -> Replaying:
        run = started(bf16=True)
        text = "".join(
            f"[Rank {stage * 32}] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | reserved: 3.0 | "
            f"max reserved: {(ends if stage in (0, 11) else 47.0) * 1024:.1f}\n"
            for stage in range(12)
        )
        run.say(line(1) + text + lines(range(2, 8)))
        return run

    assert found(run_with(61.0))["K16"].severity == "info"
    assert "K16" not in found(run_with(48.0))


# --- the incident ---------------------------------------------------------------------------------------------------


def test_ignored_checks() -> None:
    """A site may leave some out."""
    run = started(**WRONG)
    state, rule = run.run.state, Configuration.of(run.run.state)
    assert rule.evaluate(state, run.at, ConfigurationSettings()).state == "firing"
    assert rule.evaluate(state, run.at, ConfigurationSettings(ignore=("K21", "K27"))).state == "clear"
    assert list(ConfigurationSettings(ignore=("K27",)).problems()) == []
    assert "known: K08 TFLOPs formula" in next(iter(ConfigurationSettings(ignore=("K99",)).problems()))[1]
