"""Do the printed figures agree with the arguments and with each other?

K08, K11, K12, K17 TFLOPs; K09, K10 samples; K15 time over batch sizes; K16 memory. docs/formulas.md has
the formulas. The product of time and TFLOPs does not change if the two are exchanged (K13): that takes another run of
the same configuration, as a report has.
"""

from collections.abc import Iterator

from megatron_monitor.audit.checks import Finding, Severity
from megatron_monitor.model import misprints as causes
from megatron_monitor.model.flops import FORMULAS, formulas_of, passes, prints_as
from megatron_monitor.model.sizes import parameters
from megatron_monitor.model.tables import rows_of
from megatron_monitor.model.topology import Topology
from megatron_monitor.run import derived
from megatron_monitor.run.state import RunState
from megatron_monitor.statistics.median import median

_Pairs = list[tuple[float, float]]
"""(recomputed, printed) TFLOP/s per GPU, one pair a line."""

_NEAR = 0.004  # relative error of a ratio: print precision of time and figure together
_RATIOS = rows_of("megatron_monitor.audit", "factors.csv", tuple[float, Severity, str])
"""By which printed TFLOPs are known to be off, how bad that is, and what it comes from."""
_V100_BUG = 100.0  # TFLOP/s; BigScience's notes call more on a V100 "a bug in the calculation"
_APART = 0.01  # smaller differences come from counting norms and biases otherwise
_SCALING = 0.10  # over what the pipeline model expects: more is not an effect of the batch size
_SAMPLES = 8  # iterations at each of the two batch sizes
_RATE = 0.01  # printed digits and seconds are rounded
_LINES = 2  # lines in a row: a single one may be out of order
_ABOVE = 0.15  # memory of the end stages over the others: 61 GB against 47 GB is 30 %
_GIB = 2**30


def figures(state: RunState) -> Iterator[Finding]:
    """What fails. Packed sequences and curricula count samples in their own ways, and are left out of that."""
    if not state.launch.topology.unusual:
        yield from _samples(state)
        yield from _rate(state)
    yield from _tflops(state)
    yield from _peak(state)
    yield from _scaling(state)
    yield from _memory(state)


def _samples(state: RunState) -> Iterator[Finding]:
    seen = state.launch.observed
    if seen.miscounted < _LINES:
        return
    steps, grown, batch = seen.miscount
    text = f"consumed samples grow by {grown} in {steps} iterations, not by {steps} x {batch}"
    evidence = {"iterations": steps, "samples": grown, "global_batch_size": batch}
    yield Finding("K10", "warning", text, evidence=evidence)


def _rate(state: RunState) -> Iterator[Finding]:
    rates = [rate for rate in state.launch.observed.rates if rate > 0]
    if len(rates) < _LINES:
        return
    low, high = min(rates), max(rates)
    if high / low > 1 + 2 * _RATE + _coarse(state):
        return  # no fixed relation: the figure is averaged over other lines
    ratio = (low * high) ** 0.5
    evidence = {"printed_over_recomputed": round(ratio, 6)}
    if abs(ratio * 1000 - 1) <= _RATE + _coarse(state):
        text = "printed samples per second are 1000 times too small: they were divided by milliseconds"
        yield Finding("K09", "info", text, "unit", evidence)
    elif abs(ratio - 1) > _RATE + _coarse(state):
        text = f"printed samples per second are {ratio:.4g} x batch size over time per iteration"
        yield Finding("K09", "info", text, evidence=evidence)


def _coarse(state: RunState) -> float:
    """Relative error of three printed decimals: 0.005 may be 0.0045 to 0.0055."""
    printed = state.launch.latest.samples_per_second
    return 0.0006 / printed if printed else 0.0


def _tflops(state: RunState) -> Iterator[Finding]:
    launch = state.launch
    topology, lines = launch.topology, launch.observed.tflops
    unlike = (topology.experts or 0) > 1 or topology.mtp_layers or topology.unusual or topology.other_parallelism
    if not lines or unlike:
        return  # the formulas do not hold, or not exactly
    own = formulas_of(topology.dialect)
    known = _by_formula(topology, lines)
    candidates = {name: known[name] for name in own if name in known} or known
    fits = next((name for name in {**candidates, **known} if all(prints_as(*pair) for pair in known[name])), None)
    if fits is not None:
        yield from _older(fits, own, known)
    elif (ratio := _ratio(candidates)) is not None:
        yield _factor(state, *ratio, known[ratio[0]][-1])
    elif candidates:
        yield from _unexplained(state, *next(iter(candidates.items())))


def _by_formula(topology: Topology, lines: list[tuple[float, float, int, int]]) -> dict[str, _Pairs]:
    """Of each formula that gives a figure for every line."""
    known: dict[str, _Pairs] = {}
    for name, formula in FORMULAS.items():
        pairs = [(value, line[0]) for line in lines if (value := formula(topology, *line[1:]))]
        if len(pairs) == len(lines):
            known[name] = pairs
    return known


def _older(fits: str, own: tuple[str, ...], known: dict[str, _Pairs]) -> Iterator[Finding]:
    """K08: the formula that gives the printed figures is not the newest one of the run's program."""
    if not own or fits == own[0]:
        return
    newest = known.get(own[0])
    other = f", {newest[-1][0] / known[fits][-1][0] - 1:+.1%} by {own[0]}" if newest else ""
    text = f"printed TFLOPs follow the formula {fits}{other}: do not compare with figures of another formula"
    yield Finding("K08", "info", text, "formula", {"formula": fits, "newest": own[0]})


def _ratio(known: dict[str, _Pairs]) -> tuple[str, float, Severity, str] | None:
    """(formula, factor, severity, cause): the known factor by which all printed figures are off, the nearest one."""
    best: tuple[float, tuple[str, float, Severity, str]] | None = None
    for name, pairs in known.items():
        for factor, severity, cause in _RATIOS:
            off = max(abs(printed / value / factor - 1) for value, printed in pairs)
            fits = off <= _NEAR or all(prints_as(value * factor, printed) for value, printed in pairs)
            if fits and (best is None or off < best[0]):
                best = (off, (name, factor, severity, cause))
    return best[1] if best else None


def _factor(
    state: RunState, name: str, factor: float, severity: Severity, cause: str, pair: tuple[float, float]
) -> Finding:
    """K12, with the wrong inputs that would explain the last figure."""
    launch = state.launch
    value, printed = pair
    text = f"printed {printed:g} TFLOPs, {name} gives {value:.4g} from the arguments: {cause}"
    evidence: dict[str, object] = {"printed": printed, "recomputed": round(value, 3), "formula": name}
    would_fit = causes.wrong_input(printed, launch.topology, *launch.observed.tflops[-1][1:])
    if would_fit:
        evidence["would_fit"] = would_fit[:3]
    return Finding("K12", severity, text, f"{factor:.4g}", {**evidence, "ratio": round(factor, 4)})


def _unexplained(state: RunState, name: str, pairs: _Pairs) -> Iterator[Finding]:
    """K08 where neither a formula nor a factor fits, and K11: which model size would."""
    if max(abs(printed / value - 1) for value, printed in pairs) <= _APART:
        return
    value, printed = pairs[-1]
    evidence: dict[str, object] = {"printed": printed, "recomputed": round(value, 3), "formula": name}
    off = f"{printed / value - 1:+.1%}"
    text = f"printed {printed:g} TFLOPs do not follow from the arguments: {name} gives {value:.4g} ({off})"
    yield Finding("K08", "info", text, "unexplained", evidence)
    implied = _implied(state)
    if implied is not None:
        size, counted = implied
        if abs(size / counted - 1) > _APART:
            text = f"printed TFLOPs imply {size / 1e9:.4g}B parameters, the arguments make {counted / 1e9:.4g}B"
            yield Finding("K11", "info", text, evidence={"implied": round(size), "parameters": round(counted)})


def _implied(state: RunState) -> tuple[float, float] | None:
    """(parameters that the printed figure implies by 2 F P s B / (t W), parameters of the arguments)."""
    launch = state.launch
    topology = launch.topology
    printed, seconds, batch, length = launch.observed.tflops[-1]
    factor, world, counted = passes(topology), topology.world_size, parameters(topology)
    count = topology.parameters or (counted[0] if counted else None)
    if not factor or not world or not count:
        return None
    return printed * 1e12 * seconds * world / (2 * factor * length * batch), float(count)


def _peak(state: RunState) -> Iterator[Finding]:
    launch = state.launch
    printed = launch.latest.tflops
    if printed is None or launch.topology.low_precision:
        return
    peak = derived.peak_tflops(state, None)
    name = launch.topology.gpu_name or ""
    if "V100" in name:
        peak = min(peak or _V100_BUG, _V100_BUG)
    if peak is not None and printed > peak:
        text = f"printed {printed:g} TFLOPs per GPU are more than a {name} can do ({peak:g}): the figure is wrong"
        yield Finding("K17", "warning", text, evidence={"printed": printed, "limit": peak})


def _scaling(state: RunState) -> Iterator[Finding]:
    """Time over batch size in a pipeline: t2 / t1 = (m2 + PP - 1) / (m1 + PP - 1) for m micro batches a replica."""
    launch = state.launch
    topology = launch.topology
    micro, data, stages = topology.micro_batch_size, topology.data_parallel_size, topology.pipeline_parallel_size
    if not micro or not data or not stages or topology.uneven_pipeline or (topology.virtual_pipeline_size or 1) > 1:
        return
    windows = [(size, window) for size, window in launch.pace.windows.items() if size and len(window) >= _SAMPLES]
    if len(windows) < 2:
        return
    (small, before), (large, after) = sorted(windows)[0], sorted(windows)[-1]
    first, last = small / (micro * data), large / (micro * data)
    if first < 2 * stages:
        return  # with a pipeline hardly filled, times that do not depend on the batch dominate
    expected = median(before) * (last + stages - 1) / (first + stages - 1)
    taken = median(after)
    if taken > (1 + _SCALING) * expected:
        more = f"batch size {large} takes {taken:.4g} s, {taken / expected - 1:+.0%} more than expected from {small}"
        text = f"{more} ({expected:.4g} s): not an effect of the batch size"
        evidence = {"seconds": round(taken, 3), "expected_seconds": round(expected, 3)}
        yield Finding("K15", "info", text, evidence=evidence)


def _memory(state: RunState) -> Iterator[Finding]:
    launch = state.launch
    topology = launch.topology
    ends, between = topology.of_stages(launch.memory.by_rank)
    if not ends or not between or len(between) < (topology.pipeline_parallel_size or 0) - 2:
        return
    end, rest = max(ends), max(between)
    if end > (1 + _ABOVE) * rest:
        needs = f"an end stage of the pipeline needs {end / _GIB:.1f} GiB, the stages between {rest / _GIB:.1f} GiB"
        text = f"{needs} at most: the embedding is not balanced"
        yield Finding("K16", "info", text, evidence={"end_bytes": end, "between_bytes": rest})
