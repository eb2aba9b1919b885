"""The padded vocabulary where the log does not tell it: the one by which every printed TFLOP/s figure comes out. Pure.

Programs print it on a line of its own before the first iteration; a log that begins later, or was cut, lacks it. Law:
a size is taken only if it is that of a tokenizer in use and the last printed lines come out to their last digit by a
formula of the run's own program, and by no other such size.
"""

from __future__ import annotations

import copy
from dataclasses import replace

from monitor.model.flops import FORMULAS, formulas_of, prints_as
from monitor.model.topology import Topology
from monitor.run.state import RunState

_TOKENIZERS = (
    32000, 32768, 49152, 50257, 50280, 50304, 64000, 65024, 92544, 100277, 102400, 128000, 128256, 129280, 131072,
    151643, 151936, 152064, 200019, 202048, 250680, 256000, 262144,
)  # fmt: skip
"""Llama and Mistral, GPT-2 and NeoX, Yi, GLM, InternLM, tiktoken's, DeepSeek, Qwen, Llama 4, BLOOM, Gemma."""
_LINES = 3  # printed figures that must all come out: one may by chance
_DIVISIBLE = 128  # Megatron's make_vocab_size_divisible_by


def with_vocabulary(state: RunState) -> tuple[RunState, int | None]:
    """The state, and where the vocabulary was found in its figures a copy that has it, with the size."""
    launch = state.launch
    topology = launch.topology
    if topology.padded_vocab_size is not None or len(launch.observed.tflops) < _LINES or topology.unusual:
        return state, None
    multiple = _DIVISIBLE * (topology.tensor_parallel_size or 1)
    sizes = {-(-size // multiple) * multiple for size in _TOKENIZERS}
    fitting = [size for size in sorted(sizes) if _fits(state, replace(topology, padded_vocab_size=size))]
    if len(fitting) != 1:
        return state, None
    known = copy.copy(state)
    known.launch = copy.copy(launch)
    known.launch.topology = replace(topology, padded_vocab_size=fitting[0])
    return known, fitting[0]


def _fits(state: RunState, topology: Topology) -> bool:
    launch = state.launch
    return any(
        all(
            (value := FORMULAS[name](topology, seconds, batch, length)) is not None and prints_as(value, printed)
            for printed, seconds, batch, length in launch.observed.tflops
        )
        for name in formulas_of(launch.dialect)
    )
