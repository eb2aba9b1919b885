"""Consistency checks of a run: do its arguments and its lines agree with each other?

`audit(state)` reads a RunState and changes nothing. A check whose inputs are not all known finds nothing, and neither
does one whose arithmetic does not hold for this configuration (model/arguments.py). docs/checks.md is written from
`CHECKS` (`make readme`).
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

from megatron_monitor.model.flops import FORMULAS, formulas_of, prints_as
from megatron_monitor.model.topology import Topology
from megatron_monitor.run.state import RunState

Severity = Literal["info", "warning", "critical"]
RANK: dict[str, int] = {"info": 0, "warning": 1, "critical": 2}


class Check(NamedTuple):
    """One check: a short name, the rule that must hold, and why it is worth a check."""

    name: str
    rule: str
    reason: str


CHECKS = {
    "K08": Check(
        "TFLOPs formula", "Printed TFLOPs follow from the arguments by the newest formula of the program",
        "no program says by which formula it prints; two of them are 61 % apart for one run",
    ),
    "K16": Check(
        "memory", "The end stages of the pipeline need little more memory than the others",
        "the fullest stage limits the micro batch of all",
    ),
    "K21": Check(
        "ramp-up", "Each batch size of a ramp-up is a multiple of micro batch x DP; the last is reached",
        "Megatron asserts it when the batch size is reached, which may be days after the start",
    ),
    "K27": Check(
        "bubble", "Pipeline stages wait less than 10 % of the time", "43 % and 64 % were lost unseen in real logs",
    ),
}  # fmt: skip
"""By code: `detectors.configuration.ignore` leaves checks out by it."""


class Inconsistency(Struct, frozen=True):
    """A check that failed: its code, how bad it is, a sentence, and the figures behind the sentence.

    `info` is worth knowing, `warning` is wrong or wasteful, `critical` will stop the run later. `about` separates two
    findings of one check.
    """

    check: str
    severity: Severity
    message: str
    about: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Names the finding whatever its figures are now: code and `about`."""
        return f"{self.check} {self.about}".rstrip()


_APART = 0.01  # of TFLOPs: smaller differences come from counting norms and biases otherwise
_ABOVE = 0.15  # memory of the end stages over the others: 61 GB against 47 GB is 30 %
_BUBBLE = 0.10  # share of the time that pipeline stages may wait
_BATCHES = 100_000  # ramp-ups with more batch sizes are not checked one by one
_GIB = 2**30


def audit(state: RunState) -> list[Inconsistency]:
    """Everything that failed in what the log has shown so far, the worst first."""
    checks = (_ramp, _bubble, _tflops, _memory)
    found = [finding for check in checks for finding in check(state)]
    return sorted(found, key=lambda finding: (-RANK[finding.severity], finding.check))


def _ramp(state: RunState) -> Iterator[Inconsistency]:
    """K21. It waits for DP: during the set-up only half of the sizes are known."""
    launch = state.launch
    topology = launch.topology
    micro, data, batch = topology.micro_batch_size, topology.data_parallel_size, topology.global_batch_size
    start, increment, samples = topology.rampup or (0, 0, 0)
    early = not launch.iterations and "data_parallel_size" not in topology.told
    if not (micro and data and batch) or early or topology.flexible_batch or topology.other_parallelism:
        return
    if min(start, increment) <= 0 or start >= batch or (batch - start) // increment > _BATCHES:
        return
    step = micro * data
    evidence = {"start": start, "increment": increment, "global_batch_size": batch, "step": step}
    if (batch - start) % increment:
        text = f"the batch size ramp-up from {start} by {increment} does not end at {batch}"
        yield Inconsistency("K21", "warning", text, "steps", evidence)
        return
    wrong = [size for size in range(start, batch + 1, increment) if size % step]
    if not wrong:
        return
    now = launch.latest.global_batch_size or 0
    size = next((size for size in wrong if size > now), wrong[0])
    text = (
        f"{len(wrong)} batch sizes of the ramp-up {start} + n x {increment} to {batch} are no multiple of micro "
        f"batch {micro} x DP {data} = {step}"
    )
    evidence["first_wrong"] = size
    if size > now and launch.iterations > 0:
        when = (size - start) * samples // (batch - start)
        text = f"{text}: the run will stop at batch size {size}, after about {when} samples"
        yield Inconsistency("K21", "critical", text, evidence=evidence)
    else:
        yield Inconsistency("K21", "warning", f"{text}, e.g. {size}", evidence=evidence)


def _bubble(state: RunState) -> Iterator[Inconsistency]:
    topology = state.launch.topology
    stages, batch = topology.pipeline_parallel_size or 1, topology.global_batch_size
    step = (topology.micro_batch_size or 0) * (topology.data_parallel_size or 0)
    if stages < 2 or not batch or not step or batch % step or topology.uneven_pipeline:
        return
    micro_batches = batch // step
    passes = micro_batches * (topology.virtual_pipeline_size or 1)  # interleaved stages pass each micro batch again
    share = round((stages - 1) / (passes + stages - 1), 4)
    if share > _BUBBLE:
        text = f"{stages} pipeline stages wait {share:.0%} of the time: {micro_batches} micro batches do not fill them"
        yield Inconsistency("K27", "info", text, evidence={"bubble": share, "micro_batches": micro_batches})


def _tflops(state: RunState) -> Iterator[Inconsistency]:
    """K08: the formula that gives the printed figures is not the newest one of the run's program, or there is none."""
    topology, lines = state.launch.topology, state.launch.observed.tflops
    unlike = (topology.experts or 0) > 1 or topology.mtp_layers or topology.unusual or topology.other_parallelism
    if not lines or unlike:
        return  # the formulas do not hold, or not exactly
    own, known = formulas_of(topology.dialect), _by_formula(topology, lines)
    candidates = [name for name in own if name in known] or list(known)
    names = dict.fromkeys((*candidates, *known))
    fits = next((name for name in names if all(prints_as(*pair) for pair in known[name])), None)
    if fits is None and candidates:
        name = candidates[0]
        value, printed = known[name][-1]
        if max(abs(printed / value - 1) for value, printed in known[name]) > _APART:
            off = f"{name} gives {value:.4g} ({printed / value - 1:+.1%})"
            text = f"printed {printed:g} TFLOPs do not follow from the arguments: {off}"
            evidence: dict[str, Any] = {"printed": printed, "recomputed": round(value, 3), "formula": name}
            yield Inconsistency("K08", "info", text, "unexplained", evidence)
    elif fits is not None and own and fits != own[0]:
        newest = known.get(own[0])
        other = f", {newest[-1][0] / known[fits][-1][0] - 1:+.1%} by {own[0]}" if newest else ""
        text = f"printed TFLOPs follow the formula {fits}{other}: do not compare with figures of another formula"
        yield Inconsistency("K08", "info", text, "formula", {"formula": fits, "newest": own[0]})


def _by_formula(
    topology: Topology, lines: list[tuple[float, float, int, int]]
) -> dict[str, list[tuple[float, float]]]:  # fmt: skip
    """(recomputed, printed) TFLOP/s per GPU of each line, by each formula that gives a figure for all of them."""
    known = {}
    for name, formula in FORMULAS.items():
        pairs = [(value, line[0]) for line in lines if (value := formula(topology, *line[1:]))]
        if len(pairs) == len(lines):
            known[name] = pairs
    return known


def _memory(state: RunState) -> Iterator[Inconsistency]:
    topology = state.launch.topology
    ends, between = topology.of_stages(state.launch.memory.by_rank)
    if not ends or not between or len(between) < (topology.pipeline_parallel_size or 0) - 2:
        return
    end, rest = max(ends), max(between)
    if end > (1 + _ABOVE) * rest:
        needs = f"an end stage of the pipeline needs {end / _GIB:.1f} GiB, the stages between {rest / _GIB:.1f} GiB"
        text = f"{needs} at most: the embedding is not balanced"
        yield Inconsistency("K16", "info", text, evidence={"end_bytes": end, "between_bytes": rest})
