"""Do the printed TFLOPs follow from the arguments? K08 which formula, K12 by which factor not, K11 what they imply, K17
whether the hardware can do it, K15 whether time grows with the batch as a pipeline's does.

A product of time and TFLOPs is blind to the two being swapped (K13): that takes another record of the same run.
"""

from __future__ import annotations

from collections.abc import Iterator

from monitor.run import causes, derived
from monitor.run.audit.finding import Finding, Severity
from monitor.run.flops import FORMULAS, formulas_of, passes, prints_as
from monitor.run.sizes import parameters
from monitor.run.state import RunState
from monitor.statistics.median import median

_NEAR = 0.004  # of a ratio: print precision of time and figure together
_RATIOS: tuple[tuple[float, Severity, str], ...] = (
    (2.0, "warning", "twice: half the tokens per sample (1024 for 2048) or half the GPUs run"),
    (0.5, "warning", "half: the figure was made with half the tokens per sample, or over twice the GPUs"),
    (4.0, "warning", "four times: a quarter of the batch (512 for 2048) runs, or it is per node of 4 GPUs"),
    (0.25, "warning", "a quarter: made with a quarter of the batch (512 for 2048), or over nodes of 4 GPUs"),
    (8.0, "warning", "eight times: it is per node of 8 GPUs"),
    (0.125, "warning", "an eighth: 8 GPUs were counted as one"),
    (0.5 * 1048 / 1024, "warning", "half, and a batch of 1048 for 1024: half the tokens per sample, and a slip"),
    (2 * 1048 / 1024, "warning", "twice, and a batch of 1048 for 1024"),
    (4 / 3, "info", "4/3: it counts recomputed activations, the arguments have none"),
    (3 / 4, "info", "3/4: it does not count the recomputation that the arguments have"),
    (1048 / 1024, "info", "1.0234: a batch of 1048 for 1024"),
    (1024 / 1048, "info", "1/1.0234: a batch of 1024 for 1048"),
    (2**30 / 1e9, "info", "1.0737: sizes in units of 2^30"),
    (1e9 / 2**30, "info", "1/1.0737: sizes in units of 2^30"),
    (1.024, "info", "1.024: units of 1024 for 1000"),
    (1000.0, "info", "1000: milliseconds were taken for seconds"),
    (0.001, "info", "1/1000: milliseconds were taken for seconds"),
)  # fmt: skip
_V100_BUG = 100.0  # TFLOP/s that no V100 does in training (the notes call more "a bug in the calculation")
_APART = 0.01  # below, another count of norms and biases
_SCALING = 0.10  # from the pipeline's own law: more is no effect of the batch size
_SAMPLES = 8  # iterations at each of the two batch sizes


def figures(state: RunState) -> Iterator[Finding]:
    """The checks of printed figures."""
    yield from _printed(state)
    yield from _plausible(state)
    yield from _scaling(state)


def _printed(state: RunState) -> Iterator[Finding]:
    topology, lines = state.topology, state.observed.tflops
    if (
        not lines
        or topology.unusual
        or (topology.experts or 0) > 1
        or topology.mtp_layers
        or topology.other_parallelism
    ):
        return
    own = formulas_of(topology.dialect)
    values = {
        name: [(formula(topology, seconds, batch, length), printed) for printed, seconds, batch, length in lines]
        for name, formula in FORMULAS.items()
    }
    known = {name: [(value, told) for value, told in pairs if value] for name, pairs in values.items()}
    known = {name: pairs for name, pairs in known.items() if len(pairs) == len(lines)}
    for name in (*own, *known):
        if name in known and all(prints_as(value, told) for value, told in known[name]):
            if own and name != own[0]:
                now = known.get(own[0])
                other = f", {now[-1][0] / known[name][-1][0] - 1:+.1%} by {own[0]}" if now else ""
                text = (
                    f"printed TFLOPs follow the formula {name}{other}: do not compare with figures of another formula"
                )
                yield Finding("K08", "info", text, "formula", {"formula": name, "newest": own[0]})
            return
    # Nothing fits as it stands: which factor would make the program's own formula fit?
    candidates = [name for name in own if name in known] or list(known)
    best: tuple[float, float, Severity, str, str] | None = None
    for name in candidates:
        for factor, severity, cause in _RATIOS:
            off = max(abs(told / value / factor - 1) for value, told in known[name])
            fits = off <= _NEAR or all(prints_as(value * factor, told) for value, told in known[name])
            if fits and (best is None or off < best[0]):
                best = (off, factor, severity, cause, name)
    if best is not None:
        _, factor, severity, cause, name = best
        value, told = known[name][-1]
        text = f"printed {told:g} TFLOPs, {name} gives {value:.4g} from the arguments: {cause}"
        evidence: dict[str, object] = {"printed": told, "recomputed": round(value, 3), "formula": name}
        fitting = causes.wrong_input(told, topology, *lines[-1][1:])
        if fitting:
            evidence["would_fit"] = fitting[:3]
        yield Finding("K12", severity, text, f"{factor:.4g}", {**evidence, "ratio": round(factor, 4)})
    elif candidates:
        yield from _unexplained(state, candidates[0], known[candidates[0]])


def _unexplained(state: RunState, name: str, pairs: list[tuple[float, float]]) -> Iterator[Finding]:
    value, told = pairs[-1]
    if max(abs(told / value - 1) for value, told in pairs) <= _APART:
        return
    evidence: dict[str, object] = {"printed": told, "recomputed": round(value, 3), "formula": name}
    text = (
        f"printed {told:g} TFLOPs do not follow from the arguments: {name} gives {value:.4g} ({told / value - 1:+.1%})"
    )
    yield Finding("K08", "info", text, "unexplained", evidence)
    implied = _implied(state)
    if implied is not None:
        size, counted = implied
        if abs(size / counted - 1) > _APART:
            text = f"printed TFLOPs imply {size / 1e9:.4g}B parameters, the arguments make {counted / 1e9:.4g}B"
            yield Finding("K11", "info", text, evidence={"implied": round(size), "parameters": round(counted)})


def _implied(state: RunState) -> tuple[float, float] | None:
    """(parameters that the printed figure implies by 2 F P s B / (t W), parameters of the arguments)."""
    topology = state.topology
    told, seconds, batch, length = state.observed.tflops[-1]
    factor, world, counted = passes(topology), topology.world_size, parameters(topology)
    count = topology.parameters or (counted[0] if counted else None)
    if not factor or not world or not count:
        return None
    return told * 1e12 * seconds * world / (2 * factor * length * batch), float(count)


def _plausible(state: RunState) -> Iterator[Finding]:
    printed = state.latest.tflops
    if printed is None or state.topology.low_precision:
        return
    peak = derived.peak_tflops(state, None)
    name = state.topology.gpu_name or ""
    if peak is None and "V100" in name:
        peak = _V100_BUG
    if peak is not None and "V100" in name:
        peak = min(peak, _V100_BUG)
    if peak is not None and printed > peak:
        text = f"printed {printed:g} TFLOPs per GPU are more than a {name} can do ({peak:g}): the figure is wrong"
        yield Finding("K17", "warning", text, evidence={"printed": printed, "limit": peak})


def _scaling(state: RunState) -> Iterator[Finding]:
    """t2 / t1 = (m2 + PP - 1) / (m1 + PP - 1) for m micro batches a rank: a pipeline's time in its batch."""
    topology = state.topology
    micro, data, stages = topology.micro_batch_size, topology.data_parallel_size, topology.pipeline_parallel_size
    if not micro or not data or not stages or topology.uneven_pipeline or (topology.virtual_pipeline_size or 1) > 1:
        return
    windows = [(size, window) for size, window in state.pace.windows.items() if size and len(window) >= _SAMPLES]
    if len(windows) < 2:
        return
    (small, before), (large, after) = sorted(windows)[0], sorted(windows)[-1]
    first, last = small / (micro * data), large / (micro * data)
    if first < 2 * stages:
        return  # a pipeline that is hardly filled, and times that do not depend on the batch, weigh too much
    expected = median(before) * (last + stages - 1) / (first + stages - 1)
    taken = median(after)
    if taken > (1 + _SCALING) * expected:
        yield Finding(
            "K15",
            "info",
            f"batch size {large} takes {taken:.4g} s, {taken / expected - 1:+.0%} over what {small} lets expect "
            f"({expected:.4g} s): not an effect of the batch size",
            evidence={"seconds": round(taken, 3), "expected_seconds": round(expected, 3)},
        )
