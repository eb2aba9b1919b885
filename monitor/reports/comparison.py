"""Two runs beside each other: is it the same configuration, what differs, and how sure the difference is. Pure.

Times of consecutive iterations resemble each other, so they are no independent samples: each run is cut into
consecutive blocks, and the spread of the blocks' medians gives the error of the run's own median.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from megatron_monitor.breakdown import words
from megatron_monitor.breakdown.attribution import attribute
from megatron_monitor.detectors.slowdown.words import standing
from megatron_monitor.model.arguments import is_place, is_set
from megatron_monitor.parsers.events.setup import CLOCK
from megatron_monitor.reports import formulas
from megatron_monitor.reports.columns import COLUMNS, efficiency
from megatron_monitor.reports.rows import Row
from megatron_monitor.reports.tables import Table, aligned

_BLOCKS = 16
_LEAST = 12  # fewer values give no answer
_Z = 1.959964  # 95 %, two sides


@dataclass(frozen=True, slots=True)
class Difference:
    """`ratio` is b over a less 1; it lies within `low` to `high` with 95 % confidence, estimated from these runs."""

    ratio: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def difference(a: Sequence[float], b: Sequence[float]) -> Difference | None:
    """Of the medians of two series in the order of time; None of fewer than a dozen values each."""
    if len(a) < _LEAST or len(b) < _LEAST:
        return None
    one, other = statistics.median(a), statistics.median(b)
    if one <= 0 or other <= 0:
        return None
    (error_a, blocks_a), (error_b, blocks_b) = _error(a, one), _error(b, other)
    # medians are compared on a logarithmic scale, where their relative errors add up
    squares = error_a**2, error_b**2
    total = math.sqrt(sum(squares))
    freedom = (
        sum(squares) ** 2 / (squares[0] ** 2 / (blocks_a - 1) + squares[1] ** 2 / (blocks_b - 1)) if total else 1e9
    )
    reach = student(freedom) * total
    ratio = other / one
    return Difference(ratio - 1, ratio * math.exp(-reach) - 1, ratio * math.exp(reach) - 1)


def _error(values: Sequence[float], median: float) -> tuple[float, int]:
    """(relative standard error of the median, blocks)."""
    count = min(_BLOCKS, len(values) // 3)
    edges = [len(values) * place // count for place in range(count + 1)]
    medians = [statistics.median(values[low:high]) for low, high in pairwise(edges)]
    return statistics.stdev(medians) / math.sqrt(count) / median, count


def student(freedom: float) -> float:
    """The 97.5 % point of Student's distribution (Cornish and Fisher's expansion, within 1 % from 3 degrees on)."""
    z = _Z
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


_CONFIGURATION = tuple(column for column in COLUMNS if column.compare in ("repeat", "configuration"))
_CONFIGURED = frozenset(column.name for column in _CONFIGURATION)
_REPEATS = 0.011  # repeats of one configuration on one machine differ by so much (A100, three days: docs/formulas.md)
_MODEL_FITS = 0.03


def compare(a: Row, b: Row) -> dict[str, Any]:
    """Plain data: what differs by kind, and figures with their difference; names are Row's."""
    settings = [(column.name, column.value(a), column.value(b)) for column in _CONFIGURATION]
    known = [setting for setting in settings if None not in setting]
    changed = _changes({name: value for name, value, _ in known}, {name: value for name, _, value in known})
    arguments = _changes(a.arguments, b.arguments)
    pace = difference(a.steady, b.steady)
    return {
        "runs": [a.run, b.run],
        "outcomes": [a.outcome, b.outcome],
        "same_configuration": not changed and not arguments if known else None,
        "configuration": changed,
        "arguments": arguments,
        "environment": _changes(a.environment, b.environment),
        "software": _changes(a.software, b.software),
        "figures": _figures(a, b),
        "breakdown": {name: [a.breakdown.get(name), b.breakdown.get(name)] for name in a.breakdown | b.breakdown},
        "pace": asdict(pace) | {"sure": pace.sure} if pace else None,
        "levels": [a.level, b.level],
        "verdict": _levels(a, b) + _verdict(a, b, pace, bool(changed)),
        "notes": _notes(a, b, changed, pace),
    }


def _changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Name -> the two values, where they differ. What is in one log alone is a difference too, but not a whole dump."""
    if not a or not b:
        return {}
    pairs = {name: [a.get(name), b.get(name)] for name in dict.fromkeys((*a, *b)) if a.get(name) != b.get(name)}
    # a switch that is off is no other setting than one that a version of the program does not have
    told = {name for name, pair in pairs.items() if any(map(is_set, pair)) and not is_place(name)}
    return {name: pair for name, pair in pairs.items() if name in _CONFIGURED | told}


def _figures(a: Row, b: Row) -> dict[str, dict[str, Any]]:
    out = {}
    for column in COLUMNS:
        if column.compare not in ("figure", "count"):
            continue
        one, other = column.value(a), column.value(b)
        if one is None and other is None:
            continue
        ratio = other / one - 1 if one and other is not None and column.compare == "figure" else None
        out[column.name] = {"values": [one, other], "difference": ratio}
    loss = _losses(a, b)
    if loss is not None:
        out["lm_loss"] = {"values": [loss[1], loss[2]], "difference": loss[2] / loss[1] - 1, "iteration": loss[0]}
    return out


def _cause(a: Row, b: Row) -> str:
    """What takes the time that one needs longer, by the timers of both."""
    if a.profile is None or b.profile is None:
        return ""
    fast, slow = (a, b) if a.profile.seconds <= b.profile.seconds else (b, a)
    assert fast.profile is not None
    assert slow.profile is not None
    found = attribute(fast.profile, slow.profile, slow.pipeline_parallel_size)
    return f"of what {slow.run} takes longer, {words.sentence(found).replace(' of it', '', 1)}" if found.part else ""


def _losses(a: Row, b: Row) -> tuple[int, float, float] | None:
    """(iteration, loss of a, loss of b) at the last iteration near which both logs have one."""
    one, other = a.curves["lm_loss"], b.curves["lm_loss"]
    width = max(one.width, other.width)
    mine = {first // width: (low + high) / 2 for first, low, high in one.points}
    theirs = {first // width: (low + high) / 2 for first, low, high in other.points}
    common = max(mine.keys() & theirs.keys(), default=None)
    if common is None or mine[common] <= 0:
        return None
    return common * width, mine[common], theirs[common]


def _levels(*rows: Row) -> str:
    """Of runs that became slower or faster and stayed so: their medians are of no one pace."""
    told = "".join(f"{row.run} {standing(row.level)}; " for row in rows if row.level is not None)
    return f"{told}over all iterations " if told else ""


def _verdict(a: Row, b: Row, pace: Difference | None, changed: bool) -> str:
    if a.seconds_per_iteration is None or b.seconds_per_iteration is None:
        missing = a.run if a.seconds_per_iteration is None else b.run
        return f"{missing} has no steady iteration: nothing to compare"
    if pace is None:
        return "too few steady iterations to say how sure the difference is"
    interval = f"{pace.low:+.2%} to {pace.high:+.2%}, 95 %"
    if not pace.sure:
        return f"no difference beyond the runs' own spread ({pace.ratio:+.2%}; {interval})"
    word = "slower" if pace.ratio > 0 else "faster"
    verdict = f"{b.run} is {abs(pace.ratio):.2%} {word} per iteration ({interval})"
    if not changed and abs(pace.ratio) <= _REPEATS:
        return verdict + f"; repeats of one configuration differ by up to {_REPEATS:.1%} anyway"
    return verdict


def _notes(a: Row, b: Row, changed: dict[str, list[Any]], pace: Difference | None) -> list[str]:
    sure = pace is not None and pace.sure
    found = [_formulas(a, b), _blocking(a, b), *((_clocks(a, b), _cause(a, b)) if sure else ())]
    if changed.keys() == {"global_batch_size"}:
        found += _batch_model(a, b)
    elif "global_batch_size" in changed:
        found.append("batch sizes differ: samples per second compare, seconds per iteration do not")
    if "gpus" in changed and (kept := efficiency(b, a)) is not None:
        found.append(f"per GPU {b.run} does {kept:.1%} of {a.run}'s samples per second")
    if a.restarts or b.restarts:
        found.append("a run with restarts mixes launches, perhaps on other nodes")
    if pace is not None and min(a.steady_iterations, b.steady_iterations) < 30:
        found.append(f"measured over {a.steady_iterations} and {b.steady_iterations} iterations")
    return [note for note in found if note]


def _formulas(a: Row, b: Row) -> str:
    if a.tflops is None or b.tflops is None or a.tflops_formula == b.tflops_formula:
        return ""
    names = f"{a.tflops_formula or 'unknown'}, {b.tflops_formula or 'unknown'}"
    return f"TFLOPs are by different formulas ({names}): compare seconds or samples"


def _blocking(a: Row, b: Row) -> str:
    one, other = (row.environment.get("CUDA_LAUNCH_BLOCKING") for row in (a, b))
    if one == other:
        return ""
    return f"CUDA_LAUNCH_BLOCKING is {one or 'unknown'} and {other or 'unknown'}: never compare across it"


def _clocks(a: Row, b: Row) -> str:
    one, other = (row.environment.get(CLOCK, "") for row in (a, b))
    if one == other or not all(clock.isdecimal() and len(clock) < 19 for clock in (one, other)):
        return ""
    made = int(one) / int(other) - 1
    return f"GPU clocks of {one} and {other} MHz alone make {made:+.2%} where compute is all of the time"


def _batch_model(a: Row, b: Row) -> list[str]:
    """K15: with the batch size alone changed, the pipeline's filling predicts the new time."""
    mine, theirs = (
        formulas.micro_batches(row.global_batch_size, row.micro_batch_size, row.data_parallel_size) for row in (a, b)
    )
    stages = a.pipeline_parallel_size
    if not (stages and mine and theirs and a.seconds_per_iteration and b.seconds_per_iteration):
        return []
    expected = formulas.scaled_seconds(a.seconds_per_iteration, stages, mine, theirs)
    off = b.seconds_per_iteration / expected - 1
    fits = "as the pipeline's filling explains" if abs(off) <= _MODEL_FITS else "which the batch size does not explain"
    return [f"from {a.run}, the batch size alone gives {expected:.2f} s; {b.run} is {off:+.1%} off, {fits}"]


def sections(found: dict[str, Any]) -> Iterator[tuple[str, Table]]:
    """What differs by kind, and the figures, each with its title."""
    a, b = found["runs"]
    for kind in ("configuration", "arguments", "environment", "software"):
        if found[kind]:
            changes = tuple((name, _shown(values[0]), _shown(values[1])) for name, values in found[kind].items())
            yield f"Different {kind}", Table((" ", a, b), changes)
    yield "Figures", Table((" ", a, b, "difference"), tuple(_figure_rows(found)))


def text(found: dict[str, Any]) -> str:
    """The comparison for people."""
    same = {None: "The logs do not hold their configuration.", True: "Same configuration.", False: ""}
    parts = [found["verdict"], *(("", said) if (said := same[found["same_configuration"]]) else ())]
    for title, content in sections(found):
        parts += ["", title, aligned(content, "  ")]
    if found["notes"]:
        parts += ["", *(f"Note: {note}" for note in found["notes"])]
    return "\n".join(parts)


def _figure_rows(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Cells of each figure, of each part of an iteration, and of the outcome."""
    for name, figure in found["figures"].items():
        label = name.replace("_", " ") + (f" near iteration {figure['iteration']}" if "iteration" in figure else "")
        change = "" if figure["difference"] is None else f"{figure['difference']:+.2%}"
        values = figure["values"]
        if name == "memory_bytes":
            label, values = "memory GiB", [None if value is None else value / 2**30 for value in values]
        yield label, _shown(values[0]), _shown(values[1]), change
    for name, (one, other) in found["breakdown"].items():
        change = f"{other - one:+.4g} s" if one is not None and other is not None else ""
        yield f"seconds in {name}", _shown(one), _shown(other), change
    yield "outcome", *found["outcomes"], ""


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.5g}"
    return str(value) if len(str(value)) <= 60 else str(value)[:57] + "..."
