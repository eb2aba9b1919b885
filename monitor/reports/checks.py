"""Consistency checks of one run's own figures, as a report shows them. Pure.

audit.py compares what the log's lines and arguments say; a report adds the medians that it prints. The padded
vocabulary that a log lacks is found here too: programs print it on a line of its own before the first iteration.
Law: a size is taken only if it is that of a tokenizer in use and the last printed lines come out to their last digit
by a formula of the run's own program, and by no other such size.
"""

import copy

from msgspec.structs import replace

from megatron_monitor.audit import RANK, Inconsistency, audit
from megatron_monitor.model import flops
from megatron_monitor.model.arguments import PACKED
from megatron_monitor.model.flops import FORMULAS, formulas_of, prints_as
from megatron_monitor.model.topology import Topology
from megatron_monitor.run.state import RunState

_VARIES = 0.02  # of an iteration's FLOPs: more than the rounding of three digits of a rate and of its time


def findings(state: RunState, own: Inconsistency | None) -> list[Inconsistency]:
    """Every check that failed, the worst first; `own`: what `misprint` has found."""
    others = [found for found in audit(state) if found.check != "K08"]  # judged by the medians that the row shows
    return sorted([*([own] if own else []), *others], key=lambda found: -RANK[found.severity])


def noted(finding: Inconsistency) -> bool:
    """Whether it belongs into the Notes column: what is wrong or wasteful, and a pipeline that waits."""
    return finding.severity != "info" or finding.check == "K27" or "cannot be recomputed" in finding.message


def misprint(
    state: RunState, printed: float | None, seconds: float | None, batch: int | None, sequence: int | None,
    rounding: float, formula: str | None,
) -> Inconsistency | None:  # fmt: skip
    """K08: a printed figure that no formula gives (`formula`: the one that does). `rounding`: half a unit of the last
    digit that the log prints of the seconds.
    """
    topology = state.launch.topology
    if formula or not (printed and seconds and batch and sequence):
        return None
    if why := _no_recomputing(state):
        return Inconsistency("K08", "info", why)
    near = flops.nearest(printed, topology, seconds, batch, sequence)
    if near is None:
        return None  # too little is known to judge
    off = near[1] / printed - 1
    if abs(off) <= rounding / seconds:
        return None  # the seconds are printed too coarsely to distinguish the formulas
    text = f"TFLOPs {printed:g} do not reproduce: {near[0]} gives {near[1]:.2f} ({off:+.1%})"
    return Inconsistency("K08", "warning", text)


_WITHIN = (0.0, -0.25, 0.25, -0.5, 0.5, -0.75, 0.75, -1.0, 1.0)  # of the seconds' rounding, the printed value first


def explains(
    state: RunState, printed: float | None, seconds: float, batch: int | None, sequence: int | None, rounding: float
) -> str | None:
    """The formula behind a printed figure: of these figures, the seconds as they may have been before rounding;
    else the one that explained the run's first line.
    """
    launch = state.launch
    if printed is None:
        return None
    if launch.tflops_formula == flops.EFFECTIVE:
        return flops.EFFECTIVE  # the line names it
    found = (
        flops.explain_printed(printed, launch.topology, seconds + share * rounding, batch, sequence)
        for share in _WITHIN
        if seconds + share * rounding > 0
    )
    return next((name for name in found if name), None) or launch.tflops_formula


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


def _no_recomputing(state: RunState) -> str:
    """Why no formula can give what is printed; empty where one should."""
    unusual, lines = state.launch.topology.unusual, state.launch.observed.tflops
    if packed := PACKED.intersection(unusual):
        text = f"sequences are packed ({', '.join(sorted(packed))}): printed TFLOPs count what each line's held"
        return f"{text}, and cannot be recomputed"
    if unusual:
        return f"TFLOPs cannot be recomputed with {', '.join(unusual[:3])}"
    work = [tflops * took for tflops, took, size, _ in lines if size == lines[-1][2]]  # FLOPs of an iteration
    if len(work) > 1 and max(work) > (1 + _VARIES) * min(work):
        text = "printed TFLOPs x seconds differ from line to line: they count what each line's sequences held"
        return f"{text} (packed, or of varying length), and cannot be recomputed"
    return ""
