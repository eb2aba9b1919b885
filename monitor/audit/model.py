"""Is the model the one that the run's name states, and do its shapes suit the kernels? K07, K20."""

from __future__ import annotations

import re
from collections.abc import Iterator

from monitor.audit.checks import Finding
from monitor.model.sizes import parameters
from monitor.model.topology import Topology
from monitor.run.state import RunState

_FAMILY = (
    r"(?:llama|qwen|gpt|opt|bloom|pythia|mistral|gemma|falcon|yi|phi|glm|neox|deepseek|baichuan|mpt|olmo|internlm)"
)
# `104B` in tr8-104B-wide, `1.3B`, `1b` in llama3-1b, `7b` in qwen7b; no `300B-tokens`, no `tr8b`
_BILLIONS = re.compile(
    rf"(?:(?<![A-Za-z0-9.])|{_FAMILY})(\d{{1,4}}(?:\.\d{{1,2}})?)b(?![A-Za-z0-9]|[-_ ]?tok)", re.IGNORECASE
)
# `1B3` is 1.3 billion, as BigScience writes it
_INFIX = re.compile(r"(?<![A-Za-z0-9.])(\d{1,2})[bB](\d)(?![A-Za-z0-9.])")
# `350M`
_MILLIONS = re.compile(r"(?<![A-Za-z0-9.])(\d{2,3})M(?![A-Za-z0-9]|[-_ ]?tok)")
_TOLERANCE = 0.10  # names round, and count the embedding or not; 2^30 for 1e9 is 7 %
_CLEAR = 0.30  # more than any rounding of a name
_UNRELATED = 3.0  # beyond this factor the name states something else, or the run is a cut-down trial
_FUSED = range(17, 4097)  # sequence lengths for which Megatron's fused softmax has a kernel
_MIXTURE = re.compile(r"\d[xX]\d{1,3}[bB]|[aA]\d{1,3}[bB]\b|moe", re.IGNORECASE)


def labels(texts: list[str]) -> dict[str, float]:
    """Model sizes in names: label -> parameters. Of a path only its last two parts are searched."""
    found: dict[str, float] = {}
    for text in texts:
        name = "/".join(text.rstrip("/").split("/")[-2:])[:300]
        for match in _INFIX.finditer(name):
            found[match[0]] = float(f"{match[1]}.{match[2]}") * 1e9
        for match in _BILLIONS.finditer(name):
            found[f"{match[1]}B"] = float(match[1]) * 1e9
        for match in _MILLIONS.finditer(name):
            found[match[0]] = float(match[1]) * 1e6
    return {label: size for label, size in found.items() if 1e7 <= size <= 5e12}


def _unit(label: str) -> float:
    """Parameters that rounding may hide: a little over half a unit of the label's last digit; 7B may be 7.5B."""
    scale = 1e6 if label.endswith("M") else 1e9
    digits = label[:-1].partition(".")[2] if label[-1] in "bBM" else "0"
    return 0.51 * scale / float(10 ** len(digits))


def model(state: RunState) -> Iterator[Finding]:
    """What fails of the model's size and shapes."""
    launch = state.launch
    yield from _shapes(launch.topology)
    yield from _softmax(launch.topology)
    yield from _size(state)


def _shapes(topology: Topology) -> Iterator[Finding]:
    hidden, heads = topology.hidden_size, topology.attention_heads
    if not hidden or not heads or topology.dtype == "fp32":
        return
    if hidden % 128:
        text = (
            f"hidden size {hidden} is no multiple of 128 (rest {hidden % 128}): matrix kernels fill their tiles badly"
        )
        yield Finding("K20", "info", text, "hidden", {"hidden_size": hidden})
    size = topology.kv_channels or (hidden // heads if hidden % heads == 0 else None)
    if size and size % 8:
        text = f"heads of {size} channels are no multiple of 8: attention is slower (25 % was measured)"
        yield Finding("K20", "info", text, "head size", {"head_size": size})


def _softmax(topology: Topology) -> Iterator[Finding]:
    """Megatron's fused softmax; flash attention needs none."""
    heads, tensor, micro = topology.attention_heads, topology.tensor_parallel_size, topology.micro_batch_size
    if topology.fused_softmax is None or topology.flash is not False or topology.dtype == "fp32":
        return
    if not topology.fused_softmax:
        return  # programs switch it off by themselves where another attention kernel is chosen
    if heads and tensor and micro and heads % tensor == 0 and heads // tensor * micro % 4:
        text = f"({heads} heads / TP {tensor}) x micro batch {micro} is no multiple of 4: the fused softmax is not used"
        yield Finding("K20", "info", text, "fused softmax", {"attention_heads": heads, "micro_batch_size": micro})
    length = topology.sequence_length
    if length and length not in _FUSED:
        text = f"{length} tokens are outside what the fused softmax can do"
        yield Finding("K20", "info", text, "fused softmax length", {"sequence_length": length})


def _size(state: RunState) -> Iterator[Finding]:
    topology = state.launch.topology
    if (topology.experts or 0) > 1 or topology.unusual or topology.mtp_layers:
        return
    counted = parameters(topology)
    if counted is None:
        return
    total, outside = counted
    hidden, vocab = topology.hidden_size or 0, topology.padded_vocab_size or 0
    sizes = [float(total), float(outside), float(total + vocab * hidden)]
    logged = _logged(state)
    evidence: dict[str, object] = {
        "parameters": total,
        "outside_embedding": outside,
        "ffn_hidden_size": topology.ffn_hidden_size,
    }
    narrow = _narrow(topology.ffn_hidden_size, topology.hidden_size, topology.glu)
    yield from _name(state, [*sizes, *([logged] if logged else [])], evidence, narrow)
    if logged and not 0.95 * outside <= logged <= 1.05 * (total + 2 * vocab * hidden):
        yield Finding(
            "K07",
            "info",
            f"the ranks counted {_short(logged)} parameters, the arguments make {_short(total)}",
            "counted",
            {**evidence, "counted": round(logged)},
        )


def _logged(state: RunState) -> float | None:
    """Parameters: the sum over ranks if all have logged theirs, else the count of the program itself."""
    launch = state.launch
    topology = launch.topology
    ranks = (topology.tensor_parallel_size or 0) * (topology.pipeline_parallel_size or 0)
    complete = ranks and len(launch.parameters_by_rank) == ranks
    if complete:
        return float(sum(launch.parameters_by_rank.values()))
    return float(topology.parameters) if topology.parameters and "parameters" in topology.told else None


def _narrow(ffn: int | None, hidden: int | None, glu: bool | None) -> str | None:
    if not ffn or not hidden or glu is not False or 2 * hidden <= ffn <= 8 * hidden:
        return None
    return f"ffn_hidden_size {ffn} is {ffn / hidden:.3g} x hidden size {hidden}, where 4 x = {4 * hidden} is usual"


def _name(state: RunState, sizes: list[float], evidence: dict[str, object], narrow: str | None) -> Iterator[Finding]:
    texts = [state.name, *state.launch.topology.names]
    named = {} if any(_MIXTURE.search(text) for text in texts) else labels(texts)
    off = {label: min(abs(size - stated) for size in sizes) / stated for label, stated in named.items()}
    fits = any(share <= _TOLERANCE or share * named[label] <= _unit(label) for label, share in off.items())
    if not named or fits:
        if narrow:
            yield Finding("K07", "info", narrow, "ffn", evidence)
        return
    label = min(off, key=lambda name: off[name])
    stated, total = named[label], sizes[0]
    apart = max(total / stated, stated / total)
    clear = off[label] > _CLEAR and apart < _UNRELATED and not label.endswith("M")
    yield Finding(
        "K07",
        "warning" if clear else "info",
        f"the run is called {label}, but its arguments make {_short(total)} parameters ({total / stated - 1:+.0%})"
        + (f": {narrow}" if narrow else ""),
        "name",
        {**evidence, "name": label},
    )


def _short(count: float) -> str:
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"
