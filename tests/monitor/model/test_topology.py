"""Topology from arguments dumps of several programs, and what follows from it."""

from megatron_monitor.model.topology import Topology, apply
from megatron_monitor.parsers.events import (
    ArgumentsDumped,
    BatchSizeRampupPlanned,
    ModelSettingLogged,
    TopologyLogged,
    TrainerSetting,
)

MEGATRON = {
    "world_size": "384", "tensor_model_parallel_size": "4", "pipeline_model_parallel_size": "12",
    "micro_batch_size": "2",
    "global_batch_size": "2048", "num_layers": "70", "hidden_size": "14336", "num_attention_heads": "112",
    "seq_length": "2048", "padded_vocab_size": "250880", "bf16": "True", "fp16": "False", "zero_stage": "0",
    "checkpoint_activations": "True", "train_iters": "115311", "glu_activation": "None", "eval_interval": "1000",
    "num_experts": "[1]", "rampup_batch_size": "['192', '16', '9_765_625']", "ffn_hidden_size": "57344",
}  # fmt: skip
NEOX = {
    "global_num_gpus": "8", "pipe_parallel_size": "0", "model_parallel_size": "2", "train_batch_size": "512",
    "train_micro_batch_size_per_gpu": "64", "num_layers": "6", "hidden_size": "512", "seq_length": "2048",
    "precision": "fp16", "zero_optimization": "{'stage': 1, 'allgather_partitions': True}",
    "checkpoint_activations": "True",
}  # fmt: skip


def reported(values: dict[str, str]) -> Topology:
    """The topology after one dump."""
    topology = apply(Topology(), ArgumentsDumped(values=values))
    assert topology is not None
    return topology


def test_megatron() -> None:
    """Every size of a dump, the data parallel size worked out, the labels of run_info."""
    topology = reported(MEGATRON)
    assert topology.data_parallel_size == 8
    assert (topology.dtype, topology.activation_checkpointing, topology.glu) == ("bf16", "full", False)
    assert topology.rampup == (192, 16, 9765625)
    assert (topology.zero_stage, topology.experts) == (0, 1)
    labels = topology.labels()
    assert (labels["tp"], labels["pp"], labels["dp"], labels["mbs"], labels["zero_stage"]) == ("4", "12", "8", "2", "0")


def test_gpt_neox() -> None:
    """gpt-neox's names: no pipeline is one stage, ZeRO stands in a dict, precision is a word."""
    topology = reported(NEOX)
    assert (topology.world_size, topology.pipeline_parallel_size, topology.data_parallel_size) == (8, 1, 4)
    assert (topology.zero_stage, topology.dtype, topology.format) == (1, "fp16", "gpt-neox")


def test_one_process_a_node() -> None:
    """A CPU machine is a world of nodes: nothing in the arithmetic needs a GPU."""
    topology = reported({"world_size": "64", "tensor_model_parallel_size": "1", "pipeline_model_parallel_size": "1"})
    assert topology.data_parallel_size == 64


def test_none_is_absent() -> None:
    """`None` and empty values tell nothing."""
    assert apply(Topology(), ArgumentsDumped(values={"num_layers": "None", "hidden_size": ""})) is None


def test_what_is_told_outlives_what_is_worked_out() -> None:
    """A later dump replaces derived sizes, not told ones."""
    topology = reported({"world_size": "8", "tensor_model_parallel_size": "2", "pipeline_model_parallel_size": "1"})
    assert topology.data_parallel_size == 4
    changed = apply(topology, TopologyLogged(world_size=16))
    assert changed is not None
    assert (changed.data_parallel_size, changed.tensor_parallel_size) == (8, 2)


def test_the_lines_around_the_dump() -> None:
    """Vocabulary, ramp-up, the Trainer's block."""
    topology = apply(Topology(), ModelSettingLogged(name="padded_vocab_size", value=50304.0))
    assert topology is not None
    assert topology.padded_vocab_size == 50304
    ramp = apply(topology, BatchSizeRampupPlanned(start=32, end=2048, increment=32, samples=1000))
    assert ramp is not None
    assert (ramp.rampup, ramp.global_batch_size) == ((32, 32, 1000), 2048)
    trainer = apply(ramp, TrainerSetting(name="total optimization steps", value=500.0))
    assert trainer is not None
    assert trainer.train_iterations == 500


def test_hostile_values_never_raise() -> None:
    """Whatever stands behind the dots."""
    for text in ("[" * 5000, "{'stage':", "1e400", "nan", "-5", "True", "9" * 400, "[None]", "\x00"):
        apply(Topology(), ArgumentsDumped(values=dict.fromkeys(MEGATRON, text) | dict.fromkeys(NEOX, text)))
